"""Replies in the format of the Responses API: output items and their events."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from openclaw_rl.serve import sse
from openclaw_rl.serve.chat import event_logprobs
from openclaw_rl.serve.custom_tools import custom_names, text_of
from openclaw_rl.serve.exchange import Event, Exchange, bare_id, tool_call_id
from openclaw_rl.types import Delta, FinishReason, Json, TurnRecord

#: Request fields that a response repeats, with their defaults.
_ECHOED: Json = {
    "instructions": None, "metadata": {}, "parallel_tool_calls": True, "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "store": True,
    "temperature": 1.0, "top_p": 1.0, "truncation": "disabled", "user": None,
}  # fmt: skip


def response_body(
    response_id: str,
    body: Json,
    model: str,
    created_at: float,
    output: list[Json],
    reason: FinishReason | None,
    usage: tuple[int, int] | None,
) -> Json:
    """``reason`` None: the reply is in progress."""
    cut = reason is not None and reason != "stop"
    echoed = {name: _sayable(body.get(name), default) for name, default in _ECHOED.items()}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(created_at),
        "completed_at": int(time.time()) if reason == "stop" else None,
        "status": "in_progress" if reason is None else "incomplete" if cut else "completed",
        "background": body.get("background") is True,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": model,
        "output": output,
        **echoed,
        "max_output_tokens": body.get("max_completion_tokens"),
        **({"conversation": body["conversation"]} if body.get("conversation") else {}),
        "text": {"format": _format(body.get("response_format"))},
        "tool_choice": _choice(body.get("tool_choice")),
        "tools": _tools(body.get("tools") or []),
        "usage": None if usage is None else _usage(*usage),
    }


def _tools(tools: Sequence[Json]) -> list[Json]:
    custom = custom_names(tools)
    functions = [tool["function"] for tool in tools]
    return [
        {"type": "custom", "name": function["name"], "description": function["description"]}
        if function["name"] in custom
        else {"type": "function", "strict": False, **function}
        for function in functions
    ]


def _sayable(value: Any, default: Any) -> Any:
    """The value, or the default if it is None or holds NaN or infinity, which responses cannot encode."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return default
    return default if value is None else value


def _format(response_format: Json | None) -> Json:
    if response_format is None or response_format.get("type") != "json_schema":
        return response_format or {"type": "text"}
    return {"type": "json_schema", **response_format["json_schema"]}


def _choice(tool_choice: Any) -> Any:
    if isinstance(tool_choice, dict):
        return {"type": "function", "name": tool_choice["function"]["name"]}
    return tool_choice or "auto"


def _usage(prompt: int, completion: int) -> Json:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }


def output_items(turn: TurnRecord) -> list[Json]:
    """The items of a stored reply."""
    return _replay(turn)[0].output


def stored_events(turn: TurnRecord, response: Json) -> list[Json]:
    """The events of a stored reply, with one delta for each item."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    happened = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        *_replay(turn)[1],
        (f"response.{response['status']}", {"response": response}),
    ]
    return [
        {"type": name, "sequence_number": number, **fields} for number, (name, fields) in enumerate(happened)
    ]


def _replay(turn: TurnRecord) -> tuple[_Items, list[tuple[str, Json]]]:
    reply, items = turn.reply, _Items(turn.id, {}, custom_names(turn.tools))
    happened = []
    for delta in (
        Delta(reasoning=reply.get("reasoning", "")),
        Delta(content=reply["content"]),
        *(
            Delta(tool_index=index, tool_name=call["name"], arguments=call["arguments"])
            for index, call in enumerate(reply.get("tool_calls") or [])
        ),
    ):
        happened += items.add(delta)
    return items, [*happened, *items.end(turn.finish_reason)]


class _Items:
    """Output items and their events, as (event name, fields)."""

    def __init__(
        self, turn_id: str, namespaces: Mapping[str, tuple[str, str]], custom: Collection[str]
    ) -> None:
        self._turn_id, self._namespaces, self._custom = turn_id, namespaces, custom
        self._arguments = ""
        """Arguments of a custom tool call, whose text is known only once they are complete."""
        self.output: list[Json] = []
        self._logprobs: list[Json] = []
        self._open: str | None = None
        """The item being written: its kind, for calls with their index."""

    def add(self, delta: Delta, logprobs: Sequence[Json] = ()) -> list[tuple[str, Json]]:
        self._logprobs = list(logprobs)
        if delta.tool_index is not None:
            return self._grow(f"call {delta.tool_index}", delta.arguments, delta)
        thought = self._grow("reasoning", delta.reasoning, delta) if delta.reasoning else []
        return thought + (self._grow("message", delta.content, delta) if delta.content else [])

    def end(self, reason: FinishReason) -> list[tuple[str, Json]]:
        if not self.output:
            return [*self._start("message", Delta()), *self._close("completed")]
        return self._close("completed" if reason == "stop" else "incomplete")

    def _grow(self, kind: str, text: str, delta: Delta) -> list[tuple[str, Json]]:
        begun = [] if self._open == kind else self._start(kind, delta)
        item = self.output[-1]
        if item["type"] == "custom_tool_call":
            self._arguments += text
            return begun
        if item["type"] == "function_call":
            item["arguments"] += text
            grown = self._at("response.function_call_arguments.delta", delta=text)
        elif item["type"] == "reasoning":
            item["content"][0]["text"] += text
            grown = self._at("response.reasoning_text.delta", content_index=0, delta=text)
        else:
            item["content"][0]["text"] += text
            item["content"][0]["logprobs"] += self._logprobs
            grown = self._at(
                "response.output_text.delta", content_index=0, delta=text, logprobs=self._logprobs
            )
        return [*begun, grown] if text else begun

    def _start(self, kind: str, delta: Delta) -> list[tuple[str, Json]]:
        closed = self._close("completed")
        number, bare = len(self.output), bare_id(self._turn_id)
        if delta.tool_index is not None:
            call_id = tool_call_id(self._turn_id, delta.tool_index)
            item: Json = {"id": f"fc_{bare}{number}", "type": "function_call", "status": "in_progress"}
            item |= {"call_id": call_id, "name": delta.tool_name, "arguments": ""}
            if delta.tool_name in self._custom:
                self._arguments = ""
                item = {"id": f"ctc_{bare}{number}", "type": "custom_tool_call", "status": "in_progress"}
                item |= {"call_id": call_id, "name": delta.tool_name, "input": ""}
            if found := self._namespaces.get(delta.tool_name or ""):
                item["namespace"], item["name"] = found
        elif kind == "reasoning":
            item = {"id": f"rs_{bare}{number}", "type": "reasoning", "status": "in_progress", "summary": []}
            item |= {"content": []}
        else:
            item = {"id": f"msg_{bare}{number}", "type": "message", "status": "in_progress"}
            item |= {"role": "assistant", "content": []}
        self.output.append(item)
        self._open = kind
        added = [self._at("response.output_item.added", item=item)]
        if "content" in item:
            part: Json = {"type": "reasoning_text", "text": ""}
            if item["type"] == "message":
                part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
            item["content"] = [part]
            added.append(self._at("response.content_part.added", content_index=0, part=part))
        return [*closed, *added]

    def _close(self, status: str) -> list[tuple[str, Json]]:
        if self._open is None:
            return []
        item, self._open = self.output[-1], None
        item["status"] = status
        if item["type"] == "custom_tool_call":
            text = item["input"] = text_of(self._arguments)
            done = [
                self._at("response.custom_tool_call_input.delta", delta=text),
                self._at("response.custom_tool_call_input.done", input=text),
            ]
        elif item["type"] == "function_call":
            name, text = item["name"], item["arguments"]
            done = [self._at("response.function_call_arguments.done", name=name, arguments=text)]
        else:
            part = item["content"][0]
            is_message = item["type"] == "message"
            name = "response.output_text.done" if is_message else "response.reasoning_text.done"
            more: Json = {"logprobs": part["logprobs"]} if is_message else {}
            done = [
                self._at(name, content_index=0, text=part["text"], **more),
                self._at("response.content_part.done", content_index=0, part=part),
            ]
        return [*done, self._at("response.output_item.done", item=item)]

    def _at(self, event: str, /, **fields: Any) -> tuple[str, Json]:
        """An event about the newest item, with copies of items and parts, since these still change."""
        place: Json = {"output_index": len(self.output) - 1}
        if "item" not in fields:
            place["item_id"] = self.output[-1]["id"]
        frozen = {key: _copy(value) if key in ("item", "part") else value for key, value in fields.items()}
        return event, {**place, **frozen}


def _copy(value: Json) -> Json:
    return {
        key: [dict(part) for part in inner] if isinstance(inner, list) else inner
        for key, inner in value.items()
    }


class ResponseWriter:
    def __init__(
        self, exchange: Exchange, namespaces: Mapping[str, tuple[str, str]], logprobs: bool = False
    ) -> None:
        """``namespaces``: the model's name of a function -> (namespace, name in it)."""
        custom = custom_names(exchange.request.body.get("tools"))
        self._exchange, self._items = exchange, _Items(exchange.turn_id(0), namespaces, custom)
        self._logprobs, self._entries = logprobs, list[Json]()
        self._reason: FinishReason | None = None
        self._sequence = 0

    def begin(self) -> list[bytes]:
        return self._events(
            ("response.created", {"response": self.whole()}),
            ("response.in_progress", {"response": self.whole()}),
        )

    def add(self, event: Event) -> list[bytes]:
        if self._logprobs:
            self._entries += event_logprobs(event, self._exchange)
        happened = self._items.add(event.delta, self._entries) if event.delta else []
        if event.delta:
            self._entries = []
        if event.finish_reason:
            self._reason = event.finish_reason
            happened += self._items.end(event.finish_reason)
        return self._events(*happened)

    def finish(self) -> list[bytes]:
        response = self.whole()
        return self._events((f"response.{response['status']}", {"response": response}))

    def fail(self, message: str) -> list[bytes]:
        error = {"code": "server_error", "message": message}
        failed = {**self.whole(), "status": "failed", "error": error}
        return self._events(("response.failed", {"response": failed}))

    def whole(self) -> Json:
        exchange, reason = self._exchange, self._reason
        return response_body(
            exchange.id,
            exchange.request.body,
            exchange.source.model,
            exchange.arrived,
            self._items.output,
            reason,
            None if reason is None else exchange.usage,
        )

    def _events(self, *happened: tuple[str, Json]) -> list[bytes]:
        worded = []
        for name, fields in happened:
            worded.append(sse.event({"type": name, "sequence_number": self._sequence, **fields}, name))
            self._sequence += 1
        return worded
