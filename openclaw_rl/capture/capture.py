"""Capture as the gateway sees it: place a request, record a turn, never get in the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from openclaw_rl.capture.ledger import Delivery, Ledger
from openclaw_rl.capture.normalise import reply_keys
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.capture.sessions import SessionFinder, new_session_id
from openclaw_rl.types import ChatRequest, Message, Placement, TurnRecord

log = logging.getLogger(__name__)


class LedgerCapture:
    """The Capture protocol over one ledger."""

    def __init__(
        self, ledger: Ledger, recorder: Recorder, max_wait_s: float = 2.0, pause_s: float = 10.0
    ) -> None:
        self._finder = SessionFinder(ledger)
        self._recorder = recorder
        self._max_wait_s, self._pause_s = max_wait_s, pause_s
        self._trust_ledger_at = 0.0

    async def place(self, request: ChatRequest) -> Placement:
        arguments = (request.user, request.messages, request.headers, request.body)
        try:
            if time.monotonic() < self._trust_ledger_at:
                return self._finder.place(*arguments, memory_only=True)
            return await asyncio.wait_for(asyncio.to_thread(self._finder.place, *arguments), self._max_wait_s)
        except Exception as error:
            # The ledger cannot be read: the reply matters more than its place. Requests of the next
            # seconds do not even try, so that a stuck database delays one of them, not all.
            log.error("a request could not be placed into its session: %s", type(error).__name__)
            self._trust_ledger_at = time.monotonic() + self._pause_s
        try:
            return self._finder.place(*arguments, memory_only=True)
        except Exception as error:
            log.error("a request could not be placed from memory either: %s", type(error).__name__)
            return Placement(new_session_id(), None)

    async def record(self, turn: TurnRecord, messages: Sequence[Message]) -> bool:
        try:
            turn = replace(turn, keys=reply_keys(turn.user, messages, turn.reply))
        except Exception as error:
            log.error("a turn is stored without look-up keys: %s", type(error).__name__)
        self._finder.remember(turn.keys, turn.id, turn.session_id)
        return await self._recorder.record(turn)

    async def delivered(self, turn_id: str, delivered: bool) -> None:
        await self._recorder.record(Delivery(turn_id, delivered, time.time()))
