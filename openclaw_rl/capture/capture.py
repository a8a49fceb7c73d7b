"""Capture for the gateway: places requests and records turns, without ever blocking or failing a reply.

A request also carries information about earlier turns: what followed a reply, that it was regenerated,
that it never arrived. Those facts are stored when the request comes in, before it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial

from openclaw_rl.capture import events
from openclaw_rl.capture.classify import classify, next_state_after
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.look_ups import LookUps
from openclaw_rl.capture.normalise import opening_key, reply_keys, said_key, setting_of
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.capture.serve_ledger import Delivery, ServeLedger
from openclaw_rl.capture.sessions import Found, KnownReply, SessionFinder, new_session_id
from openclaw_rl.types import ChatRequest, Placement, TurnKind, TurnRecord

log = logging.getLogger(__name__)

#: The same request within this time after a delivered reply is a regeneration.
_REGENERATION_S = 600.0
_RECENT = 20_000
_DONE_HEADER = "x-session-done"


@dataclass(frozen=True, slots=True)
class _Recent:
    created_at: float
    delivered: bool | None
    """None while it is unknown."""
    had_tools: bool
    kind: TurnKind


class LedgerCapture:
    """Implements the Capture protocol on one ledger."""

    def __init__(
        self, ledger: ServeLedger, recorder: Recorder, max_wait_s: float = 2.0, pause_s: float = 10.0
    ) -> None:
        self._ledger, self._recorder = ledger, recorder
        self._finder = SessionFinder(ledger)
        self._look_ups = LookUps(max_wait_s, pause_s, lambda: recorder.health().num_recorded)
        self._noting: set[asyncio.Task[bool]] = set()
        self._recent: OrderedDict[str, _Recent] = OrderedDict()

    async def place(self, request: ChatRequest) -> Placement:
        found = await self._find(request)
        kind: TurnKind = "unknown"
        reply: KnownReply | None = None
        try:
            reply, side_replies = await self._continued(found)
            kind = classify(
                request.messages,
                request.headers,
                has_tools=bool(request.tools),
                continued_had_tools=self._had_tools(reply.turn_id) if reply else None,
            )
            if kind == "side" and found.claim:
                self._finder.release(found.claim)
            if kind != "side":
                for event in await self._learned(request, found, reply, side_replies):
                    self._note(event)
        except Exception as error:
            log.error("storing events about earlier turns failed: %s", type(error).__name__)
        return Placement(found.session_id, reply.turn_id if reply else None, kind)

    async def _find(self, request: ChatRequest) -> Found:
        place = partial(self._finder.place, request.user, request.messages, request.headers, request.body)
        try:
            if not self._look_ups.are_paused:
                return await self._look_ups.look(place)
        except Exception as error:  # the reply matters more than its session
            log.error("a request could not be placed into its session: %s", type(error).__name__)
        try:
            return place(memory_only=True)
        except Exception as error:
            log.error("a request could not be placed from memory either: %s", type(error).__name__)
            return Found(new_session_id(), (), None)

    async def _continued(self, found: Found) -> tuple[KnownReply | None, set[int]]:
        """The newest reply of the conversation itself, and the indices of newer replies to side requests."""
        side_replies: set[int] = set()
        for reply in found.replies:
            if reply.left_out and (await self._delivery(reply.turn_id))[1] is False:
                continue  # it never arrived, so what follows is no reaction to it
            if await self._kind(reply.turn_id) != "side":
                return reply, side_replies
            side_replies.add(reply.index)
        return None, side_replies

    async def _kind(self, turn_id: str) -> TurnKind:
        if known := self._recent.get(turn_id):
            return known.kind
        try:
            summary = await asyncio.to_thread(self._ledger.turn_summary, turn_id)
        except Exception:
            summary = None
        return summary["kind"] if summary else "unknown"

    async def _learned(
        self, request: ChatRequest, found: Found, reply: KnownReply | None, side_replies: set[int]
    ) -> list[TurnEvent]:
        """Events about earlier turns that follow from this request."""
        now = time.time()
        learned = []
        if reply and (
            following := next_state_after(request.messages, reply.index, side_replies, found.own_words)
        ):
            kind = events.NEXT_STATE if reply.alike else events.UNSURE_STATE
            learned.append(TurnEvent(reply.turn_id, kind, now, following))
        if found.again:
            created_at, delivered = await self._delivery(found.again.turn_id)
            if not delivered or (found.retry and now - created_at < _REGENERATION_S):
                learned.append(TurnEvent(found.again.turn_id, events.RETRIED, now))
            elif now - created_at < _REGENERATION_S and any(
                m["role"] == "assistant" for m in request.messages
            ):
                learned.append(TurnEvent(found.again.turn_id, events.REGENERATED, now))
        return learned

    async def _delivery(self, turn_id: str) -> tuple[float, bool | None]:
        """When a turn was created, and whether its reply is known to have arrived."""
        if known := self._recent.get(turn_id):
            return known.created_at, known.delivered
        try:
            summary = await asyncio.to_thread(self._ledger.turn_summary, turn_id)
        except Exception:
            summary = None
        # Unknown counts as delivered: a wrong "retried" would discard a good turn.
        return (summary["created_at"], summary["delivered"]) if summary else (0.0, True)

    def _had_tools(self, turn_id: str) -> bool | None:
        known = self._recent.get(turn_id)
        return known.had_tools if known else None

    def _note(self, event: TurnEvent) -> None:
        """Store in the background: a request never waits for events about earlier turns."""
        task = asyncio.create_task(self._recorder.record(event))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def record(self, turn: TurnRecord, request: ChatRequest) -> bool:
        try:
            setting = setting_of(request.messages, request.body)
            keys = reply_keys(turn.user, request.messages, turn.reply, setting)
            named = {"said": said_key(turn.user, turn.session_id, turn.reply)}
            if request.body.get("prompt_cache_key"):
                named["opening"] = opening_key(turn.user, turn.session_id, request.messages)
            shared = await self._shared(keys, turn.session_id)
            present = {name: key for name, key in named.items() if key}
            turn = replace(turn, keys={**keys, **shared, **present})
        except Exception as error:
            log.error("a turn is stored without look-up keys: %s", type(error).__name__)
        self._finder.remember(turn.keys, turn.id, turn.session_id, side=turn.kind == "side")
        self._remember(turn.id, _Recent(turn.created_at, None, bool(turn.tools), turn.kind))
        durable = await self._recorder.record(turn)
        if ends_session(request):
            self.close_turn(turn.id)
        return durable

    async def _shared(self, keys: dict[str, str], session_id: str) -> dict[str, str]:
        """Keys that another session has, too; from memory only if the ledger cannot be read."""
        if not self._look_ups.are_paused:
            try:
                return await self._look_ups.look(partial(self._finder.shared, keys, session_id))
            except Exception as error:
                log.error("a reply's other sessions could not be looked up: %s", type(error).__name__)
        return self._finder.shared(keys, session_id, memory_only=True)

    async def delivered(self, turn_id: str, delivered: bool) -> None:
        if known := self._recent.get(turn_id):
            self._remember(turn_id, replace(known, delivered=delivered))
        await self._recorder.record(Delivery(turn_id, delivered, time.time()))

    async def recall(self, turn_id: str) -> TurnRecord | None:
        try:
            return await asyncio.to_thread(self._load, turn_id)
        except Exception as error:
            log.error("reading a stored turn failed: %s", type(error).__name__)
            return None

    def _load(self, turn_id: str) -> TurnRecord | None:
        turn = self._ledger.load_turn(turn_id)
        known = self._ledger.events_of(turn_id) if turn else []
        return None if any(event.kind == events.WITHHELD for event in known) else turn

    async def withhold(self, turn_id: str) -> None:
        now = time.time()
        for kind in (events.EXCLUDE, events.WITHHELD):
            await self._recorder.record(TurnEvent(turn_id, kind, now))

    def close_turn(self, turn_id: str) -> None:
        """The session ended with this turn."""
        self._note(TurnEvent(turn_id, events.CLOSED, time.time()))

    def _remember(self, turn_id: str, turn: _Recent) -> None:
        self._recent[turn_id] = turn
        self._recent.move_to_end(turn_id)
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)


def ends_session(request: ChatRequest) -> bool:
    """Whether the client says that this is the session's last request."""
    return request.headers.get(_DONE_HEADER, "").strip().lower() in ("1", "true", "yes")
