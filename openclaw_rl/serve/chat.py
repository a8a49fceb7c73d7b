"""The chat-completions dialect: OpenAI's wire format over the internal request and events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from openclaw_rl.errors import RequestError
from openclaw_rl.serve import sse
from openclaw_rl.serve.gateway import Event, Exchange, reply_message, tool_call_id
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import ChatRequest, Delta, Json, Message, Renderer, Token, Tool, TurnRecord

#: Sent by common clients, understood, and without effect here.
_HARMLESS = {
    "user", "metadata", "session_id", "store", "prompt_cache_key", "service_tier", "parallel_tool_calls",
    "reasoning_effort", "safety_identifier", "verbosity", "modalities",
}  # fmt: skip


class _Open(BaseModel):
    """Unknown fields are kept, so that the caller can count them."""

    model_config = ConfigDict(extra="allow")


class ContentPart(_Open):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(_Open):
    name: str
    arguments: str = "{}"


class ToolCallIn(_Open):
    id: str = ""
    function: FunctionCall


class MessageIn(_Open):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionDefinition(_Open):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolIn(_Open):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(_Open):
    name: str


class NamedTool(_Open):
    type: Literal["function"] = "function"
    function: NamedFunction


class StreamOptions(_Open):
    include_usage: bool | None = None


class ChatCompletionRequest(_Open, WellFormed):
    model: str
    messages: Annotated[list[MessageIn], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def ignored_fields(request: ChatCompletionRequest) -> list[str]:
    return sorted(set(request.model_extra or {}) - _HARMLESS)


def to_internal(
    request: ChatCompletionRequest, body: Json, user: str, headers: Mapping[str, str]
) -> ChatRequest:
    """Raises RequestError for what we understand but cannot do."""
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    tools, schema = _tools(request), _json_schema(request.response_format)
    return ChatRequest(
        dialect="chat",
        user=user,
        model=request.model,
        messages=[_message(message, index) for index, message in enumerate(request.messages)],
        tools=tools,
        must_call=_must_call(request, tools),
        json_schema=schema,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        seed=request.seed,
        num_choices=request.n or 1,
        stop=tuple(stop),
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
        # A reply of a given shape has no room for thinking first.
        thinking=False if schema else (request.chat_template_kwargs or {}).get("enable_thinking"),
        headers=headers,
        body=body,
    )


def internal_messages(dialect: str, messages: list[Json]) -> list[Message]:
    """Messages of a stored request, which was valid when it came."""
    assert dialect == "chat", dialect
    return [_message(MessageIn.model_validate(message), i) for i, message in enumerate(messages)]


def stored_request(turn: TurnRecord) -> ChatRequest:
    """The request of a stored turn, which was valid when it came."""
    assert turn.dialect == "chat", turn.dialect
    body = {**turn.params, "messages": turn.messages, "tools": turn.tools}
    return to_internal(ChatCompletionRequest.model_validate(body), body, turn.user, {})


def _message(message: MessageIn, index: int) -> Message:
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    internal: Message = {"role": role, "content": _text(message.content, index)}
    if message.reasoning_content:
        internal["reasoning"] = message.reasoning_content
    if message.tool_calls:
        internal["tool_calls"] = [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        internal["tool_call_id"] = message.tool_call_id
    if message.name:
        internal["name"] = message.name
    return internal


def _text(content: str | list[ContentPart] | None, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            raise RequestError(
                f"This model reads text only; a content part of type '{part.type}' cannot be used. "
                "Remove it or describe it in words.",
                code="unsupported_content",
                param=f"messages[{index}].content",
            )
    return "".join(part.text or part.refusal or "" for part in content)


def _tools(request: ChatCompletionRequest) -> list[Tool]:
    tools: list[Tool] = [
        {
            "name": tool.function.name,
            "description": tool.function.description or "",
            "parameters": tool.function.parameters or {"type": "object", "properties": {}},
        }
        for tool in request.tools or []
    ]
    return [] if request.tool_choice == "none" else tools


def _must_call(request: ChatCompletionRequest, tools: list[Tool]) -> list[Tool]:
    """The tools of which one has to be called."""
    choice = request.tool_choice
    if choice in (None, "auto", "none"):
        return []
    if not tools:
        raise RequestError("tool_choice needs tools.", param="tool_choice")
    if choice == "required":
        return tools
    assert isinstance(choice, NamedTool)
    named = [tool for tool in tools if tool["name"] == choice.function.name]
    if not named:
        known = ", ".join(tool["name"] for tool in tools)
        raise RequestError(
            f"tool_choice names '{choice.function.name}', but the tools are: {known}.", param="tool_choice"
        )
    return named[:1]


def _json_schema(response_format: dict[str, Any] | None) -> Json | None:
    """The schema a reply has to follow, if any."""
    kind = (response_format or {"type": "text"}).get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise RequestError(
            f"response_format.type is {kind!r}; use 'text', 'json_object' or 'json_schema'.",
            param="response_format",
        )
    wrapper = response_format.get("json_schema")
    schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
    if not isinstance(schema, dict):
        raise RequestError(
            "response_format needs json_schema.schema, an object.", param="response_format.json_schema.schema"
        )
    return schema


# --- replies ---------------------------------------------------------------------------------


def finish_reason(event: Event, deltas: list[Delta]) -> str:
    called = any(delta.tool_index is not None for delta in deltas)
    return "tool_calls" if called and event.finish_reason == "stop" else str(event.finish_reason)


def usage(exchange: Exchange) -> Json:
    prompt, completion = len(exchange.prompt_ids), exchange.num_completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def completion(exchange: Exchange, model: str, renderer: Renderer, *, logprobs: bool) -> Json:
    """The whole reply at once."""
    count = exchange.request.num_choices
    deltas: list[list[Delta]] = [[] for _ in range(count)]
    tokens: list[list[Token]] = [[] for _ in range(count)]
    reasons: list[str] = [""] * count
    async for event in exchange.events():
        tokens[event.choice] += event.tokens
        if event.delta:
            deltas[event.choice].append(event.delta)
        if event.finish_reason:
            reasons[event.choice] = finish_reason(event, deltas[event.choice])
    choices = [
        {
            "index": i,
            "message": _wire_message(reply_message(deltas[i], exchange.turn_id(i))),
            "logprobs": wire_logprobs(tokens[i], exchange, renderer) if logprobs else None,
            "finish_reason": reasons[i],
        }
        for i in range(count)
    ]
    return {**_head(exchange, model, "chat.completion"), "choices": choices, "usage": usage(exchange)}


async def stream(
    exchange: Exchange, model: str, renderer: Renderer, *, logprobs: bool, include_usage: bool
) -> AsyncIterator[bytes]:
    """The reply chunk by chunk; the first goes out with the first token."""
    head = _head(exchange, model, "chat.completion.chunk")
    if include_usage:
        head["usage"] = None
    deltas: list[list[Delta]] = [[] for _ in range(exchange.request.num_choices)]
    started: set[int] = set()
    pending: dict[int, list[Token]] = {}
    async with aclosing(exchange.events()) as events:  # type: ignore[type-var]
        async for event in events:
            i = event.choice
            pending.setdefault(i, []).extend(event.tokens)
            wire: Json = {}
            if i not in started:
                started.add(i)
                wire = {"role": "assistant", "content": ""}
            elif event.delta is None and event.finish_reason is None:
                continue
            if event.delta:
                wire |= _wire_delta(event.delta, exchange.turn_id(i))
                deltas[i].append(event.delta)
            choice: Json = {"index": i, "delta": wire, "logprobs": None, "finish_reason": None}
            if logprobs and pending[i]:
                choice["logprobs"] = wire_logprobs(pending.pop(i), exchange, renderer)
            if event.finish_reason:
                choice["finish_reason"] = finish_reason(event, deltas[i])
            yield sse.event({**head, "choices": [choice]})
    if include_usage:
        yield sse.event({**head, "choices": [], "usage": usage(exchange)})
    yield sse.DONE


def _head(exchange: Exchange, model: str, kind: str) -> Json:
    return {
        "id": exchange.id,
        "object": kind,
        "created": int(exchange.arrived),
        "model": model,
        "system_fingerprint": f"policy-{exchange.version}",
    }


def _wire_delta(delta: Delta, turn_id: str) -> Json:
    if delta.tool_index is None:
        wire: Json = {"content": delta.content} if delta.content else {}
        return wire | ({"reasoning_content": delta.reasoning} if delta.reasoning else {})
    call: Json = {"index": delta.tool_index, "function": {"arguments": delta.arguments}}
    if delta.tool_name:
        call |= {"id": tool_call_id(turn_id, delta.tool_index), "type": "function"}
        call["function"] = {"name": delta.tool_name, "arguments": delta.arguments}
    return {"tool_calls": [call]}


def _wire_message(message: Message) -> Json:
    wire: Json = {"role": "assistant", "content": message["content"] or None, "refusal": None}
    if "reasoning" in message:
        wire["reasoning_content"] = message["reasoning"]
    if "tool_calls" in message:
        wire["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message["tool_calls"]
        ]
    elif wire["content"] is None:
        wire["content"] = ""
    return wire


def wire_logprobs(tokens: list[Token], exchange: Exchange, renderer: Renderer) -> Json:
    """Raw log-probs in OpenAI's shape; tokens that only end the reply are left out, as there."""

    def entry(token_id: int, logprob: float) -> Json:
        data = renderer.token_bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    k = exchange.request.top_logprobs
    content = [
        {
            **entry(token.id, token.logprob),
            "top_logprobs": [
                entry(i, value) for i, value in zip(token.top_ids[:k], token.top_logprobs[:k], strict=True)
            ],
        }
        for token in tokens
        if token.id not in renderer.stop_ids
    ]
    return {"content": content, "refusal": None}
