"""The judge's queue: reads cases from the serve ledger, writes verdicts to the learn ledger."""

from __future__ import annotations

import time
from dataclasses import replace

from openclaw_rl.capture import events
from openclaw_rl.capture.events import SECRET
from openclaw_rl.capture.learn_ledger import LearnLedger, NewTurn, UnjudgedTurn
from openclaw_rl.capture.normalise import is_ephemeral, strip_ephemeral
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.stored import stored_messages
from openclaw_rl.scopes import is_environment
from openclaw_rl.types import Json, JudgeCase, Message, TurnRecord, Verdict

_PAGE = 500


class LedgerJudgeQueue:
    """Implements the judging worker's ``JudgeQueue`` on both ledgers."""

    def __init__(self, serve_ledger: ServeLedger, learn_ledger: LearnLedger, idle_s: float) -> None:
        self._serve_ledger, self._learn_ledger, self._idle_s = serve_ledger, learn_ledger, idle_s
        self._unsure: set[str] = set()
        """Turns being judged whose next state was not certain when their case was read."""

    def pull(self) -> None:
        """Import everything new, page by page."""
        full = True
        while full:
            last_turn, last_event = self._learn_ledger.cursors()
            # Read events first: the turns they point at are then among those read afterwards.
            found = self._serve_ledger.events_after(last_event, _PAGE)
            self._learn_ledger.pull(self._turns_after(last_turn), found, self._reopened(found))
            full = len(found) == _PAGE
        self._learn_ledger.close_idle(time.time() - self._idle_s)

    def _turns_after(self, seq: int) -> list[NewTurn]:
        turns: list[NewTurn] = []
        while page := self._serve_ledger.turns_after(turns[-1].seq if turns else seq, _PAGE):
            numbers = [t["session"] for t in page]
            marked = events.excluded_sessions(self._serve_ledger.db, numbers)
            turns += [
                NewTurn(
                    t["seq"],
                    t["id"],
                    t["created_at"],
                    _is_judgeable(t),
                    excluded=t["session"] in marked
                    and events.is_excluded(self._serve_ledger.events_of(t["id"]), session_excluded=True),
                    secret=bool(t["secrets"]),
                )
                for t in page
            ]
        return turns

    def _reopened(self, found: list[events.StoredEvent]) -> dict[str, UnjudgedTurn]:
        """Tasks for turns that were included again, as if they had never been excluded."""
        tasks = {}
        for turn_id in {event.turn_id for event in found if event.kind == events.INCLUDE}:
            turn = self._serve_ledger.turn_summary(turn_id)
            known = [event.kind for event in self._serve_ledger.events_of(turn_id)]
            if turn is None or events.RETRIED in known:
                continue
            if _is_judgeable(turn) or any(kind in known for kind in events.REACTIONS):
                ready = next((kind for kind in known if kind in events.READY_KINDS), None)
                tasks[turn_id] = UnjudgedTurn(turn_id, turn["created_at"], ready)
        return tasks

    def ready(self, limit: int, now: float) -> list[str]:
        return self._learn_ledger.ready(limit, now)

    def case(self, turn_id: str) -> JudgeCase | None:
        turn = self._serve_ledger.load_turn(turn_id)
        if turn is None:
            return None
        happened = self._serve_ledger.events_of(turn_id)
        following = events.reaction(happened)
        sure = following is not None and following.kind == events.NEXT_STATE
        (self._unsure.discard if sure else self._unsure.add)(turn_id)
        return JudgeCase(
            messages=_without_context(stored_messages(turn.messages)),
            reply=turn.reply,
            next_state=following.messages if following else None,
            finish_reason=turn.finish_reason,
            regenerated=following is None and any(event.kind == events.REGENERATED for event in happened),
            own_limit=_is_own_limit(turn),
        )

    def settle(self, turn_id: str, verdict: Verdict) -> None:
        if not verdict.trainable and verdict.source != SECRET and self._is_step(turn_id):
            # Its attempt's reward says how good it was, even where the judge cannot.
            verdict = replace(verdict, trainable=True)
        self._learn_ledger.settle(turn_id, verdict, unsure=turn_id in self._unsure)
        self._unsure.discard(turn_id)

    def _is_step(self, turn_id: str) -> bool:
        """Whether it belongs to an episode in an environment."""
        turn = self._serve_ledger.load_turn(turn_id)
        return turn is not None and is_environment(turn.scope)

    def fail(self, turn_id: str, error: str, now: float) -> None:
        self._learn_ledger.fail(turn_id, error, now)


def _is_judgeable(turn: Json) -> bool:
    return bool(turn["finish_reason"] != "cancelled" and turn["kind"] != "side")


def _is_own_limit(turn: TurnRecord) -> bool:
    """Whether the client's own token limit applied, rather than the default or the context length."""
    stated = turn.params.get("max_completion_tokens") or turn.params.get("max_tokens")
    return stated is not None and turn.sampling.max_tokens >= int(stated)


def _without_context(messages: list[Message]) -> list[Message]:
    return [
        {**message, "content": strip_ephemeral(message.get("content") or "")}
        for message in messages
        if not is_ephemeral(message)
    ]
