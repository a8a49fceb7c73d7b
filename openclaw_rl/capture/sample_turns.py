"""Which other turns a sample's examples came from, besides its own.

A complaint is also taught on the user's other requests, and the teacher's prompt holds wishes made in other
turns. When such a turn is forgotten or pruned, the examples that came from it are removed; the others stay,
so that retraining does not depend on when the turn was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.learn_ledger import metadata
from openclaw_rl.capture.samples import keep_examples, samples
from openclaw_rl.capture.wishes import wishes
from openclaw_rl.types import Example, Json, Source

#: An example uses the turn's request; the teacher's prompt held the wish made in it.
REQUEST, WISH = "request", "wish"
SOURCE_GONE = "what it was made from was forgotten"

sample_turns = sa.Table(
    "sample_turns",
    metadata,
    sa.Column("sample", sa.Text, primary_key=True, comment="samples.turn_id"),
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, primary_key=True, comment="request or wish"),
    sa.Index("sample_turns_by_turn", "turn_id"),
)


def record_turns(connection: sa.Connection, sample: str, sources: Iterable[Source]) -> None:
    """In place of what was recorded for the sample before."""
    connection.execute(sample_turns.delete().where(sample_turns.c.sample == sample))
    pairs = {pair for source in sources for pair in _turns_of(source)}
    rows = [{"sample": sample, "turn_id": turn_id, "role": role} for turn_id, role in sorted(pairs)]
    if rows := [row for row in rows if row["turn_id"] != sample]:
        connection.execute(sample_turns.insert(), rows)


def _turns_of(source: Source) -> set[tuple[str, str]]:
    return {(i, REQUEST) for i in source.turn_ids[1:]} | {(i, WISH) for i in source.wish_ids}


def made_from(turn_ids: Sequence[str], roles: Sequence[str] = (REQUEST, WISH)) -> sa.Select[Any]:
    """The samples that have examples from these turns."""
    known = sample_turns.c.turn_id.in_(turn_ids) & sample_turns.c.role.in_(roles)
    return sa.select(sample_turns.c.sample).where(known)


def still_there(
    connection: sa.Connection, serve_db: sa.Engine, examples: Sequence[Example]
) -> Sequence[Example]:
    """Leave out examples whose turns or wishes were forgotten or pruned while the teacher answered.

    Call in the transaction that stores them: forgetting erases again after the turns are gone.
    """
    pairs = {pair for example in examples for pair in _turns_of(example.source)}
    asked, wished = ({i for i, role in pairs if role == wanted} for wanted in (REQUEST, WISH))
    known = {(i, REQUEST) for i in _stored(serve_db, asked)} | {
        (i, WISH) for i in _worded(connection, wished)
    }
    return [example for example in examples if _turns_of(example.source) <= known]


def _stored(serve_db: sa.Engine, turn_ids: Collection[str]) -> list[str]:
    with serve_db.connect() as connection:
        queries = (sa.select(schema.turns.c.id).where(schema.turns.c.id.in_(b)) for b in batched(turn_ids))
        return [turn_id for query in queries for turn_id in connection.scalars(query)]


def _worded(connection: sa.Connection, wish_ids: Collection[str]) -> list[str]:
    query = sa.select(wishes.c.turn_id).where(wishes.c.turn_id.in_(wish_ids), wishes.c.text != "")
    return list(connection.scalars(query))


def strip_samples(
    connection: sa.Connection, turn_ids: Collection[str], unsaid: Collection[str] = ()
) -> list[str]:
    """Remove examples that came from these turns from other samples; returns the samples left empty.

    ``unsaid`` are turns that stay but lose their next state: wishes made there are removed, too.
    """
    gone, unwished = frozenset(turn_ids), frozenset(unsaid)

    def stays(source: Json) -> bool:
        wished = source.get("wish_ids", ())
        return gone.isdisjoint([*source["turn_ids"], *wished]) and unwished.isdisjoint(wished)

    queries = [made_from(batch) for batch in batched(gone)]
    queries += [made_from(batch, (WISH,)) for batch in batched(unwished)]
    found = {sample for query in queries for sample in connection.scalars(query)}
    return [sample for sample in sorted(found) if _strip(connection, sample, stays)]


def _strip(connection: sa.Connection, sample: str, stays: Callable[[Json], bool]) -> bool:
    """Returns whether a sample that had examples has none left."""
    mine = samples.c.turn_id == sample
    data = connection.scalar(sa.select(samples.c.data).where(mine))
    if data is None:
        return False
    left, strength = keep_examples(data, stays)
    connection.execute(samples.update().where(mine).values(data=left, strength=strength))
    return left is None
