"""The responses dialect: OpenAI's Responses API, as used by its SDKs, the Agents SDK and Codex.

The history behind ``previous_response_id`` and ``item_reference`` comes from the ledger. Tools that the
server would have to run are left out, since we cannot run them; background responses, conversations and
prompt templates are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat import translated, wire_message
from openclaw_rl.serve.custom_tools import arguments_of, as_function
from openclaw_rl.serve.dialect import Call, Dialect, Open, WireRequest, given, remaining
from openclaw_rl.serve.exchange import Exchange
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.response_events import ResponseWriter
from openclaw_rl.serve.stored_responses import add_stored_routes, referred_item
from openclaw_rl.types import ChatRequest, Json, TurnRecord

_REFUSED = ("conversation", "prompt")


class Part(Open):
    type: str = "input_text"
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None


class Item(Open):
    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | None = None


class ToolIn(Open):
    type: str = "function"
    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: dict[str, Any] | None = None
    """A custom tool's format."""
    tools: list[ToolIn] | None = None
    """A namespace's tools; Codex sends its sub-agents and MCP servers this way."""


class ToolChoice(Open):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


class TextOptions(Open):
    format: dict[str, Any] | None = None


class ResponsesRequest(WireRequest):
    model: str
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[ToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    text: TextOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None


class ResponsesDialect(Dialect[ResponsesRequest]):
    name = "responses"
    path = "/v1/responses"
    id_prefix = "resp_"
    request = ResponsesRequest
    fields: ClassVar = {"messages": "input", "response_format": "text.format"}
    harmless = frozenset(
        {
            "user", "metadata", "session_id", "store", "prompt_cache_key", "service_tier",
            "parallel_tool_calls", "reasoning", "safety_identifier", "stream_options",
        }
    )  # fmt: skip

    async def read(self, parsed: ResponsesRequest, call: Call) -> ChatRequest:
        _refuse(parsed)
        earlier = await _earlier(parsed, call)
        given_input = await _resolved(parsed.input, call)
        messages = [*(_history(earlier) if earlier else []), *to_messages(given_input)]
        if not messages:
            raise RequestError("There is nothing to answer: input is missing.", param="input")
        if parsed.instructions:
            messages.insert(0, {"role": "system", "content": parsed.instructions})
        tools, choice = _tools(parsed)
        known = set(ResponsesRequest.model_fields) - {"instructions", "previous_response_id", "truncation"}
        body: Json = {
            **remaining(call, known),
            **given(
                model=parsed.model,
                stream=parsed.stream,
                tools=tools or None,
                tool_choice=choice,
                response_format=_format(parsed.text),
                max_completion_tokens=parsed.max_output_tokens,
                temperature=parsed.temperature,
                top_p=parsed.top_p,
                logprobs=_wants_logprobs(parsed) or None,
                top_logprobs=parsed.top_logprobs if _wants_logprobs(parsed) else None,
            ),
            "messages": messages,
        }
        if earlier:
            body.setdefault("session_id", earlier.session_id)
        request = translated(body, call, self.name)
        return replace(request, truncate=parsed.truncation == "auto")

    def writer(self, exchange: Exchange, parsed: ResponsesRequest) -> ResponseWriter:
        return ResponseWriter(exchange, _namespaces(parsed.tools or []), _wants_logprobs(parsed))

    def add_routes(self, router: APIRouter, gateway: Gateway) -> None:
        @router.post(f"{self.path}/input_tokens", tags=["serve"])
        async def input_tokens(parsed: ResponsesRequest, request: Request) -> Json:
            call = Call(await request.json(), request.state.user, request.headers, gateway.capture.recall)
            count = await gateway.count_tokens(await self.read(parsed, call))
            return {"object": "response.input_tokens", "input_tokens": count}

        add_stored_routes(router, gateway, self.path, self.name)


def _wants_logprobs(parsed: ResponsesRequest) -> bool:
    return bool(parsed.top_logprobs) or "message.output_text.logprobs" in (parsed.include or [])


def _refuse(parsed: ResponsesRequest) -> None:
    for name in _REFUSED:
        if (parsed.model_extra or {}).get(name) is not None:
            raise RequestError(
                f"{name} is not supported here; send the items as input, or go on with previous_response_id.",
                param=name,
            )
    if parsed.background:
        raise RequestError("Replies are not made in the background here.", param="background")


# --- history ---------------------------------------------------------------------------------


async def _earlier(parsed: ResponsesRequest, call: Call) -> TurnRecord | None:
    """The turn that ``previous_response_id`` names, if given."""
    previous_id = parsed.previous_response_id
    if previous_id is None:
        return None
    turn = await call.recall(previous_id)
    if turn is None or turn.user != call.user:
        raise RequestError(
            f"There is no response '{previous_id}' to continue from.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return turn


def _history(turn: TurnRecord) -> list[Json]:
    """The turn's conversation including its reply, without its instructions."""
    messages = turn.messages[1:] if turn.params.get("instructions") else turn.messages
    return [*messages, wire_message(turn.reply)]


async def _resolved(given_input: str | list[Item] | None, call: Call) -> str | list[Item] | None:
    """Replace references with their items; some clients send references for all earlier replies."""
    if not isinstance(given_input, list):
        return given_input
    items = []
    for index, item in enumerate(given_input):
        if item.type == "item_reference" or (item.type is None and item.role is None and item.id):
            found = await referred_item(item.id or "", call.user, call.recall, f"input[{index}]")
            item = Item.model_validate(found)
        items.append(item)
    return items


# --- items to messages -----------------------------------------------------------------------


def to_messages(given_input: str | list[Item] | None) -> list[Json]:
    """The items of one reply (reasoning, text and calls) become one assistant message."""
    if isinstance(given_input, str):
        return [{"role": "user", "content": given_input}]
    messages: list[Json] = []
    for index, item in enumerate(given_input or []):
        kind = item.type or ("message" if item.role else None)
        if kind == "message" and item.role == "assistant":
            _assistant(messages, _starts_anew)["content"] += _text(item.content)
        elif kind == "message":
            messages.append({"role": item.role or "user", "content": _content(item.content)})
        elif kind == "reasoning":
            thought = _text(item.content) or _text(item.summary)
            if thought:
                _assistant(messages, lambda last: True)["reasoning_content"] = thought
        elif kind == "function_call":
            name = _in_namespace(item.namespace, item.name) if item.namespace else item.name
            function = {"name": name or "", "arguments": item.arguments or "{}"}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            _assistant(messages, lambda last: False).setdefault("tool_calls", []).append(call)
        elif kind == "custom_tool_call":
            function = {"name": item.name or "", "arguments": arguments_of(item.input or "")}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            _assistant(messages, lambda last: False).setdefault("tool_calls", []).append(call)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            result = {"role": "tool", "tool_call_id": item.call_id or "", "content": _content(item.output)}
            messages.append(result)
        else:
            raise RequestError(
                f"An input item of type {kind!r} cannot be used here; leave it out or say it in words.",
                code="unsupported_content",
                param=f"input[{index}]",
            )
    return messages


def _assistant(messages: list[Json], starts_anew: Any) -> Json:
    """The assistant message being assembled, or a new one."""
    if not messages or messages[-1]["role"] != "assistant" or starts_anew(messages[-1]):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _starts_anew(last: Json) -> bool:
    """Text after a tool call belongs to the same message; text after text starts a new one."""
    return bool(last["content"]) and "tool_calls" not in last


def _text(content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)


def _content(content: str | list[Part] | None) -> str | list[Json]:
    if content is None or isinstance(content, str):
        return content or ""
    if all(part.type in ("input_text", "output_text", "text", "refusal") for part in content):
        return _text(content)
    return [_part(part) for part in content]


def _part(part: Part) -> Json:
    if part.type == "input_image" and part.image_url is not None:
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    if part.text is not None:
        return {"type": "text", "text": part.text}
    return {"type": part.type}


# --- tools and formats -----------------------------------------------------------------------


def _tools(parsed: ResponsesRequest) -> tuple[list[Json], Any]:
    """The functions that may be called, and the tool choice, in chat completions' format."""
    tools = [flat for tool in parsed.tools or [] for flat in _functions(tool)]
    choice: Any = parsed.tool_choice
    if isinstance(choice, ToolChoice):
        if choice.type == "allowed_tools":
            allowed = {tool.get("name") for tool in choice.tools or []}
            tools = [tool for tool in tools if tool.name in allowed]
            choice = choice.mode or "auto"
        elif choice.type in ("function", "custom"):
            choice = {"type": "function", "function": {"name": choice.name or ""}}
        else:
            raise RequestError(
                f"tool_choice of type '{choice.type}' cannot be used; only functions can be called here.",
                param="tool_choice",
            )
    wire = [
        {
            "type": "function",
            "function": {"name": tool.name or "", **given(description=tool.description)}
            | given(parameters=tool.parameters),
        }
        for tool in tools
    ]
    return wire, choice


def _functions(tool: ToolIn) -> list[ToolIn]:
    """A function, or a namespace's functions under unique names."""
    if tool.type == "function":
        return [tool]
    if tool.type == "custom":
        return [ToolIn.model_validate(as_function(tool.model_dump(exclude_none=True)))]
    inner = (tool.tools or []) if tool.type == "namespace" else []
    return [
        one.model_copy(update={"name": _in_namespace(tool.name, one.name)})
        for one in inner
        if one.type == "function"
    ]


def _namespaces(tools: list[ToolIn]) -> dict[str, tuple[str, str]]:
    """The model's name of a function -> (namespace, name in it)."""
    return {
        _in_namespace(tool.name, one.name): (tool.name or "", one.name or "")
        for tool in tools
        if tool.type == "namespace"
        for one in tool.tools or []
    }


def _in_namespace(namespace: str | None, name: str | None) -> str:
    return f"{namespace or ''}__{name or ''}"


def _format(text: TextOptions | None) -> Json | None:
    response_format = text.format if text else None
    if response_format is None or response_format.get("type") != "json_schema":
        return response_format
    schema = {name: value for name, value in response_format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}
