"""The Responses API for stored replies: retrieve, stream, delete, and list their input.

Everything comes from the ledger. A reply belongs to the user who requested it; one that was deleted, or
requested with ``store: false``, does not exist for anyone.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from openclaw_rl.errors import RequestError, not_found
from openclaw_rl.serve import sse
from openclaw_rl.serve.exchange import bare_id
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.response_events import output_items, response_body, stored_events
from openclaw_rl.serve.response_items import InputItem
from openclaw_rl.types import Json, TurnRecord, Unfinished

_ITEM_ID = re.compile(r"(?:msg|fc|ctc|rs)_([0-9a-f]{24})\d+")
Recall = Callable[[str], Awaitable[TurnRecord | None]]


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list that was asked for."""

    limit: Annotated[int, Query(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None

    def of(self, items: list[Json]) -> Json:
        """``items`` are given oldest first."""
        items = items if self.order == "asc" else items[::-1]
        ids = [item["id"] for item in items]
        begin = ids.index(self.after) + 1 if self.after in ids else 0
        page = items[begin : begin + self.limit]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
        return {"object": "list", "data": page, "has_more": begin + self.limit < len(items), **ends}


async def referred_item(item_id: str, user: str, recall: Recall, where: str) -> Json:
    """The item of one of our replies that ``item_reference`` names."""
    match = _ITEM_ID.fullmatch(item_id)
    turn = await recall(f"resp_{match[1]}") if match else None
    if turn is not None and turn.user == user:
        for item in output_items(turn):
            if item["id"] == item_id:
                return item
    raise RequestError(
        f"There is no item '{item_id}' here; send the item itself instead of a reference to it.",
        code="item_not_found",
        param=where,
    )


async def resolved(
    given_input: str | list[InputItem] | None, user: str, recall: Recall, field: str = "input"
) -> str | list[InputItem] | None:
    """References replaced by what they refer to: some clients send them for every reply they got."""
    if not isinstance(given_input, list):
        return given_input
    items = []
    for index, item in enumerate(given_input):
        if item.type == "item_reference" or (item.type is None and item.role is None and item.id):
            found = await referred_item(item.id or "", user, recall, f"{field}[{index}]")
            item = InputItem.model_validate(found)
        items.append(item)
    return items


def stored_response(turn: TurnRecord) -> Json:
    output = output_items(turn)
    usage = len(turn.prompt_ids), len(turn.tokens)
    body = {**turn.params, "tools": turn.tools}
    return response_body(
        turn.id, body, str(turn.params.get("model", "")), turn.created_at, output, turn.finish_reason, usage
    )


def unfinished_response(response_id: str, known: Unfinished, turn: TurnRecord | None) -> Json:
    """With what there is of the reply: one that ended early may have left a turn."""
    bare = response_body(response_id, {}, known.model, known.created_at, [], None, None)
    error = None if known.error is None else {"code": "server_error", "message": known.error}
    ended = {"status": known.status, "error": error, "incomplete_details": None, "completed_at": None}
    return {**(bare if turn is None else stored_response(turn)), **ended, "background": True}


def input_items(turn: TurnRecord) -> list[Json]:
    """The request's messages as items, oldest first, without the instructions."""
    messages = turn.messages[1:] if turn.params.get("instructions") else turn.messages
    items: list[Json] = []
    for index, message in enumerate(messages):
        name = f"{bare_id(turn.id)}i{index}"
        if message["role"] == "tool":
            output = {"type": "function_call_output", "call_id": message.get("tool_call_id") or ""}
            items.append({"id": f"fco_{name}", **output, "output": _text(message), "status": "completed"})
            continue
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        part: Json = {"type": kind, "text": _text(message)}
        content = [part | {"annotations": []} if kind == "output_text" else part]
        if _text(message) or not message.get("tool_calls"):
            item = {"type": "message", "role": message["role"], "content": content, "status": "completed"}
            items.append({"id": f"msg_{name}", **item})
        for number, call in enumerate(message.get("tool_calls") or []):
            called = {"type": "function_call", "call_id": call.get("id") or "", **call["function"]}
            items.append({"id": f"fc_{name}t{number}", **called, "status": "completed"})
    return items


def _text(message: Json) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or f"[{part['type']}]" for part in content)


def add_stored_routes(router: APIRouter, gateway: Gateway, path: str, dialect: str) -> None:
    unfinished = partial(_unfinished, gateway)
    owned = partial(_owned, gateway, dialect)

    @router.get(f"{path}/{{response_id}}", tags=["generate"], response_model=None)
    async def response(
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response | Json:
        """A stored response, also one that runs in the background."""
        if (known := await unfinished(response_id, request)) is not None:
            if stream:
                raise RequestError(
                    "A background response is not streamed until it is completed.", param="stream"
                )
            return known
        turn = await owned(response_id, request)
        if not stream:
            return stored_response(turn)
        events = stored_events(turn, stored_response(turn))
        after = -1 if starting_after is None else starting_after
        told = [sse.event(event, event["type"]) for event in events if event["sequence_number"] > after]
        return StreamingResponse(iter(told), media_type="text/event-stream")

    @router.delete(f"{path}/{{response_id}}", tags=["generate"])
    async def delete(response_id: str, request: Request) -> Json:
        """No longer returns it or learns from it."""
        removed = await gateway.background.remove(response_id, request.state.user)
        if removed:
            await gateway.settle()
        if not removed or await gateway.capture.recall(response_id) is not None:
            await gateway.capture.withhold((await owned(response_id, request)).id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post(f"{path}/{{response_id}}/cancel", tags=["generate"])
    async def cancel(response_id: str, request: Request) -> Json:
        """Stops a background response; one that is over is returned as it is."""
        await gateway.background.cancel(response_id, request.state.user)
        await gateway.settle()  # what there was of the reply is being recorded
        if (known := await unfinished(response_id, request)) is not None:
            return known
        turn = await owned(response_id, request)
        if turn.params.get("background") is True:
            return stored_response(turn)
        raise RequestError("Only background responses can be cancelled; of any other, close the connection.")

    @router.get(f"{path}/{{response_id}}/input_items", tags=["generate"])
    async def items_of(
        response_id: str,
        request: Request,
        page: Annotated[Page, Depends()],
    ) -> Json:
        """Its input."""
        return page.of(input_items(await owned(response_id, request)))


async def _unfinished(gateway: Gateway, response_id: str, request: Request) -> Json | None:
    """A background response that has no complete turn."""
    found = await gateway.background.find(response_id, request.state.user)
    if not isinstance(found, Unfinished):
        return found
    turn = await gateway.capture.recall(response_id)
    is_complete = turn is not None and turn.finish_reason != "cancelled"
    return None if is_complete else unfinished_response(response_id, found, turn)


async def _owned(gateway: Gateway, dialect: str, response_id: str, request: Request) -> TurnRecord:
    turn = await gateway.capture.recall(response_id)
    if turn is None or turn.user != request.state.user or turn.dialect != dialect:
        raise not_found("response", response_id)
    return turn
