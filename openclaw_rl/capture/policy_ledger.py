"""Samples and policy versions.

In the learn process's database, next to its verdicts. A judged turn gets exactly one row in ``samples``:
either with a signal that waits for a step, or with the reason why it teaches nothing. A step claims its
samples and its version number in one transaction before it starts, so after a crash the very same step is
resumed, and a sample is never in two steps. ``policies`` says which version serves; the server follows it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.erase import EraseMixin
from openclaw_rl.capture.learn_ledger import LearnLedger, tasks, verdicts
from openclaw_rl.capture.normalise import strip_ephemeral
from openclaw_rl.capture.openers import find_openers
from openclaw_rl.capture.peers import peer_scores
from openclaw_rl.capture.rollouts import Rollouts
from openclaw_rl.capture.sample_turns import SOURCE_GONE, record_turns, sample_turns, still_there
from openclaw_rl.capture.samples import encode_examples, samples, swaps
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.shares import WAITS
from openclaw_rl.capture.steps import CLAIMED, EXCLUDED
from openclaw_rl.capture.stored import stored_messages
from openclaw_rl.capture.versions import READY
from openclaw_rl.capture.wishes import ENDING, Wishes, WishRecord, wish_turns, wishes
from openclaw_rl.roles import system_prompt
from openclaw_rl.types import EVERYONE, Example, Json, Scope, SettledTurn, TurnRecord, Verdict

#: A version may go on answering some sessions for this long after it was replaced.
_SOON_S = 900.0
NOTHING_AGAIN = "taught again, there is nothing to learn here"
HELD_OUT = "held out, to check new versions with"

_MOST_PENDING = 2000

#: All scopes are checked at this interval, whether or not they changed.
_ALL_S = 60.0


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """How far somebody has looked."""

    verdict: int
    swap: int
    at: float
    """When all scopes were last checked, on the monotonic clock."""


class PolicyLedger(EraseMixin):
    """Versions and the samples they are made of. Written by the learn process, and by whoever promotes."""

    def __init__(self, serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
        super().__init__(serve_ledger, learn_ledger)
        self.asks_again: Callable[[str, str], bool] = lambda request, said: True
        """Whether the second text, said after the first request, wants that request answered again."""
        self.is_sampling: Callable[[], bool] = lambda: True
        """Whether this process makes the samples; if several hosts learn, only one does."""

    def wishes(
        self,
        relate: Callable[[str, str], str],
        only_back: Callable[[str, str], bool],
        is_wish: Callable[[str], bool],
    ) -> Wishes:
        """Users' wishes, in the same database; the judge's functions interpret their texts."""
        return Wishes(self._learn_ledger, relate, only_back, is_wish)

    def rollouts(self) -> Rollouts:
        """Episodes in environments, in the same database."""
        return Rollouts(self._serve_ledger, self._learn_ledger, self)

    # --- from verdicts to samples ------------------------------------------------------------

    def pending(self, limit: int) -> list[tuple[int, str]]:
        """Verdicts without a sample, in order of arrival: number and turn."""
        with self.db.connect() as connection:
            last = self._learn_ledger.marks(connection)["cursor_verdicts"]
            query = sa.select(verdicts.c.seq, verdicts.c.turn_id).where(verdicts.c.seq > last)
            rows = connection.execute(query.order_by(verdicts.c.seq).limit(limit))
            return [(row.seq, row.turn_id) for row in rows]

    def unsettled(self, user: str | None = None) -> dict[str, tuple[float, int, int]]:
        """Turns whose verdict has no sample yet: time, version and score."""
        ids = list(dict.fromkeys(turn_id for _, turn_id in self.pending(_MOST_PENDING)))
        scores = self._learn_ledger.scores(ids)
        found = [self._serve_ledger.turn_summary(turn_id) for turn_id in scores]
        mine = [turn for turn in found if turn is not None and user in (None, turn["user"])]
        return {t["id"]: (t["created_at"], t["policy_version"], scores[t["id"]]) for t in mine}

    def judged(self, turn_id: str) -> tuple[TurnRecord, Verdict] | None:
        """A turn and the verdict that counts; None if either is missing."""
        turn, verdict = self._serve_ledger.load_turn(turn_id), self._learn_ledger.verdict(turn_id)
        return None if turn is None or verdict is None else (turn, verdict)

    def system_prompt(self, turn_id: str) -> str:
        """The system prompt of a turn's request, as sent; empty if the turn is gone."""
        turn = self._serve_ledger.load_turn(turn_id)
        return "" if turn is None else system_prompt(stored_messages(turn.messages))

    def corrected(self, turn: TurnRecord) -> tuple[TurnRecord, Verdict] | None:
        """The first of the criticised replies that this one corrects, with its verdict; None if none."""
        first = None
        while turn.continues and (said := _said_since(turn)):
            before = self.judged(turn.continues)
            if before is None or before[1].score >= 0 or not self.asks_again(_said_since(before[0]), said):
                break
            first, turn = before, before[0]
        return first

    def peers(self, turn: TurnRecord) -> tuple[int, ...]:
        """Verdicts on the other answers to the same request."""
        return peer_scores(self._serve_ledger, self._learn_ledger, turn.id)

    def openers(self, user: str, scope: Scope, limit: int) -> list[TurnRecord]:
        """The user's newest requests that opened a session."""
        ids = find_openers(self._serve_ledger, user, scope, limit)
        found = [self._serve_ledger.load_turn(turn_id) for turn_id in ids]
        return [turn for turn in found if turn is not None]

    def skip(self, seq: int) -> None:
        """Skip a verdict whose turn is gone, or that no longer counts because an exclusion was revoked."""
        with self.db.connect() as connection:
            query = sa.select(verdicts.c.turn_id).where(verdicts.c.seq == seq)
            turn_id = connection.execute(query).scalar_one_or_none()  # None: it was forgotten meanwhile
        taken_back = turn_id is not None and self._learn_ledger.verdict(turn_id) is None
        with database.writing(self.db) as connection:
            if turn_id is not None and taken_back:
                self._forget(connection, turn_id)
            self._learn_ledger.set_mark(connection, "cursor_verdicts", seq)

    def settle(
        self,
        seq: int,
        turn: TurnRecord,
        verdict: Verdict,
        examples: Sequence[Example] = (),
        reason: str | None = None,
        held_out: bool = False,
    ) -> None:
        """Store a verdict's outcome: examples, or the reason why there are none.

        A turn that a step has claimed stays unchanged except for its score, whatever later verdicts say. One
        that the judge found untrainable has neither, and is counted with the verdicts.
        """
        reason = HELD_OUT if held_out else reason
        with database.writing(self.db) as connection:
            known = sa.select(verdicts.c.seq).where(verdicts.c.seq == seq)
            # Unless the turn was forgotten while the teacher answered.
            if connection.execute(known).first() is not None:
                settled = SettledTurn(turn, verdict.score, examples, reason, seq)
                if self.store(connection, settled) == READY and verdict.score < 0:
                    self._watch_wave(connection, turn.scope, turn.user, turn.created_at)
            self._learn_ledger.set_mark(connection, "cursor_verdicts", seq)

    def store(self, connection: sa.Connection, settled: SettledTurn) -> str | None:
        """In the caller's transaction; returns the sample's status, None if a step has claimed the turn."""
        turn, reason = settled.turn, settled.reason
        examples = still_there(connection, self._serve_ledger.db, settled.examples)
        if settled.examples and not examples:
            reason = SOURCE_GONE
        if not self._forget(connection, turn.id):
            now = {"score": settled.score, "verdict": settled.verdict}
            connection.execute(samples.update().where(samples.c.turn_id == turn.id).values(now))
            return None
        status = READY if examples and reason is None else EXCLUDED
        row = {
            "turn_id": turn.id, "verdict": settled.verdict, "user": turn.user, "created_at": turn.created_at,
            "policy_version": turn.policy_version, "score": settled.score, "status": status,
            "reason": reason, "strength": max((example.strength for example in examples), default=0.0),
            "data": encode_examples(examples, turn) if examples else None,
            "scope": turn.scope, "fingerprint": self._taught(turn, examples),
        }  # fmt: skip
        connection.execute(samples.insert().values(row))
        record_turns(connection, turn.id, (example.source for example in examples))
        self._count(connection, status, reason, 1)
        return status

    def _taught(self, turn: TurnRecord, examples: Sequence[Example]) -> str:
        """The model that examples are for: the one that answered, unless none is on its own reply."""
        own = any(example.source.kind not in ("hinted", "upstream") for example in examples)
        return turn.fingerprint if own or not examples else self.fingerprint or turn.fingerprint

    def teach_again(self, turn: TurnRecord, examples: Sequence[Example]) -> None:
        """Queue a turn for a step again with new examples, such as after a change of model."""
        mine = samples.c.turn_id == turn.id
        with database.writing(self.db) as connection:
            examples = still_there(connection, self._serve_ledger.db, examples)
            status, reason = (READY, None) if examples else (EXCLUDED, NOTHING_AGAIN)
            values = {
                "status": status, "reason": reason, "step": None, "fingerprint": self.fingerprint,
                "strength": max((example.strength for example in examples), default=0.0),
                "data": encode_examples(examples, turn) if examples else None,
            }  # fmt: skip
            before = connection.execute(sa.select(samples.c.status, samples.c.reason).where(mine)).first()
            if before is not None:
                connection.execute(samples.update().where(mine).values(values))
                record_turns(connection, turn.id, (example.source for example in examples))
                self._count(connection, before.status, before.reason, -1)
                self._count(connection, status, reason, 1)

    def _forget(self, connection: sa.Connection, turn_id: str) -> bool:
        """Delete a turn's sample to replace it; False if a step has claimed the turn."""
        columns = (samples.c.status, samples.c.reason, samples.c.step)
        query = sa.select(*columns).where(samples.c.turn_id == turn_id)
        before = connection.execute(query).first()
        if before is None or before.step is not None:
            return before is None
        connection.execute(samples.delete().where(samples.c.turn_id == turn_id))
        record_turns(connection, turn_id, ())
        self._count(connection, before.status, before.reason, -1)
        return True

    # --- settled, or not ---------------------------------------------------------------------

    def flush_requested_at(self, scope: Scope | None = None) -> float | None:
        return self._learn_ledger.flush_requested_at(scope)

    def flushed(self, asked: float, scope: Scope | None = None) -> None:
        others = [] if scope is not None else [s for s in self.waiting_scopes() if not self.leads(s)]
        if not any(self.waiting(other)[0] for other in others):  # not while another host still has work
            self._learn_ledger.flushed(asked, scope)

    def is_settled(self) -> bool:
        """Whether every judgeable turn was judged, and every verdict was made into a sample."""
        judging = sa.select(tasks.c.turn_id).where(tasks.c.ready.is_not(None), tasks.c.attempts == 0).limit(1)
        with self.db.connect() as connection:
            waits = connection.execute(judging).first() is not None
        return not waits and not self.pending(1)

    def changed_scopes(self, seen: WatchCursor | None) -> tuple[list[Scope], WatchCursor]:
        """Scopes that may have something to do: a few queries, however many people there are.

        A sample waits, a wish is ending, a flush was requested, or since ``seen`` there was a verdict or a
        swap. Periodically all scopes, so that nothing is missed for long.
        """
        with self.db.connect() as connection:
            now = WatchCursor(
                int(self._learn_ledger.marks(connection)["cursor_verdicts"]),
                int(connection.scalar(sa.select(sa.func.max(swaps.c.seq))) or 0),
                time.monotonic(),
            )
            if seen is None or now.at - seen.at > _ALL_S:
                return self._led(self.scopes()), now
            found = {EVERYONE, *self._flushing(connection)}
            judged = sa.select(samples.c.scope).join(verdicts, verdicts.c.turn_id == samples.c.turn_id)
            for query in (
                self._waiting_scopes(),
                sa.select(wishes.c.scope).where(wishes.c.status.in_(ENDING)),
                judged.where(verdicts.c.seq > seen.verdict),
                sa.select(swaps.c.scope).where(swaps.c.seq > seen.swap),
            ):
                found.update(connection.scalars(query.distinct()))
        return self._led([EVERYONE, *sorted(found - {EVERYONE})]), replace(now, at=seen.at)

    def _led(self, scopes: Sequence[Scope]) -> list[Scope]:
        return [scope for scope in scopes if self.leads(scope)]

    def _flushing(self, connection: sa.Connection) -> list[Scope]:
        marks, asked = self._learn_ledger.marks(connection), "flush_asked:"
        names = [name.removeprefix(asked) for name in marks if name.startswith(asked)]
        return [name for name in names if marks[asked + name] > marks[f"flush_done:{name}"]]

    # --- reading -----------------------------------------------------------------------------

    def of_turn(self, turn_id: str) -> Json | None:
        columns = [samples.c[name] for name in ("status", "reason", "step", "strength", "scope", "user")]
        with self.db.connect() as connection:
            row = connection.execute(sa.select(*columns).where(samples.c.turn_id == turn_id)).first()
        if row is None:
            return None
        held = row.status == READY and self.is_held(row.scope, row.user)
        names = ("status", "reason", "step", "strength")
        return {**{name: getattr(row, name) for name in names}, **({"reason": WAITS} if held else {})}

    def examples_of(self, turn_id: str) -> list[Example]:
        columns = (samples.c.turn_id, samples.c.score, samples.c.data)
        query = sa.select(*columns).where(samples.c.turn_id == turn_id, samples.c.data.is_not(None))
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        return self._examples(rows)

    def wish(self, wish_id: str, user: str | None = None) -> WishRecord | None:
        """None if there is no such wish, or it is another user's."""
        with self.db.connect() as connection:
            row = connection.execute(sa.select(wishes).where(wishes.c.turn_id == wish_id)).first()
        return None if row is None or user not in (None, row.user) else WishRecord(**row._mapping)

    def turns_of_wish(self, wish_id: str, user: str | None = None) -> list[str]:
        """Turns that made the wish, and those whose samples teach it; empty if it is another user's."""
        if (wish := self.wish(wish_id, user)) is None:
            return []
        mine = (samples.c.user == wish.user) & (samples.c.scope == wish.scope)
        asked = sa.select(wish_turns.c.turn_id).where(wish_turns.c.wish == wish_id).order_by(wish_turns.c.at)
        with self.db.connect() as connection:
            said = [wish_id, *connection.scalars(asked)]
            ids = list(connection.scalars(sa.select(samples.c.turn_id).where(mine)))
        texts = [text for text in (wish.text, wish.said) if text]
        hints = {i: [example.source.hint or "" for example in self.examples_of(i)] for i in ids}
        taught = [i for i in ids if any(text in hint for hint in hints[i] for text in texts)]
        return list(dict.fromkeys([*said, *taught]))

    def held_out(self, limit: int, scope: Scope = EVERYONE) -> list[tuple[TurnRecord, int]]:
        """The newest turns held out for the gate, with their scores."""
        query = (
            sa.select(samples.c.turn_id, samples.c.score)
            .where(samples.c.status == EXCLUDED, samples.c.reason == HELD_OUT, samples.c.scope == scope)
            .order_by(samples.c.created_at.desc())
            .limit(limit)
        )
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        found = [(self._serve_ledger.load_turn(row.turn_id), row.score) for row in rows]
        return [(turn, score) for turn, score in found if turn]

    def scores_of(self, version: int, scope: Scope = EVERYONE, limit: int = 500) -> list[int]:
        """Verdicts on a version's replies in a scope, oldest first."""
        query = (
            sa.select(samples.c.score)
            .where(samples.c.policy_version == version, samples.c.scope == scope)
            .order_by(samples.c.created_at)
            .limit(limit)
        )
        with self.db.connect() as connection:
            return list(connection.scalars(query))

    def reactions(
        self, versions: Sequence[int], scope: Scope = EVERYONE, limit: int = 1000
    ) -> list[tuple[int, str, int]]:
        """The newest verdicts on these versions' replies in a scope, oldest first: version, user, score.

        Only replies given while a version served, or soon after: the base keeps answering under other system
        prompts (``roles.py``), which is other work and not comparable with later versions.
        """
        mine = samples.c.policy_version.in_(versions) & (samples.c.scope == scope)
        query = (
            sa.select(samples.c.policy_version, samples.c.user, samples.c.score, samples.c.created_at)
            .where(mine)
            .order_by(samples.c.created_at.desc(), samples.c.turn_id)
            .limit(limit)
        )
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        left = self.left_at(scope)
        return [
            (row.policy_version, row.user, row.score)
            for row in reversed(rows)
            if row.created_at <= left.get(row.policy_version, inf) + _SOON_S
        ]

    def waiting_turns(self, turn_ids: Sequence[str]) -> set[str]:
        """Those of the turns that a step still needs."""
        found: set[str] = set()
        with self.db.connect() as connection:
            last = self._learn_ledger.marks(connection)["cursor_verdicts"]
            for batch in database.batched(turn_ids):
                waits = samples.c.status.in_((READY, CLAIMED))
                mine = sa.select(samples.c.turn_id).where(waits, samples.c.turn_id.in_(batch))
                theirs = sa.select(sample_turns.c.turn_id).join(
                    samples, samples.c.turn_id == sample_turns.c.sample
                )
                found.update(connection.scalars(mine))
                found.update(connection.scalars(theirs.where(waits, sample_turns.c.turn_id.in_(batch))))
                fresh = (verdicts.c.seq > last) & verdicts.c.turn_id.in_(batch)
                found.update(connection.scalars(sa.select(verdicts.c.turn_id).where(fresh)))
        return found

    def counts(self) -> Counter[str]:
        """``<status>`` or ``<status>:<reason>`` → turns; constant cost."""
        with self.db.connect() as connection:
            marks = self._learn_ledger.marks(connection)
        return Counter(
            {
                name.removeprefix("sample:"): int(n)
                for name, n in marks.items()
                if name.startswith("sample:") and n
            }
        )


def _said_since(turn: TurnRecord) -> str:
    """The user's text after the previous reply; empty if there were tool results, too."""
    messages = stored_messages(turn.messages)
    since = list(takewhile(lambda message: message.get("role") != "assistant", reversed(messages)))
    spoken = [message for message in since if message.get("role") != "system"]
    if any(message.get("role") != "user" for message in spoken):
        return ""
    return "\n".join(strip_ephemeral(message.get("content") or "") for message in reversed(spoken)).strip()
