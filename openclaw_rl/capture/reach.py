"""Finds the content that turns need: every message, body and token block reachable from a turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched

_temporary = sa.MetaData()


def _list_table(name: str, column: sa.Column[Any]) -> sa.Table:
    return sa.Table(name, _temporary, column, prefixes=["TEMPORARY"])


#: The sessions that ``mark`` leaves out.
left_out = _list_table("left_out", sa.Column("session", schema.Number, primary_key=True))
#: Content table -> its needed hashes; valid on the connection that ran ``mark``.
NEEDED = {
    table: _list_table(f"needed_{table.name}", sa.Column("hash", schema.Hash, primary_key=True))
    for table in (schema.nodes, schema.bodies, schema.blocks)
}


def mark(connection: sa.Connection, without_sessions: Iterable[int] = ()) -> None:
    """Fill ``NEEDED``, as if some sessions did not exist. Missing rows are listed like any other."""
    _temporary.drop_all(connection, checkfirst=True)
    _temporary.create_all(connection, checkfirst=False)
    for batch in batched(without_sessions):
        connection.execute(left_out.insert(), [{"session": seq} for seq in batch])
    turns, nodes = schema.turns, schema.nodes
    kept = ~sa.exists().where(left_out.c.session == turns.c.session)
    _fill(connection, schema.nodes, _chains(schema.nodes, turns.c.node, kept))
    _fill(connection, schema.blocks, _chains(schema.blocks, turns.c.block, kept))
    needed = NEEDED[schema.nodes]
    parts = [sa.select(nodes.c.body).join(needed, needed.c.hash == nodes.c.hash)]
    parts += [
        sa.select(c).where(c.is_not(None), kept) for c in (turns.c.tools, turns.c.params, turns.c.reply)
    ]
    _fill(connection, schema.bodies, sa.union(*parts))


def _chains(table: sa.Table, end: sa.Column[Any], kept: sa.ColumnElement[bool]) -> sa.Select[Any]:
    walk = sa.select(end.label("hash")).where(end.is_not(None), kept).cte(recursive=True)
    parents = sa.select(table.c.parent).join(walk, walk.c.hash == table.c.hash)
    return sa.select(walk.union(parents.where(table.c.parent.is_not(None))))


def _fill(connection: sa.Connection, table: sa.Table, hashes: sa.SelectBase) -> None:
    needed = NEEDED[table]
    connection.execute(needed.insert().from_select(["hash"], hashes))
    if connection.dialect.name == "postgresql":
        # Otherwise the planner assumes that the new table is small, and the next query never ends.
        connection.exec_driver_sql(f"ANALYZE {needed.name}")


def missing(table: sa.Table) -> sa.Select[Any]:
    """Hashes that are needed but missing."""
    needed = NEEDED[table]
    return sa.select(needed.c.hash).where(~sa.exists().where(table.c.hash == needed.c.hash))


def unneeded(table: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Columns of the rows that nothing needs."""
    needed = NEEDED[table]
    return sa.select(*columns).where(~sa.exists().where(needed.c.hash == table.c.hash))
