"""The chat-completions dialect: OpenAI's wire format, in which turns are also stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from openclaw_rl.errors import RequestError
from openclaw_rl.messages import internal_message, internal_tools, thinking
from openclaw_rl.serve import custom_tools, legacy_functions, sse
from openclaw_rl.serve.chat_wire import ChatCompletionRequest, NamedTool, SomeTools
from openclaw_rl.serve.dialect import Call, Dialect, openai_error
from openclaw_rl.serve.exchange import Event, Exchange, reply_message, tool_call_id
from openclaw_rl.text import well_formed
from openclaw_rl.types import ChatRequest, Delta, Json, Message, Renderer, Token, Tool


def to_internal(
    request: ChatCompletionRequest,
    body: Json,
    user: str,
    headers: Mapping[str, str],
    dialect: str = "chat",
) -> ChatRequest:
    """Raises RequestError for valid requests that are not supported."""
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    _refuse(request)
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    schema, known = _json_schema(request.response_format), well_formed(body)
    tools = internal_tools(known)
    return ChatRequest(
        dialect=dialect,
        user=user,
        model=request.model,
        messages=[internal_message(message) for message in known["messages"]],
        tools=tools,
        must_call=_must_call(request, tools),
        json_schema=schema,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=None if request.top_k is None else max(0, request.top_k),
        seed=request.seed,
        num_choices=request.n or 1,
        stop=tuple(stop),
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
        thinking=thinking(known),
        headers=headers,
        body=body,
        min_p=request.min_p or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=request.logit_bias or {},
    )


def _refuse(request: ChatCompletionRequest) -> None:
    for index, message in enumerate(request.messages):
        if message.role == "user" and message.content is None:
            raise RequestError(
                "A user message needs content; send a text, even an empty one.",
                code="invalid_value",
                param=f"messages[{index}].content",
            )
    for index, tool in enumerate(request.tools or []):
        if tool.type != "function" or tool.function is None:
            raise RequestError(
                f"Only functions and custom tools can be called here, no tool of type '{tool.type}'.",
                code="invalid_value",
                param=f"tools[{index}]",
            )


def translated(body: Json, call: Call, dialect: str) -> ChatRequest:
    """The internal request for a body that another dialect has translated to chat completions."""
    try:
        parsed = ChatCompletionRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(f"{where}: {first['msg']}", code="invalid_value", param=where) from None
    return to_internal(parsed, body, call.user, call.headers, dialect)


def _must_call(request: ChatCompletionRequest, tools: list[Tool]) -> list[Tool]:
    """The tools of which the reply must call one."""
    choice = request.tool_choice
    if choice in (None, "auto", "none"):
        return []
    if not tools:
        raise RequestError("tool_choice needs tools.", param="tool_choice")
    if isinstance(choice, SomeTools):
        return tools if choice.allowed_tools.mode == "required" else []
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
    """The schema that the reply must follow, if any."""
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


class ChatDialect(Dialect[ChatCompletionRequest]):
    """OpenAI's chat completions."""

    name = "chat"
    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    request = ChatCompletionRequest
    harmless = frozenset(
        {
            "user", "metadata", "session_id", "store", "prompt_cache_key", "service_tier",
            "parallel_tool_calls", "reasoning_effort", "safety_identifier", "verbosity", "modalities",
        }
    )  # fmt: skip

    async def read(self, parsed: ChatCompletionRequest, call: Call) -> ChatRequest:
        body = legacy_functions.modern(call.body) if legacy_functions.is_legacy(call.body) else call.body
        if custom_tools.has_custom(body):
            body = custom_tools.with_functions(body)
        if body is not call.body:
            return translated(body, call, self.name)
        return to_internal(parsed, body, call.user, call.headers)

    def writer(self, exchange: Exchange, parsed: ChatCompletionRequest) -> ChatWriter:
        usage, ids = parsed.stream_options, bool(parsed.return_token_ids)
        with_usage = bool(usage and usage.include_usage)
        return ChatWriter(exchange, bool(parsed.logprobs), with_usage, bool(parsed.functions), ids)


class ChatWriter:
    """Writes chunks, the first of them with the first token, or one completion."""

    def __init__(
        self, exchange: Exchange, logprobs: bool, include_usage: bool, legacy: bool, with_ids: bool
    ) -> None:
        """``legacy``: write tool calls as ``function_call``."""
        self._legacy, self._with_ids = legacy, with_ids
        self._exchange, self._logprobs, self._include_usage = exchange, logprobs, include_usage
        count = exchange.request.num_choices
        self._deltas: list[list[Delta]] = [[] for _ in range(count)]
        self._entries: list[list[Json]] = [[] for _ in range(count)]
        self._ids: list[list[int]] = [[] for _ in range(count)]
        self._num_shown, self._num_ids = [0] * count, [0] * count
        self._reasons = [""] * count
        self._started: set[int] = set()
        self._custom = custom_tools.custom_names(exchange.request.body.get("tools"))

    def begin(self) -> list[bytes]:
        return []

    def add(self, event: Event) -> list[bytes]:
        i = event.choice
        self._entries[i] += event_logprobs(event, self._exchange) if self._logprobs else []
        self._ids[i] += [token.id for token in event.tokens]
        wire: Json = {}
        if i not in self._started:
            self._started.add(i)
            # A reply that must be a tool call has no text.
            wire = {"role": "assistant", "content": None if self._exchange.request.must_call else ""}
        elif event.delta is None and event.finish_reason is None:
            return []
        if event.delta:
            self._deltas[i].append(event.delta)
            if not self._is_custom(i, event.delta):
                wire |= _wire_delta(event.delta, self._exchange.turn_id(i))
        wire = legacy_functions.reworded(wire) if self._legacy else wire
        choice: Json = {"index": i, "delta": wire, "logprobs": None, "finish_reason": None}
        if shown := self._entries[i][self._num_shown[i] :]:
            choice["logprobs"] = {"content": shown, "refusal": None}
            self._num_shown[i] = len(self._entries[i])
        if event.finish_reason:
            wire |= self._custom_calls(i)
            reason = finish_reason(event, self._deltas[i])
            reason = "function_call" if self._legacy and reason == "tool_calls" else reason
            choice["finish_reason"] = self._reasons[i] = reason
        if self._with_ids:
            choice["token_ids"] = self._ids[i][self._num_ids[i] :]
            self._num_ids[i] = len(self._ids[i])
        return [self._chunk(choices=[choice], usage=None, **(self._prompt() if "role" in wire else {}))]

    def _is_custom(self, choice: int, delta: Delta) -> bool:
        """Whether it is part of a custom tool call, whose text is known only once it is complete."""
        names = (
            {d.tool_index: d.tool_name for d in self._deltas[choice] if d.tool_name} if self._custom else {}
        )
        return delta.tool_index is not None and names.get(delta.tool_index) in self._custom

    def _custom_calls(self, choice: int) -> Json:
        calls = self._message(self._deltas[choice], self._exchange.turn_id(choice)).get("tool_calls") or []
        found = [{"index": index, **call} for index, call in enumerate(calls) if call["type"] == "custom"]
        return {"tool_calls": found} if found else {}

    def finish(self) -> list[bytes]:
        last = [self._chunk(choices=[], usage=usage(self._exchange))] if self._include_usage else []
        return [*last, sse.DONE]

    def fail(self, message: str) -> list[bytes]:
        return [sse.event(openai_error(500, message))]

    def whole(self) -> Json:
        exchange = self._exchange
        choices = [
            {
                "index": i,
                "message": self._message(deltas, exchange.turn_id(i)),
                "logprobs": {"content": self._entries[i], "refusal": None} if self._logprobs else None,
                "finish_reason": self._reasons[i],
                **({"token_ids": self._ids[i]} if self._with_ids else {}),
            }
            for i, deltas in enumerate(self._deltas)
        ]
        head = _head(exchange, "chat.completion") | self._prompt()
        return {**head, "choices": choices, "usage": usage(exchange)}

    def _prompt(self) -> Json:
        return {"prompt_token_ids": self._exchange.source.prompt_ids} if self._with_ids else {}

    def _message(self, deltas: list[Delta], turn_id: str) -> Json:
        message = wire_message(reply_message(deltas, turn_id))
        if self._custom and "tool_calls" in message:
            message["tool_calls"] = [
                custom_tools.reworded(call, self._custom) for call in message["tool_calls"]
            ]
        return legacy_functions.reworded(message) if self._legacy else message

    def _chunk(self, choices: list[Json], usage: Json | None, **more: Any) -> bytes:
        head = {**_head(self._exchange, "chat.completion.chunk"), **more}
        return sse.event({**head, "choices": choices} | ({"usage": usage} if self._include_usage else {}))


def event_logprobs(event: Event, exchange: Exchange) -> list[Json]:
    if event.logprobs is not None:
        return list(event.logprobs.get("content") or [])
    renderer, count = exchange.source.renderer, exchange.request.top_logprobs
    return wire_logprobs(event.tokens, renderer, count) if renderer else []


def finish_reason(event: Event, deltas: list[Delta]) -> str:
    called = any(delta.tool_index is not None for delta in deltas)
    return "tool_calls" if called and event.finish_reason == "stop" else str(event.finish_reason)


def usage(exchange: Exchange) -> Json:
    prompt, completion = exchange.usage
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _head(exchange: Exchange, kind: str) -> Json:
    return {
        "id": exchange.id,
        "object": kind,
        "created": int(exchange.arrived),
        "model": exchange.source.model,
        "system_fingerprint": f"policy-{exchange.source.version}",
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


def wire_message(message: Message) -> Json:
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


def wire_logprobs(tokens: Sequence[Token], renderer: Renderer, num_top: int) -> list[Json]:
    """Raw log-probs in OpenAI's format; stop tokens are left out, as OpenAI does."""

    def entry(token_id: int, logprob: float) -> Json:
        data = renderer.token_bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    return [
        {
            **entry(token.id, token.logprob),
            "top_logprobs": [
                entry(i, value)
                for i, value in zip(token.top_ids[:num_top], token.top_logprobs[:num_top], strict=True)
            ],
        }
        for token in tokens
        if token.id not in renderer.stop_ids
    ]
