"""The judge's desk: cases made from the serving ledger, verdicts written into the journal."""

from __future__ import annotations

import time
from collections.abc import Callable

from openclaw_rl.capture import events
from openclaw_rl.capture.journal import Journal, NewTurn, Task
from openclaw_rl.capture.ledger import Ledger
from openclaw_rl.capture.normalise import is_ephemeral, strip_ephemeral
from openclaw_rl.types import Json, JudgeCase, Message, Verdict

_PAGE = 500
#: Messages as they are stored into the internal form.
ToInternal = Callable[[list[Json]], list[Message]]


class LedgerDesk:
    """What the judging worker works on."""

    def __init__(self, ledger: Ledger, journal: Journal, to_internal: ToInternal, idle_s: float) -> None:
        self._ledger, self._journal = ledger, journal
        self._to_internal, self._idle_s = to_internal, idle_s

    def pull(self) -> None:
        """Everything new, page by page."""
        full = True
        while full:
            last_turn, last_event = self._journal.cursors()
            # Events first: the turns they point at are then among those read after them.
            found = self._ledger.events_after(last_event, _PAGE)
            self._journal.pull(self._turns_after(last_turn), found, self._reopened(found))
            full = len(found) == _PAGE
        self._journal.close_idle(time.time() - self._idle_s)

    def _turns_after(self, seq: int) -> list[NewTurn]:
        turns: list[NewTurn] = []
        while page := self._ledger.turns_after(turns[-1].seq if turns else seq, _PAGE):
            numbers = [t["session"] for t in page]
            marked = events.excluded_sessions(self._ledger.db, numbers)
            turns += [
                NewTurn(
                    t["seq"],
                    t["id"],
                    t["created_at"],
                    _is_judgeable(t),
                    excluded=t["session"] in marked
                    and events.is_excluded(self._ledger.events_of(t["id"]), session_excluded=True),
                )
                for t in page
            ]
        return turns

    def _reopened(self, found: list[events.StoredEvent]) -> dict[str, Task]:
        """Turns that may be learned from after all, as they would wait had nobody excluded them."""
        tasks = {}
        for turn_id in {event.turn_id for event in found if event.kind == events.INCLUDE}:
            turn = self._ledger.turn_summary(turn_id)
            known = [event.kind for event in self._ledger.events_of(turn_id)]
            if turn is None or events.RETRIED in known:
                continue
            if _is_judgeable(turn) or events.NEXT_STATE in known:
                ready = next((kind for kind in known if kind in events.READY_KINDS), None)
                tasks[turn_id] = Task(turn_id, turn["created_at"], ready)
        return tasks

    def ready(self, limit: int, now: float) -> list[str]:
        return self._journal.ready(limit, now)

    def case(self, turn_id: str) -> JudgeCase | None:
        turn = self._ledger.load_turn(turn_id)
        if turn is None:
            return None
        known = {event.kind: event for event in reversed(self._ledger.events_of(turn_id))}
        following = known.get(events.NEXT_STATE)
        return JudgeCase(
            messages=_without_context(self._to_internal(turn.messages)),
            reply=turn.reply,
            next_state=following.messages if following else None,
            finish_reason=turn.finish_reason,
            regenerated=events.REGENERATED in known and following is None,
        )

    def settle(self, turn_id: str, verdict: Verdict) -> None:
        self._journal.settle(turn_id, verdict)

    def fail(self, turn_id: str, error: str, now: float) -> None:
        self._journal.fail(turn_id, error, now)


def _is_judgeable(turn: Json) -> bool:
    return bool(turn["finish_reason"] != "cancelled" and turn["kind"] != "side")


def _without_context(messages: list[Message]) -> list[Message]:
    return [
        {**message, "content": strip_ephemeral(message.get("content") or "")}
        for message in messages
        if not is_ephemeral(message)
    ]
