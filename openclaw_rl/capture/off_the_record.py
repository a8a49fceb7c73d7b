"""Off the record: a request is answered as usual, but nothing of it is stored or learned from.

The request asks for it, or the owner has set it for the user. A continuation stays off the record, since its
history would be stored otherwise; this is remembered in memory only, until a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from openclaw_rl.capture.normalise import fold_conversation, reply_keys
from openclaw_rl.capture.sessions import new_session_id
from openclaw_rl.types import Capture, ChatRequest, Placement, TurnRecord

HEADER = "x-off-the-record"
_REMEMBERED = 20_000


class OffTheRecord:
    """Wraps another Capture, which sees only what is on the record."""

    def __init__(
        self, recorded: Capture, is_private: Callable[[str], bool], store_false: bool = False
    ) -> None:
        """``is_private``: whether nothing of a user is stored; ``store_false``: nor requests with
        ``store: false``."""
        self._recorded, self._is_private, self._store_false = recorded, is_private, store_false
        self._sessions: OrderedDict[str, None] = OrderedDict()
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._said: OrderedDict[str, None] = OrderedDict()
        """Keys of replies given off the record."""

    async def place(self, request: ChatRequest) -> Placement:
        if not self.covers(request):
            return await self._recorded.place(request)
        placement = Placement(new_session_id(), None, recorded=False)
        _note(self._sessions, placement.session_id)
        return placement

    def covers(self, request: ChatRequest) -> bool:
        """Whether nothing of the request is stored."""
        return self._asks(request) or self._goes_on(request)

    def _asks(self, request: ChatRequest) -> bool:
        stated = request.headers.get(HEADER, "").strip().lower() in ("1", "true", "yes", "on")
        not_stored = self._store_false and request.body.get("store") is False
        return stated or not_stored or self._is_private(request.user)

    def _goes_on(self, request: ChatRequest) -> bool:
        if not self._said:
            return False
        replies = fold_conversation(request.user, request.messages).replies
        return any(keys["chain"] in self._said for _, keys in replies)

    async def record(self, turn: TurnRecord, request: ChatRequest) -> bool:
        if turn.session_id not in self._sessions:
            return await self._recorded.record(turn, request)
        _note(self._turns, turn.id)
        if key := reply_keys(turn.user, request.messages, turn.reply).get("chain"):
            _note(self._said, key)
        return False

    async def delivered(self, turn_id: str, delivered: bool) -> None:
        if turn_id not in self._turns:
            await self._recorded.delivered(turn_id, delivered)

    async def recall(self, turn_id: str) -> TurnRecord | None:
        """Hides turns that were sent with ``store: false``, too."""
        turn = await self._recorded.recall(turn_id)
        return None if turn is None or turn.params.get("store") is False else turn

    async def withhold(self, turn_id: str) -> None:
        await self._recorded.withhold(turn_id)


def _note(known: OrderedDict[str, None], key: str) -> None:
    known[key] = None
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
