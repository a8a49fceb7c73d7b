"""Numbers of verdicts: none is given twice, also after the newest verdict was deleted.

PostgreSQL sees to that itself. SQLite gives the number of a deleted newest row again, and a reader that has
seen it would never see the new row.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

#: Mark of the highest number that a deleted verdict had.
LAST = "last_verdict"
_SEEN = (LAST, "cursor_verdicts")


def newest(connection: sa.Connection, column: sa.Column[int], marks: Mapping[str, float]) -> int:
    """The highest number in the table, or that a reader has seen."""
    stored = int(connection.scalar(sa.select(sa.func.max(column))) or 0)
    return max(stored, *(int(marks[name]) for name in _SEEN))


def next_number(
    connection: sa.Connection, column: sa.Column[int], marks: Mapping[str, float]
) -> dict[str, int]:
    """The value for the next row's column; none where the database chooses it."""
    if connection.dialect.name != "sqlite":
        return {}
    return {column.name: newest(connection, column, marks) + 1}
