"""The responses dialect: OpenAI's Responses API, as used by its SDKs, the Agents SDK and Codex.

The history behind ``previous_response_id`` and ``item_reference`` comes from the ledger. Tools that a server
would have to run are left out, since nobody here could; prompt templates are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat import translated, wire_message
from openclaw_rl.serve.conversations import Continued, add_conversation_routes, continued, keep_turn
from openclaw_rl.serve.custom_tools import as_function
from openclaw_rl.serve.dialect import Call, Dialect, Open, WireRequest, call_of, given, remaining
from openclaw_rl.serve.exchange import Exchange
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.response_events import ResponseWriter
from openclaw_rl.serve.response_items import InputItem, in_namespace, to_messages
from openclaw_rl.serve.stored_responses import add_stored_routes, resolved
from openclaw_rl.types import ChatRequest, Json, TurnRecord

_REFUSED = ("prompt",)


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


class ConversationName(Open):
    id: str


class TextOptions(Open):
    format: dict[str, Any] | None = None


class ResponsesRequest(WireRequest):
    model: str
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
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
    """OpenAI's Responses API: streaming, tools, ``text.format``, ``previous_response_id``, ``conversation``,
    ``background``, ``truncation: auto``."""

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
        given_input = await resolved(parsed.input, call.user, call.recall)
        conversation = await _conversation(parsed, given_input, call)
        history = conversation.history if conversation else _history(earlier) if earlier else []
        messages = [*history, *to_messages(given_input)]
        if not messages:
            raise RequestError("There is nothing to answer: input is missing.", param="input")
        if parsed.instructions:
            messages.insert(0, {"role": "system", "content": parsed.instructions})
        tools, choice = _tools(parsed)
        known = set(ResponsesRequest.model_fields) - {
            "instructions", "previous_response_id", "truncation", "background",
        }  # fmt: skip
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
        if conversation:
            body["conversation"] = {"id": conversation.id}
        request = replace(translated(body, call, self.name), truncate=parsed.truncation == "auto")
        return conversation.joined_by(request) if conversation else request

    def in_background(self, parsed: ResponsesRequest) -> bool:
        return bool(parsed.background)

    async def recorded(self, gateway: Gateway, turn: TurnRecord, request: ChatRequest) -> None:
        await keep_turn(gateway.conversations, turn, request)

    def writer(self, exchange: Exchange, parsed: ResponsesRequest) -> ResponseWriter:
        return ResponseWriter(exchange, _namespaces(parsed.tools or []), _wants_logprobs(parsed))

    def add_routes(self, router: APIRouter, gateway: Gateway) -> None:
        @router.post(f"{self.path}/input_tokens", tags=["generate"])
        async def input_tokens(parsed: ResponsesRequest, request: Request) -> Json:
            """Tokens of the rendered prompt."""
            call = await call_of(gateway, request)
            count = await gateway.count_tokens(await self.read(parsed, call))
            return {"object": "response.input_tokens", "input_tokens": count}

        add_stored_routes(router, gateway, self.path, self.name)
        add_conversation_routes(router, gateway)


def _wants_logprobs(parsed: ResponsesRequest) -> bool:
    return bool(parsed.top_logprobs) or "message.output_text.logprobs" in (parsed.include or [])


def _refuse(parsed: ResponsesRequest) -> None:
    for name in _REFUSED:
        if (parsed.model_extra or {}).get(name) is not None:
            raise RequestError(
                f"{name} is not supported here; send its text as instructions and input.",
                param=name,
            )
    if parsed.background and parsed.stream:
        raise RequestError(
            "A background response is not streamed here; ask for it by its id until it is completed.",
            param="stream",
        )
    if parsed.background and (parsed.model_extra or {}).get("store") is False:
        raise RequestError("A background response has to be stored; leave out store: false.", param="store")


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


async def _conversation(
    parsed: ResponsesRequest, given_input: str | list[InputItem] | None, call: Call
) -> Continued | None:
    if (named := parsed.conversation) is None:
        return None
    if parsed.previous_response_id is not None:
        raise RequestError(
            "Give either conversation or previous_response_id, not both.",
            code="mutually_exclusive_parameters",
            param="conversation",
        )
    if call.body.get("store") is False:
        raise RequestError(
            "A conversation keeps its replies: leave out store: false, or the conversation.", param="store"
        )
    name = named if isinstance(named, str) else named.id
    return await continued(call.conversations, name, call.user, given_input)


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
        one.model_copy(update={"name": in_namespace(tool.name, one.name)})
        for one in inner
        if one.type == "function"
    ]


def _namespaces(tools: list[ToolIn]) -> dict[str, tuple[str, str]]:
    """The model's name of a function -> (namespace, name in it)."""
    return {
        in_namespace(tool.name, one.name): (tool.name or "", one.name or "")
        for tool in tools
        if tool.type == "namespace"
        for one in tool.tools or []
    }


def _format(text: TextOptions | None) -> Json | None:
    response_format = text.format if text else None
    if response_format is None or response_format.get("type") != "json_schema":
        return response_format
    schema = {name: value for name, value in response_format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}
