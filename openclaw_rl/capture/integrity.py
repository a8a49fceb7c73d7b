"""Integrity check of the ledger: the database's own, then ours on links, hashes and counters."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from openclaw_rl.capture import reach, schema
from openclaw_rl.capture.content import digest
from openclaw_rl.capture.database import read_snapshot

#: (table, column, the table whose ``seq`` it names)
_LINKS = (
    (schema.turns, "session", schema.sessions),
    (schema.turn_keys, "turn", schema.turns),
    (schema.deliveries, "turn", schema.turns),
)


def find_damage(engine: sa.Engine) -> list[str]:
    """Problems, one line each, from one consistent snapshot; empty if there are none."""
    with read_snapshot(engine) as connection:
        own = []
        if engine.dialect.name == "sqlite":
            own = list(connection.exec_driver_sql("PRAGMA integrity_check").scalars())
        return [
            *(line for line in own if line != "ok"),
            *_dangling(connection),
            *_altered(connection),
            *_miscounted(connection),
        ]


def _dangling(connection: sa.Connection) -> Iterator[str]:
    for table, column, target in _LINKS:
        found = sa.exists().where(target.c.seq == table.c[column])
        query = sa.select(sa.func.count()).select_from(table).where(~found)
        if number := connection.scalar(query):
            yield f"{number} rows of {table.name} lack their {column}"
    # Content that no turn needs may be partly deleted: an interrupted prune leaves it, the next one finishes.
    reach.mark(connection)
    for table in reach.NEEDED:
        lost = reach.missing(table).subquery()
        if number := connection.scalar(sa.select(sa.func.count()).select_from(lost)):
            yield f"{number} rows of {table.name} that turns need are missing"


def _altered(connection: sa.Connection) -> Iterator[str]:
    """Content whose hash is not the one it is stored under."""
    streaming = connection.execution_options(yield_per=1000)
    bodies, nodes, blocks = schema.bodies.c, schema.nodes.c, schema.blocks.c
    altered = {
        "bodies": sum(
            digest(b"body", body) != key
            for key, body in streaming.execute(sa.select(bodies.hash, bodies.body))
        ),
        "nodes": sum(
            digest(b"node", parent or b"", body) != key
            for key, parent, body in streaming.execute(sa.select(nodes.hash, nodes.parent, nodes.body))
        ),
        "blocks": sum(
            digest(b"block", parent or b"", ids) != key
            for key, parent, ids in streaming.execute(sa.select(blocks.hash, blocks.parent, blocks.ids))
        ),
    }
    yield from (f"{number} rows of {name} were altered" for name, number in altered.items() if number)


def _miscounted(connection: sa.Connection) -> Iterator[str]:
    counters = schema.read_counters(connection)
    for table in (schema.sessions, schema.turns):
        number = connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
        if number != counters[table.name]:
            yield f"{table.name} are counted as {counters[table.name]}, but there are {number}"
