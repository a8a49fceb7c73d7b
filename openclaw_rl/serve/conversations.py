"""Conversations of the Responses API: items that are kept here, and put before the input of each request.

A conversation belongs to the user who created it. Its turns are one session, which has the conversation's id.
A finished reply is added together with the input that it answers; of one that was broken off, nothing is.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from openclaw_rl.errors import RequestError, not_found, or_not_found
from openclaw_rl.serve.dialect import call_of, given
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.response_events import output_items
from openclaw_rl.serve.response_items import ContentPart, InputItem, to_messages
from openclaw_rl.serve.stored_responses import Page, resolved
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import ChatRequest, ConversationStore, Json, TurnRecord

log = logging.getLogger(__name__)
T = TypeVar("T")

PATH = "/v1/conversations"
_ID = re.compile(r"conv_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PREFIXES = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}  # fmt: skip
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
Items = Annotated[list[InputItem], Field(max_length=20)]


class NewConversation(WellFormed):
    items: Items | None = None
    metadata: Metadata | None = None


class ConversationChange(WellFormed):
    metadata: Metadata


class NewItems(WellFormed):
    items: Items


# --- in a request ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Continued:
    """A conversation that a request goes on with."""

    id: str
    history: list[Json]
    """As chat messages."""
    new: list[Json]
    """The items that the request adds."""

    def joined_by(self, request: ChatRequest) -> ChatRequest:
        headers = {**request.headers, "x-session-id": self.id}
        return replace(request, headers=headers, conversation=self.id, items=self.new)


async def continued(
    store: ConversationStore, conversation_id: str, user: str, given_input: str | list[InputItem] | None
) -> Continued:
    try:
        await _find(store, conversation_id, user)
    except RequestError as error:
        error.param = "conversation"
        raise
    items = await _ask(store.items, conversation_id)
    history = to_messages([InputItem.model_validate(item) for item in items])
    said = (
        [InputItem(role="user", content=given_input)] if isinstance(given_input, str) else given_input or []
    )
    return Continued(conversation_id, history, kept_items(said, items))


async def keep_turn(store: ConversationStore, turn: TurnRecord, request: ChatRequest) -> None:
    """A conversation that cannot be written costs its items, never the reply."""
    if request.conversation is None or turn.finish_reason == "cancelled":
        return
    new = [*request.items, *output_items(turn)]
    try:
        if not await asyncio.to_thread(store.add_items, request.conversation, new, turn.id):
            log.warning("a conversation was deleted while it was being answered")
    except Exception as error:
        log.error("a reply could not be added to its conversation: %s", type(error).__name__)


def kept_items(items: Sequence[InputItem], there: Sequence[Json]) -> list[Json]:
    """As they are stored and shown; one whose id is missing, odd or taken gets a new one."""
    taken = {item["id"] for item in there}
    kept = []
    for item in items:
        kind = item.type or "message"
        name = item.id or ""
        if name in taken or not _ITEM_ID.fullmatch(name):
            name = f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(16)}"
        taken.add(name)
        kept.append({"id": name, "type": kind, "status": "completed", **_said(item, kind)})
    return kept


def _said(item: InputItem, kind: str) -> Json:
    facts = given(
        call_id=item.call_id,
        name=item.name,
        namespace=item.namespace,
        arguments=item.arguments,
        input=item.input,
        summary=None if item.summary is None else [_part(part) for part in item.summary],
        output=item.output if isinstance(item.output, str | None) else [_part(p) for p in item.output],
    )
    if kind == "message":
        facts["role"] = item.role or "user"
    if isinstance(item.content, str):
        item_type = "output_text" if item.role == "assistant" else "input_text"
        facts["content"] = [_part(ContentPart(type=item_type, text=item.content))]
    elif item.content is not None or kind == "message":
        facts["content"] = [_part(part) for part in item.content or []]
    return facts


def _part(part: ContentPart) -> Json:
    """Only what is read of it: the rest may be anything, also what no answer may hold."""
    url = part.image_url if isinstance(part.image_url, str) else None
    annotations: list[Json] | None = [] if part.type == "output_text" else None
    return {
        "type": part.type,
        **given(text=part.text, refusal=part.refusal, image_url=url, annotations=annotations),
    }


# --- routes ----------------------------------------------------------------------------------


def add_conversation_routes(router: APIRouter, gateway: Gateway) -> None:
    store = gateway.conversations
    _add_item_routes(router, gateway)

    async def owned(conversation_id: str, request: Request) -> Json:
        return await _find(store, conversation_id, request.state.user)

    @router.post(PATH, tags=["generate"])
    async def create(request: Request, parsed: NewConversation) -> Json:
        """Creates a conversation. Requests that name it get its items before their input; finished replies
        are added."""
        _refuse_unrecorded(store, request)
        items = await _read_items(gateway, parsed.items, request, [])
        conversation_id = f"conv_{secrets.token_hex(16)}"
        await _ask(store.create, conversation_id, request.state.user, parsed.metadata or {}, items)
        return await owned(conversation_id, request)

    @router.get(f"{PATH}/{{conversation_id}}", tags=["generate"])
    async def retrieve(conversation_id: str, request: Request) -> Json:
        """One conversation."""
        return await owned(conversation_id, request)

    @router.post(f"{PATH}/{{conversation_id}}", tags=["generate"])
    async def update(conversation_id: str, request: Request, parsed: ConversationChange) -> Json:
        """Replaces its ``metadata``."""
        await owned(conversation_id, request)
        _refuse_unrecorded(store, request)
        await _ask(store.update, conversation_id, parsed.metadata)
        return await owned(conversation_id, request)

    @router.delete(f"{PATH}/{{conversation_id}}", tags=["generate"])
    async def delete(conversation_id: str, request: Request) -> Json:
        """Deletes it. The replies stay in the session of the same name."""
        await owned(conversation_id, request)
        await _ask(store.delete, conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


def _add_item_routes(router: APIRouter, gateway: Gateway) -> None:
    store = gateway.conversations

    async def owned(conversation_id: str, request: Request) -> Json:
        return await _find(store, conversation_id, request.state.user)

    @router.get(f"{PATH}/{{conversation_id}}/items", tags=["generate"])
    async def list_items(
        conversation_id: str,
        request: Request,
        page: Annotated[Page, Depends()],
    ) -> Json:
        """Its items."""
        await owned(conversation_id, request)
        return page.of(await _ask(store.items, conversation_id))

    @router.post(f"{PATH}/{{conversation_id}}/items", tags=["generate"])
    async def create_items(conversation_id: str, request: Request, parsed: NewItems) -> Json:
        """Adds up to 20 items."""
        await owned(conversation_id, request)
        _refuse_unrecorded(store, request)
        there = await _ask(store.items, conversation_id)
        items = await _read_items(gateway, parsed.items, request, there)
        if not await _ask(store.add_items, conversation_id, items):
            raise not_found("conversation", conversation_id)
        return Page(max(1, len(items)), "asc").of(items)

    @router.get(f"{PATH}/{{conversation_id}}/items/{{item_id}}", tags=["generate"])
    async def retrieve_item(conversation_id: str, item_id: str, request: Request) -> Json:
        """One item."""
        await owned(conversation_id, request)
        items = await _ask(store.items, conversation_id)
        return or_not_found(next((i for i in items if i["id"] == item_id), None), "item", item_id)

    @router.delete(f"{PATH}/{{conversation_id}}/items/{{item_id}}", tags=["generate"])
    async def delete_item(conversation_id: str, item_id: str, request: Request) -> Json:
        """Deletes one item."""
        conversation = await owned(conversation_id, request)
        if not _ITEM_ID.fullmatch(item_id) or not await _ask(store.delete_item, conversation_id, item_id):
            raise not_found("item", item_id)
        return conversation


async def _read_items(
    gateway: Gateway, items: list[InputItem] | None, request: Request, there: Sequence[Json]
) -> list[Json]:
    call = await call_of(gateway, request)
    found = await resolved(items, call.user, call.recall, "items") or []
    assert not isinstance(found, str)
    to_messages(found, "items")
    return kept_items(found, there)


async def _find(store: ConversationStore, conversation_id: str, user: str) -> Json:
    if not _ID.fullmatch(conversation_id):
        raise not_found("conversation", conversation_id)
    return or_not_found(await _ask(store.find, conversation_id, user), "conversation", conversation_id)


def _refuse_unrecorded(store: ConversationStore, request: Request) -> None:
    stated = request.headers.get("x-off-the-record", "").strip().lower() in ("1", "true", "yes", "on")
    if stated or store.is_private(request.state.user):
        raise RequestError(
            "A conversation keeps what is said in it, and you are off the record; send all items as input "
            "of each request instead."
        )


async def _ask(function: Callable[..., T], *arguments: object) -> T:
    try:
        return await asyncio.to_thread(function, *arguments)
    except Exception as error:
        log.error("conversations cannot be read or written: %s", type(error).__name__)
        raise RequestError(
            "Conversations cannot be read or written now; send it again once /readyz says 'ok'.",
            status=503,
            code="not_stored",
            retry_after_s=5,
        ) from None
