"""What became of judged turns, and of the weights they made: samples and policy versions.

In the learn process's database, beside its verdicts. A judged turn gets exactly one row in ``samples``:
either with a signal that waits for its step, or with the reason why it teaches nothing. A step claims
its samples and its version number in one transaction before it starts, so a process that dies finds the
very same step again, and a sample is never in two. ``policies`` says which version serves; whoever
serves follows it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.learn_ledger import tasks, verdicts
from openclaw_rl.capture.rehearsal import Rehearsal
from openclaw_rl.capture.samples import GATE_REJECTED, TRAINED, encode_examples, policies, samples
from openclaw_rl.capture.versions import CANDIDATE, READY, REJECTED, TRAINING
from openclaw_rl.capture.wishes import Wishes
from openclaw_rl.types import EVERYONE, Example, Json, Policy, Scope, TurnRecord, Verdict

EXCLUDED, CLAIMED = "excluded", "claimed"
HELD_OUT = "held out, to check new versions with"
PASSED = "passed its checks"
#: Of more people at once, a step hears as many samples as of this many.
_MOST_USERS = 8


class PolicyLedger(Rehearsal):
    """Versions and the samples they are made of. Written by the learn process, and by whoever promotes."""

    def wishes(
        self,
        relate: Callable[[str, str], str],
        only_back: Callable[[str, str], bool],
        is_wish: Callable[[str], bool],
    ) -> Wishes:
        """What people wish for, in the same database; what texts mean is the judge's to say."""
        return Wishes(self._learn_ledger, relate, only_back, is_wish)

    # --- from verdicts to samples ------------------------------------------------------------

    def pending(self, limit: int) -> list[tuple[int, str]]:
        """Verdicts that no sample was made from yet, in the order they came: number and turn."""
        with self.db.connect() as connection:
            last = self._learn_ledger.marks(connection)["cursor_verdicts"]
            query = sa.select(verdicts.c.seq, verdicts.c.turn_id).where(verdicts.c.seq > last)
            rows = connection.execute(query.order_by(verdicts.c.seq).limit(limit))
            return [(row.seq, row.turn_id) for row in rows]

    def judged(self, turn_id: str) -> tuple[TurnRecord, Verdict] | None:
        """A turn and the verdict that counts; None if the turn is gone."""
        turn, verdict = self._serve_ledger.load_turn(turn_id), self._learn_ledger.verdict(turn_id)
        return None if turn is None or verdict is None else (turn, verdict)

    def corrected(self, turn: TurnRecord) -> tuple[TurnRecord, Verdict] | None:
        """The first of the replies that their reader complained about right before this one, if any."""
        first = None
        while turn.continues and _asks_again(turn):
            before = self.judged(turn.continues)
            if before is None or before[1].score >= 0:
                break
            first, turn = before, before[0]
        return first

    def openers(self, user: str, scope: Scope, limit: int) -> list[TurnRecord]:
        """The person's newest requests that began a conversation."""
        found = [self._serve_ledger.load_turn(i) for i in self._serve_ledger.openers(user, scope, limit)]
        return [turn for turn in found if turn is not None]

    def skip(self, seq: int) -> None:
        """Nothing is left of this verdict's turn, or of the verdict: an exclusion was taken back."""
        with self.db.connect() as connection:
            query = sa.select(verdicts.c.turn_id).where(verdicts.c.seq == seq)
            turn_id = connection.execute(query).scalar_one()
        taken_back = self._learn_ledger.verdict(turn_id) is None
        with database.writing(self.db) as connection:
            if taken_back:
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
        """What a verdict came to: examples, or a reason why not.

        A turn that a step has claimed stays as it is, whatever is said about it later. One that the judge
        itself found untrainable has neither, and is counted there.
        """
        reason = HELD_OUT if held_out else reason
        with database.writing(self.db) as connection:
            if self._forget(connection, turn.id):
                status = READY if examples and reason is None else EXCLUDED
                row = {
                    "turn_id": turn.id, "verdict": seq, "user": turn.user, "created_at": turn.created_at,
                    "policy_version": turn.policy_version, "score": verdict.score, "status": status,
                    "reason": reason,
                    "strength": max((example.strength for example in examples), default=0.0),
                    "data": encode_examples(examples, turn) if examples else None,
                    "scope": turn.scope,
                }  # fmt: skip
                connection.execute(samples.insert().values(row))
                self._count(connection, status, reason, 1)
            self._learn_ledger.set_mark(connection, "cursor_verdicts", seq)

    def _forget(self, connection: sa.Connection, turn_id: str) -> bool:
        """Make room for another outcome; False if a step has claimed the turn."""
        columns = (samples.c.status, samples.c.reason, samples.c.step)
        query = sa.select(*columns).where(samples.c.turn_id == turn_id)
        before = connection.execute(query).first()
        if before is None or before.step is not None:
            return before is None
        connection.execute(samples.delete().where(samples.c.turn_id == turn_id))
        self._count(connection, before.status, before.reason, -1)
        return True

    def _count(self, connection: sa.Connection, status: str, reason: str | None, number: int) -> None:
        name = f"sample:{status}" + (f":{reason}" if reason else "")
        self._learn_ledger.add_mark(connection, name, number)

    # --- steps -------------------------------------------------------------------------------

    def waiting(self, scope: Scope = EVERYONE) -> tuple[int, float, float | None]:
        """Samples that wait for a step: how many, how strong together, and since when."""
        query = sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(samples.c.strength), 0.0),
            sa.func.min(samples.c.created_at),
        ).where(samples.c.status == READY, samples.c.scope == scope)
        with self.db.connect() as connection:
            number, strength, oldest = connection.execute(query).one()
        return int(number), float(strength), oldest

    def full_batch(self, batch_size: int, scope: Scope = EVERYONE) -> int:
        """How many samples make the next batch: ``batch_size``, and half as many for everybody else in it.

        People want different things; a step that heard only one of them undoes what the others taught.
        Counted along the order of the samples, so that it does not depend on when somebody looks.
        """
        query = sa.select(samples.c.user).where(samples.c.status == READY, samples.c.scope == scope)
        query = query.order_by(samples.c.created_at, samples.c.turn_id).limit(_MOST_USERS * batch_size)
        users: set[str] = set()
        more = (batch_size + 1) // 2
        with self.db.connect() as connection:
            for number, user in enumerate(connection.scalars(query), 1):
                users.add(user)
                if number >= batch_size + more * (len(users) - 1):
                    return number
        return batch_size + more * (min(_MOST_USERS, max(1, len(users))) - 1)

    def claim(
        self, limit: int, parent: int, config_hash: str, replay: int = 0, scope: Scope = EVERYONE
    ) -> Policy | None:
        """Take the oldest samples for a new version, and choose up to ``replay`` earlier ones to hear again.

        In the order of their turns: one that is being judged for the first time holds later ones back,
        so that what a batch holds does not depend on who was judged how fast.
        """
        planned = {"replay": self._accepted(replay, scope)} if replay else {}
        with database.writing(self.db) as connection:
            held = connection.execute(
                sa.select(sa.func.min(tasks.c.created_at)).where(
                    tasks.c.ready.is_not(None), tasks.c.attempts == 0
                )
            ).scalar()
            query = sa.select(samples.c.turn_id).where(samples.c.status == READY, samples.c.scope == scope)
            if held is not None:
                query = query.where(samples.c.created_at < held)
            ids = list(
                connection.scalars(query.order_by(samples.c.created_at, samples.c.turn_id).limit(limit))
            )
            if not ids or (held is not None and len(ids) < limit):
                return None
            version = int(connection.execute(sa.select(sa.func.max(policies.c.version))).scalar() or 0) + 1
            connection.execute(
                policies.insert().values(
                    version=version, parent=parent, status=TRAINING, created_at=time.time(),
                    num_samples=len(ids), config_hash=config_hash, metrics=to_json(planned), gate="{}",
                    scope=scope,
                )
            )  # fmt: skip
            mine = samples.c.turn_id.in_(ids)
            connection.execute(samples.update().where(mine).values(status=CLAIMED, step=version))
            self._count(connection, READY, None, -len(ids))
            self._count(connection, CLAIMED, None, len(ids))
            return self._policy(connection, version)

    def items(self, version: int) -> list[Example]:
        """What a step was given, in the order of the turns; those whose turn was pruned are missing."""
        query = (
            sa.select(samples.c.turn_id, samples.c.score, samples.c.data)
            .where(samples.c.step == version, samples.c.status != EXCLUDED, samples.c.data.is_not(None))
            .order_by(samples.c.created_at, samples.c.turn_id)
        )
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        return self._examples(rows)

    def claimed(self, version: int) -> list[str]:
        query = sa.select(samples.c.turn_id).where(samples.c.step == version, samples.c.status == CLAIMED)
        with self.db.connect() as connection:
            return list(connection.scalars(query))

    def users_of(self, version: int) -> list[str]:
        """Whose complaints a version was made of."""
        query = sa.select(samples.c.user).where(samples.c.step == version, samples.c.score < 0).distinct()
        with self.db.connect() as connection:
            return sorted(connection.scalars(query))

    def drop(self, version: int, turn_ids: Sequence[str], reason: str) -> None:
        """Samples that cannot be trained after all, such as those whose turn was pruned or is too old."""
        with database.writing(self.db) as connection:
            for turn_id in turn_ids:
                done = connection.execute(
                    samples.update()
                    .where(
                        samples.c.turn_id == turn_id, samples.c.step == version, samples.c.status == CLAIMED
                    )
                    .values(status=EXCLUDED, reason=reason)
                )
                if done.rowcount:
                    self._count(connection, CLAIMED, None, -1)
                    self._count(connection, EXCLUDED, reason, 1)

    def release(self, version: int) -> None:
        """A step that could not even begin: its samples wait again, and its number is free."""
        with database.writing(self.db) as connection:
            mine = (samples.c.step == version) & (samples.c.status == CLAIMED)
            done = connection.execute(samples.update().where(mine).values(status=READY, step=None))
            connection.execute(policies.delete().where(policies.c.version == version))
            self._count(connection, CLAIMED, None, -done.rowcount)
            self._count(connection, READY, None, done.rowcount)

    def trained(self, version: int, metrics: Json) -> None:
        """The step is done and saved; its version waits for the gate."""
        with database.writing(self.db) as connection:
            self._update(connection, version, status=CANDIDATE, metrics=to_json(metrics))

    def reject(self, version: int, gate: Json) -> None:
        """The version never serves; its samples are used up all the same."""
        with database.writing(self.db) as connection:
            self._update(connection, version, status=REJECTED, gate=to_json(gate))
            self._finish_samples(connection, version, EXCLUDED, GATE_REJECTED)

    def publish(self, version: int, gate: Json) -> bool:
        """Serve a candidate from now on; False if somebody chose another version meanwhile."""
        with database.writing(self.db) as connection:
            policy = self._policy(connection, version)
            assert policy is not None
            if self._serving(connection, policy.scope) != policy.parent:
                problem = {
                    **gate,
                    "passed": False,
                    "reason": "the version it was trained from no longer serves",
                }
                self._update(connection, version, status=REJECTED, gate=to_json(problem))
                self._finish_samples(connection, version, EXCLUDED, GATE_REJECTED)
                return False
            self._update(connection, version, gate=to_json(gate))
            self._serve(connection, version, PASSED, policy.scope)
            self._finish_samples(connection, version, TRAINED, None)
            return True

    def _finish_samples(
        self, connection: sa.Connection, version: int, status: str, reason: str | None
    ) -> None:
        done = connection.execute(
            samples.update()
            .where(samples.c.step == version, samples.c.status == CLAIMED)
            .values(status=status, reason=reason)
        )
        self._count(connection, CLAIMED, None, -done.rowcount)
        self._count(connection, status, reason, done.rowcount)

    # --- settled, or not ---------------------------------------------------------------------

    def flush_requested_at(self) -> float | None:
        return self._learn_ledger.flush_requested_at()

    def flushed(self, asked: float) -> None:
        self._learn_ledger.flushed(asked)

    def is_settled(self) -> bool:
        """Whether every turn that could be judged was, and every verdict came to something."""
        judging = sa.select(tasks.c.turn_id).where(tasks.c.ready.is_not(None), tasks.c.attempts == 0).limit(1)
        with self.db.connect() as connection:
            waits = connection.execute(judging).first() is not None
        return not waits and not self.pending(1)

    # --- looking in --------------------------------------------------------------------------

    def of_turn(self, turn_id: str) -> Json | None:
        columns = [samples.c[name] for name in ("status", "reason", "step", "strength")]
        with self.db.connect() as connection:
            row = connection.execute(sa.select(*columns).where(samples.c.turn_id == turn_id)).first()
        return None if row is None else dict(row._mapping)

    def examples_of(self, turn_id: str) -> list[Example]:
        columns = (samples.c.turn_id, samples.c.score, samples.c.data)
        query = sa.select(*columns).where(samples.c.turn_id == turn_id, samples.c.data.is_not(None))
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        return self._examples(rows)

    def held_out(self, limit: int, scope: Scope = EVERYONE) -> list[tuple[TurnRecord, int]]:
        """Newest turns kept for the gate, with their scores."""
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
        """Verdicts on what a version said to a scope, oldest first."""
        query = (
            sa.select(samples.c.score)
            .where(samples.c.policy_version == version, samples.c.scope == scope)
            .order_by(samples.c.created_at)
            .limit(limit)
        )
        with self.db.connect() as connection:
            return list(connection.scalars(query))

    def waiting_turns(self, turn_ids: Sequence[str]) -> set[str]:
        """Those of the turns that a step will still need."""
        found: set[str] = set()
        with self.db.connect() as connection:
            last = self._learn_ledger.marks(connection)["cursor_verdicts"]
            for batch in database.batched(turn_ids):
                waits = samples.c.status.in_((READY, CLAIMED)) & samples.c.turn_id.in_(batch)
                found.update(connection.scalars(sa.select(samples.c.turn_id).where(waits)))
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


def _asks_again(turn: TurnRecord) -> bool:
    """Whether only words of its reader came between the reply before and this one: no tool did."""
    roles = [message.get("role") for message in turn.messages]
    since = list(takewhile(lambda role: role != "assistant", reversed(roles)))
    return bool(since) and set(since) == {"user"}
