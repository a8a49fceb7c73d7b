"""The messages dialect of Anthropic's SDKs and Claude Code.

The arguments of a tool call are sent when they are complete: clients parse them and fail on anything but
JSON. Arguments that are not a JSON object are sent as ``{"invalid_json": text}`` and read back as that text,
so that the conversation is still recognised.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from openclaw_rl.errors import RequestError
from openclaw_rl.serve import sse
from openclaw_rl.serve.chat import translated
from openclaw_rl.serve.dialect import Call, Dialect, Open, WireRequest, call_of, given, remaining
from openclaw_rl.serve.exchange import Event, Exchange, tool_call_id
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.types import ChatRequest, Delta, Json

_INVALID = "invalid_json"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
}  # fmt: skip


class Block(Open):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None


class MessageIn(Open):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolIn(Open):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Open):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class Thinking(Open):
    type: str


class OutputFormat(Open):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Open):
    format: OutputFormat | None = None


class CountTokensRequest(WireRequest):
    model: str
    messages: Annotated[list[MessageIn], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[ToolIn] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The beta name of ``output_config.format``."""


class MessagesRequest(CountTokensRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None


class MessagesDialect(Dialect[MessagesRequest]):
    """Anthropic's messages: content blocks, streaming, tools, ``output_config.format``."""

    name = "messages"
    path = "/v1/messages"
    id_prefix = "msg_"
    request = MessagesRequest
    harmless = frozenset({"metadata", "session_id", "service_tier", "context_management", "betas"})

    async def read(self, parsed: MessagesRequest, call: Call) -> ChatRequest:
        return read(parsed, call)

    def writer(self, exchange: Exchange, parsed: MessagesRequest) -> MessagesWriter:
        return MessagesWriter(exchange)

    def error(self, status: int, message: str, code: str | None = None, param: str | None = None) -> Json:
        return error_body(status, message, code)

    def add_routes(self, router: APIRouter, gateway: Gateway) -> None:
        @router.post(f"{self.path}/count_tokens", tags=["generate"])
        async def count_tokens(parsed: CountTokensRequest, request: Request) -> Json:
            """Tokens of the rendered prompt."""
            call = await call_of(gateway, request)
            return {"input_tokens": await gateway.count_tokens(read(parsed, call))}


def error_body(status: int, message: str, code: str | None = None) -> Json:
    if code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # clients look for this text to start compaction
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


# --- requests --------------------------------------------------------------------------------


def read(parsed: CountTokensRequest, call: Call) -> ChatRequest:
    messages = [wire for message in parsed.messages for wire in _messages(message)]
    if parsed.system:
        messages.insert(0, {"role": "system", "content": _content(parsed.system)})
    if messages[-1]["role"] == "assistant":
        raise RequestError(
            "The last message is the assistant's; replies cannot be begun for it. End with a user's message."
        )
    known = set(type(parsed).model_fields) - {"thinking"}
    body: Json = {
        **remaining(call, known),
        **given(
            model=parsed.model,
            stream=parsed.stream,
            tools=_tools(parsed),
            tool_choice=_tool_choice(parsed.tool_choice),
            chat_template_kwargs=_template_options(parsed.thinking),
            response_format=_response_format(parsed),
        ),
        "messages": messages,
    }
    if isinstance(parsed, MessagesRequest):
        body |= given(
            max_tokens=parsed.max_tokens,
            temperature=parsed.temperature,
            top_p=parsed.top_p,
            top_k=parsed.top_k,
            stop=parsed.stop_sequences or None,
        )
    return translated(body, call, MessagesDialect.name)


def _messages(message: MessageIn) -> list[Json]:
    """Tool results become separate messages, before the user's text in the same message."""
    blocks = message.content
    if isinstance(blocks, str):
        return [{"role": message.role, "content": blocks}]
    if message.role == "assistant":
        return [_assistant(blocks)]
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": _content(block.content or "")}
        for block in blocks
        if block.type == "tool_result"
    ]
    rest = [block for block in blocks if block.type != "tool_result"]
    return [*results, {"role": message.role, "content": _content(rest)}] if rest or not results else results


def _assistant(blocks: list[Block]) -> Json:
    calls = [
        {
            "id": block.id or "",
            "type": "function",
            "function": {"name": block.name or "", "arguments": _arguments(block.input or {})},
        }
        for block in blocks
        if block.type == "tool_use"
    ]
    reasoning = "".join(block.thinking or "" for block in blocks if block.type == "thinking")
    spoken = [b for b in blocks if b.type not in ("tool_use", "thinking", "redacted_thinking")]
    # Joined as they were streamed, with nothing in between, even if there was a call between two texts.
    content = _content(spoken, between="") if spoken else None
    return {
        "role": "assistant",
        "content": content,
        **given(reasoning_content=reasoning or None, tool_calls=calls or None),
    }


def _arguments(value: dict[str, Any]) -> str:
    if set(value) == {_INVALID} and isinstance(value[_INVALID], str):
        return str(value[_INVALID])
    return json.dumps(value, ensure_ascii=False)


def _content(content: str | list[Block], between: str = "\n") -> str | list[Json]:
    """Text as one string; with other content, a list of parts in chat completions' format."""
    if isinstance(content, str):
        return content
    if all(block.type in ("text", "tool_reference") for block in content):
        return between.join(_words(block) for block in content)
    return [_part(block) for block in content]


def _words(block: Block) -> str:
    """Claude Code may search for tools that it has not sent yet; it sends those it found from then on."""
    if block.type == "tool_reference":
        return f"The tool {(block.model_extra or {}).get('tool_name')} can be used now."
    return block.text or ""


def _part(block: Block) -> Json:
    if block.type in ("text", "tool_reference"):
        return {"type": "text", "text": _words(block)}
    source = (block.model_extra or {}).get("source")
    if block.type == "image" and isinstance(source, dict):
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": block.type}


def _tools(parsed: CountTokensRequest) -> list[Json] | None:
    """Tools that the server would have to run are left out, since we cannot run them."""
    usable = [tool for tool in parsed.tools or [] if tool.input_schema is not None]
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            },
        }
        for tool in usable
    ] or None


def _tool_choice(choice: ToolChoice | None) -> Any:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]


def _response_format(parsed: CountTokensRequest) -> Json | None:
    stated = (parsed.output_config.format if parsed.output_config else None) or parsed.output_format
    if stated is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": stated.schema_}}


def _template_options(thinking: Thinking | None) -> Json | None:
    enabled = {"enabled": True, "disabled": False}.get(thinking.type) if thinking else None
    return None if enabled is None else {"enable_thinking": enabled}


# --- replies ---------------------------------------------------------------------------------


class MessagesWriter:
    """Writes content blocks one after the other: thinking, text and tool use, as they arrive."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._blocks: list[Json] = []
        self._open: tuple[str, int | None] | None = None
        """Kind of the block being written, and the call's index."""
        self._arguments = ""
        self._stop: Json = {"stop_reason": None, "stop_sequence": None}

    def begin(self) -> list[bytes]:
        return [_event("message_start", message=self._message())]

    def add(self, event: Event) -> list[bytes]:
        out: list[bytes] = []
        if delta := event.delta:
            out += self._add(delta)
        if event.finish_reason:
            out += self._close()
            if not self._blocks:
                out += [*self._start(("text", None)), *self._close()]
            reason = _STOP_REASONS.get(event.finish_reason, "end_turn")
            if event.stop_text is not None:
                reason = "stop_sequence"
            elif reason == "end_turn" and any(block["type"] == "tool_use" for block in self._blocks):
                reason = "tool_use"
            self._stop = {"stop_reason": reason, "stop_sequence": event.stop_text}
        return out

    def finish(self) -> list[bytes]:
        return [_event("message_delta", delta=self._stop, usage=self._usage()), _event("message_stop")]

    def fail(self, message: str) -> list[bytes]:
        return [sse.event(error_body(500, message), "error")]

    def whole(self) -> Json:
        return self._message()

    def _add(self, delta: Delta) -> list[bytes]:
        if delta.tool_index is not None:
            kind: tuple[str, int | None] = ("tool_use", delta.tool_index)
            begun = [] if self._open == kind else self._start(kind, delta.tool_name)
            self._arguments += delta.arguments
            return begun
        out: list[bytes] = []
        for name, text in (("thinking", delta.reasoning), ("text", delta.content)):
            if text:
                out += [] if self._open == (name, None) else self._start((name, None))
                self._blocks[-1][name] += text
                out.append(self._delta(type=f"{name}_delta", **{name: text}))
        return out

    def _start(self, kind: tuple[str, int | None], tool_name: str = "") -> list[bytes]:
        closed = self._close()
        name, index = kind
        block: Json = {"type": name, name: ""}
        if name == "thinking":
            block["signature"] = ""
        elif index is not None:
            turn_id = self._exchange.turn_id(0)
            block = {"type": name, "id": tool_call_id(turn_id, index), "name": tool_name, "input": {}}
        self._blocks.append(block)
        self._open, self._arguments = kind, ""
        return [*closed, _event("content_block_start", index=len(self._blocks) - 1, content_block=block)]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        out, block = [], self._blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = _parsed(self._arguments)
            text = json.dumps(block["input"], ensure_ascii=False)
            out.append(self._delta(type="input_json_delta", partial_json=text))
        self._open = None
        return [*out, _event("content_block_stop", index=len(self._blocks) - 1)]

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _message(self) -> Json:
        return {
            "id": self._exchange.id,
            "type": "message",
            "role": "assistant",
            "model": self._exchange.source.model,
            "content": self._blocks,
            **self._stop,
            "usage": self._usage(),
        }

    def _usage(self) -> Json:
        prompt, completion = self._exchange.usage
        return {
            "input_tokens": prompt,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": completion,
        }


def _parsed(arguments: str) -> Json:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {_INVALID: arguments}


def _event(name: str, **data: Any) -> bytes:
    return sse.event({"type": name, **data}, name)
