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

    def __init__(self, ledger: Ledger, recorder: Recorder) -> None:
        self._finder = SessionFinder(ledger)
        self._recorder = recorder

    async def place(self, request: ChatRequest) -> Placement:
        try:
            return await asyncio.to_thread(
                self._finder.place, request.user, request.messages, request.headers, request.body
            )
        except Exception as error:
            # The ledger cannot be read: the reply matters more than its place.
            log.error("a request could not be placed into its session: %s", type(error).__name__)
            return Placement(new_session_id(), None)

    async def record(self, turn: TurnRecord, messages: Sequence[Message]) -> bool:
        turn = replace(turn, keys=reply_keys(turn.user, messages, turn.reply))
        self._finder.remember(turn.keys, turn.id, turn.session_id)
        return await self._recorder.record(turn)

    async def delivered(self, turn_id: str, delivered: bool) -> None:
        await self._recorder.record(Delivery(turn_id, delivered, time.time()))
