"""Each user's wishes, and their status.

A complaint's hint is a wish: a new one, a repetition, a replacement for another, or one taken back. Learning
always uses all current wishes of a user, so that learning the second does not unlearn the first, and what was
kept for a wish is dropped with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.learn_ledger import LearnLedger, metadata, verdicts
from openclaw_rl.capture.samples import policies, samples, scope_column
from openclaw_rl.types import Scope, TurnRecord

ACTIVE, REPLACED, TAKEN_BACK = "active", "replaced", "taken back"
NOT_LEARNABLE, PAUSED = "not learnable", "paused"
#: Paused by its user or the owner.
ON_HOLD = "on hold"
#: Active, but reworded or resumed, and not taught since.
TO_TEACH = "to be taught"
CURRENT = (ACTIVE, TO_TEACH)
#: Displaced from the teacher's prompt by newer wishes; becomes active when it is repeated.
SET_ASIDE = "set aside"
#: Its first turn was pruned, and its text with it.
PRUNED = "pruned"
#: Ending; each becomes its final status once the rollback, if any, is done.
_GIVING_UP, _PAUSING, _TAKING_BACK = "giving up", "pausing", "taking back"
_ENDS = {_GIVING_UP: NOT_LEARNABLE, _PAUSING: PAUSED, _TAKING_BACK: TAKEN_BACK}
ENDING = tuple(_ENDS)
#: A wish is given up after this many failed replies that had the complaint in their context.
_TRIES = 6
#: A wish is paused by the next complaint after this many versions, or after this many failures in a row:
#: rejected versions, and first replies of its versions that were complained about.
_MOST_VERSIONS, _MOST_IN_VAIN = 8, 5
#: The mark of the last complaint that was counted as a failure.
_MISSED = "missed_verdicts"
#: In a checked version's gate until its outcome replaces it: its wishes have been counted.
_COUNTED = "counted"
#: Wishes in a teacher's prompt; more would crowd out the request in a small model's context.
MOST_WISHES = 8
CANNOT = "the model does not manage this even when told"
GOES_NOWHERE = "paused: the versions made for it did not satisfy it"
HELD = "paused by a person; it is taught again when they resume it"
CROWDED_OUT = (
    f"set aside: {MOST_WISHES} wishes are taught at once, and so many were asked for since; "
    "it comes back when it is asked for again or resumed"
)
_PROBLEMS = {
    NOT_LEARNABLE: CANNOT,
    _GIVING_UP: CANNOT,
    PAUSED: GOES_NOWHERE,
    _PAUSING: GOES_NOWHERE,
    ON_HOLD: HELD,
    SET_ASIDE: CROWDED_OUT,
}
#: The counters of a wish that is learned from the start.
NOTHING_TRIED = dict.fromkeys(("tried", "accepted", "versions", "in_vain"), 0)
#: Statuses in which a user may still edit, pause or resume a wish.
CHANGEABLE = (*CURRENT, *_PROBLEMS)

wishes = sa.Table(
    "wishes",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True, comment="whose reply was complained about first"),
    scope_column(),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    sa.Column("served", sa.Integer, nullable=False, comment="the version when it came"),
    sa.Column("tried", sa.Integer, nullable=False, comment="replies that knew of it and were judged"),
    sa.Column("accepted", sa.Integer, nullable=False, comment="replies accepted since it came"),
    sa.Column("versions", sa.Integer, nullable=False, comment="made for it"),
    sa.Column("said", sa.Text, nullable=False, server_default="", comment="its first words, before an edit"),
    sa.Column("noted", sa.Integer, comment="whether its person wants it in a note: 1, 0, or null"),
    sa.Column(
        "in_vain",
        sa.Integer,
        nullable=False,
        server_default="0",
        comment="failures in a row: its versions that were rejected, and first replies of the others",
    ),
    sa.Index("wishes_by_user", "user", "created_at"),
)

#: The evidence: the turns in which each wish was made.
wish_turns = sa.Table(
    "wish_turns",
    metadata,
    sa.Column("wish", sa.Text, primary_key=True),
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Index("wish_turns_by_turn", "turn_id"),
)


@dataclass(frozen=True, slots=True)
class WishRecord:
    turn_id: str
    scope: Scope
    user: str
    text: str
    status: str
    created_at: float
    ended_at: float | None
    served: int
    tried: int
    accepted: int
    versions: int
    said: str = ""
    """The original text, if a user edited it."""
    noted: int | None = None
    """Whether the user wants it in the prompt note until it is learned: 1, 0, or None if undecided."""
    in_vain: int = 0

    @property
    def is_unwanted(self) -> bool:
        """Whether its user took it back."""
        return self.status in (TAKEN_BACK, _TAKING_BACK)

    @property
    def problem(self) -> str | None:
        """Why training for it stopped."""
        return _PROBLEMS.get(self.status)


class Wishes:
    """``relate`` returns what a new text does to an old one (same, replaces, takes back, …); ``only_back``,
    whether it only takes it back."""

    def __init__(
        self,
        ledger: LearnLedger,
        relate: Callable[[str, str], str],
        only_back: Callable[[str, str], bool],
        is_wish: Callable[[str], bool] = lambda text: True,
    ) -> None:
        self._ledger, self._db = ledger, ledger.db
        self._relate, self._only_back, self.is_wish = relate, only_back, is_wish

    def of_user(self, user: str, scope: Scope, statuses: Sequence[str] = CURRENT) -> list[WishRecord]:
        """Oldest first."""
        return self._where(wishes.c.user == user, wishes.c.scope == scope, wishes.c.status.in_(statuses))

    def texts(self, user: str, scope: Scope) -> tuple[str, ...]:
        """A user's current wishes, oldest first."""
        return tuple(wish.text for wish in self.of_user(user, scope))

    def current(self, user: str, scope: Scope) -> str:
        """A user's current wishes as one text, as in the teacher's prompt."""
        return " ".join(self.texts(user, scope))

    def take_up(
        self, turn: TurnRecord, text: str, serving: int, verdict: int | None = None
    ) -> WishRecord | None:
        """Apply a complaint's hint to the user's wishes; returns its wish, or None if it only ended some, or
        was forgotten meanwhile. ``verdict``: the number of the one that the hint is from."""
        mine, ended = None, self._ended_by(turn, text)
        for old in self.of_user(turn.user, turn.scope, (*CURRENT, *_PROBLEMS)):
            relation = self._relation(text, old)
            if old.turn_id == turn.id or relation == "same":
                mine = old
            elif relation in ("takes back", "replaces"):
                self._end(old, _TAKING_BACK if relation == "takes back" else REPLACED, turn.created_at)
                ended = ended or (relation == "takes back" and self._only_back(text, old.text))
        if mine is None and not ended:
            mine = self._add(turn, text, serving, verdict)
        if mine is not None:
            self._note(mine, turn, verdict)
            mine = self._make_room(mine)
        return mine

    def _relation(self, text: str, old: WishRecord) -> str:
        """An edited wish that is repeated in its original words still counts as the same."""
        return "same" if old.said and self._relate(text, old.said) == "same" else self._relate(text, old.text)

    def _note(self, wish: WishRecord, turn: TurnRecord, verdict: int | None) -> None:
        row = {"wish": wish.turn_id, "turn_id": turn.id, "at": turn.created_at}
        with database.writing(self._db) as connection:
            known = sa.select(wish_turns).filter_by(wish=wish.turn_id, turn_id=turn.id)
            if connection.execute(known).first() is None and _is_there(connection, verdict):
                connection.execute(wish_turns.insert().values(row))

    def _ended_by(self, turn: TurnRecord, text: str) -> bool:
        """Whether this very complaint took a wish back before a restart."""
        gone = self.of_user(turn.user, turn.scope, (TAKEN_BACK, _TAKING_BACK))
        return any(old.ended_at == turn.created_at and self._only_back(text, old.text) for old in gone)

    def _add(self, turn: TurnRecord, text: str, serving: int, verdict: int | None) -> WishRecord | None:
        wish = WishRecord(
            turn.id, turn.scope, turn.user, text, ACTIVE, turn.created_at, None, serving, 0, 0, 0
        )
        row = {name: getattr(wish, name) for name in WishRecord.__slots__}
        with database.writing(self._db) as connection:
            connection.execute(wishes.delete().where(wishes.c.turn_id == turn.id))
            if not _is_there(connection, verdict):
                return None
            connection.execute(wishes.insert().values(row))
        return wish

    def _make_room(self, wish: WishRecord) -> WishRecord:
        """Activate a wish that was just made; if there are too many, set the longest unrepeated aside."""
        if wish.status == SET_ASIDE:
            self._set(wish, status=ACTIVE, ended_at=None)
            wish = replace(wish, status=ACTIVE, ended_at=None)
        current = self.of_user(wish.user, wish.scope)
        for unsaid in sorted(current, key=self._last_said)[:-MOST_WISHES]:
            self._end(unsaid, SET_ASIDE)
        return wish

    def _last_said(self, wish: WishRecord) -> float:
        query = sa.select(sa.func.max(wish_turns.c.at)).where(wish_turns.c.wish == wish.turn_id)
        with self._db.connect() as connection:
            return float(connection.scalar(query) or wish.created_at)

    def _end(self, wish: WishRecord, status: str, at: float | None = None) -> None:
        """``at``: the time of the reply whose complaint ended it."""
        self._set(wish, status=status, ended_at=time.time() if at is None else at)

    def _set(self, wish: WishRecord, **values: object) -> None:
        with database.writing(self._db) as connection:
            connection.execute(wishes.update().where(wishes.c.turn_id == wish.turn_id).values(**values))

    # --- progress --------------------------------------------------------------------------------

    def accepted(self, turn: TurnRecord, *, again: bool) -> None:
        """A reply was accepted, so the wishes can be met. ``again``: it answers a complaint."""
        for wish in self.of_user(turn.user, turn.scope):
            if turn.created_at > wish.created_at:
                in_vain = 0 if _is_of_its_version(wish, turn) and not again else wish.in_vain
                self._set(wish, accepted=wish.accepted + 1, in_vain=in_vain)

    def failed(self, turn: TurnRecord) -> str | None:
        """A reply with the wish in its context failed it; returns the reason if the wish is given up."""
        problem = None
        for wish in self._asked_for_in([turn.id]):
            self._set(wish, tried=wish.tried + 1)
            if wish.tried + 1 >= _TRIES and not wish.accepted:
                self._end(wish, _GIVING_UP)
                problem = CANNOT
        return problem

    def missed(self, turn: TurnRecord, verdict: int | None = None) -> str | None:
        """A conversation's first reply failed wishes; returns the reason if one of them is paused.

        A version is judged by its replies, so the newest one gets its chance before its wish is paused; one
        from before any was made for the wish says nothing about it. A complaint that names no wish counts for
        all that its person has. ``verdict``: the complaint's number; it comes again after a kill, and counts
        once.
        """
        problem, is_new = None, self._is_first_time(verdict)
        for wish in self._asked_for_in([turn.id]) or self.of_user(turn.user, turn.scope):
            in_vain = wish.in_vain + (is_new and _is_of_its_version(wish, turn))
            self._set(wish, in_vain=in_vain)
            if wish.versions >= _MOST_VERSIONS or in_vain >= _MOST_IN_VAIN:
                self._end(wish, _PAUSING)
                problem = GOES_NOWHERE
        return problem

    def _is_first_time(self, verdict: int | None) -> bool:
        """Verdicts come in the order of their numbers."""
        if verdict is None:
            return True
        with database.writing(self._db) as connection:
            is_first = verdict > self._ledger.marks(connection)[_MISSED]
            if is_first:
                self._ledger.set_mark(connection, _MISSED, verdict)
        return is_first

    def count_version(self, turn_ids: Sequence[str], *, passed: bool, version: int | None = None) -> None:
        """A version was trained on these complaints, and passed its checks or was rejected.

        ``version``: its number; it is checked again after a kill, and counts once.
        """
        meant = self._meant_by(turn_ids)
        with database.writing(self._db) as connection:
            if version is not None and not _is_first_count(connection, version):
                return
            for wish in meant:
                in_vain, mine = wish.in_vain + (not passed), wishes.c.turn_id == wish.turn_id
                is_over = not passed and in_vain >= _MOST_IN_VAIN
                end = {"status": _PAUSING, "ended_at": time.time()} if is_over else {}
                counts = {"versions": wish.versions + 1, "in_vain": in_vain}
                connection.execute(wishes.update().where(mine).values(**counts, **end))

    def holds(self, turn_id: str) -> bool:
        """Whether something that was asked for in this turn is still wished for."""
        return bool(self._asked_for_in([turn_id]))

    def _asked_for_in(self, turn_ids: Sequence[str]) -> list[WishRecord]:
        found: dict[str, WishRecord] = {}
        for batch in database.batched(turn_ids):
            asked = sa.select(wish_turns.c.wish).where(wish_turns.c.turn_id.in_(batch))
            current = self._where(wishes.c.turn_id.in_(asked), wishes.c.status.in_(CURRENT))
            found |= {wish.turn_id: wish for wish in current}
        return list(found.values())

    def _meant_by(self, turn_ids: Sequence[str]) -> list[WishRecord]:
        found = {wish.turn_id: wish for wish in self._asked_for_in(turn_ids)}
        for batch in database.batched(turn_ids):
            named = sa.select(wish_turns.c.turn_id).where(wish_turns.c.turn_id == samples.c.turn_id).exists()
            query = sa.select(samples.c.user, samples.c.scope).where(samples.c.turn_id.in_(batch), ~named)
            with self._db.connect() as connection:
                people = {(row.user, row.scope) for row in connection.execute(query)}
            for user, scope in people:
                found |= {wish.turn_id: wish for wish in self.of_user(user, scope)}
        return list(found.values())

    def ending(self, scope: Scope) -> list[WishRecord]:
        """Wishes given up, paused or taken back, whose end was not handled yet."""
        return self._where(wishes.c.scope == scope, wishes.c.status.in_(_ENDS))

    def ended(self, wish: WishRecord) -> None:
        """The wish's end was handled."""
        self._set(wish, status=_ENDS[wish.status])

    def end_of(self, wish: WishRecord) -> str:
        """The status that it has once it has ended."""
        return _ENDS[wish.status]

    def over_since(self, wish: WishRecord) -> list[WishRecord]:
        """Of the same person: replaced or taken back since it came."""
        same = (wishes.c.user == wish.user) & (wishes.c.scope == wish.scope)
        gone = wishes.c.status.in_((REPLACED, TAKEN_BACK)) & (wishes.c.ended_at >= wish.created_at)
        return self._where(same, gone, wishes.c.turn_id != wish.turn_id)

    # --- another model ---------------------------------------------------------------------------

    def of_other_models(self, fingerprint: str) -> list[WishRecord]:
        """Wishes that were learned, or given up, on another model."""
        made = sa.select(samples.c.turn_id).where(samples.c.fingerprint.not_in(("", fingerprint)))
        kept = wishes.c.status.in_((*CURRENT, *(s for s in _PROBLEMS if s not in (ON_HOLD, SET_ASIDE))))
        return self._where(kept, wishes.c.turn_id.in_(made)) if fingerprint else []

    def renew(self, wish: WishRecord, serving: int) -> None:
        """Reset it as if it had just been made."""
        self._set(wish, status=ACTIVE, ended_at=None, served=serving, **NOTHING_TRIED)

    def any_active(self, scope: Scope) -> bool:
        return bool(self._where(wishes.c.scope == scope, wishes.c.status.in_(CURRENT)))

    def to_teach(self) -> list[WishRecord]:
        """Wishes that a user edited or resumed."""
        return self._where(wishes.c.status == TO_TEACH)

    def taught(self, wish: WishRecord) -> None:
        """Mark as taught, unless it was paused, edited or forgotten meanwhile."""
        still = (wishes.c.turn_id == wish.turn_id) & (wishes.c.status == TO_TEACH)
        with database.writing(self._db) as connection:
            same = still & (wishes.c.text == wish.text)
            connection.execute(wishes.update().where(same).values(status=ACTIVE))

    def _where(self, *conditions: sa.ColumnElement[bool]) -> list[WishRecord]:
        query = sa.select(wishes).where(*conditions).order_by(wishes.c.created_at, wishes.c.turn_id)
        with self._db.connect() as connection:
            return [WishRecord(**row._mapping) for row in connection.execute(query)]


def _is_there(connection: sa.Connection, verdict: int | None) -> bool:
    """Whether a verdict was not forgotten meanwhile; None is none that could be."""
    known = sa.select(verdicts.c.seq).where(verdicts.c.seq == verdict)
    return verdict is None or connection.execute(known).first() is not None


def _is_of_its_version(wish: WishRecord, turn: TurnRecord) -> bool:
    """Whether a version answered that may have learned it; any other reply says nothing about that."""
    return wish.versions > 0 and turn.policy_version > wish.served


def _is_first_count(connection: sa.Connection, version: int) -> bool:
    mine = policies.c.version == version
    gate = json.loads(connection.scalar(sa.select(policies.c.gate).where(mine)) or "{}")
    connection.execute(policies.update().where(mine).values(gate=to_json({**gate, _COUNTED: True})))
    return _COUNTED not in gate


def list_wishes(ledger: LearnLedger, user: str | None, limit: int = 100) -> list[WishRecord]:
    """Newest first."""
    query = sa.select(wishes).order_by(wishes.c.created_at.desc()).limit(limit)
    if user is not None:
        query = query.where(wishes.c.user == user)
    with ledger.db.connect() as connection:
        return [WishRecord(**row._mapping) for row in connection.execute(query)]


def count_wishes(ledger: LearnLedger, user: str | None = None) -> dict[str, int]:
    """By status."""
    query = sa.select(wishes.c.status, sa.func.count()).group_by(wishes.c.status)
    query = query if user is None else query.where(wishes.c.user == user)
    with ledger.db.connect() as connection:
        return {status: int(number) for status, number in connection.execute(query)}
