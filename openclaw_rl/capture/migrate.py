"""Schema migrations of both databases: numbered SQL files, each run once, in order.

``migrations/<database>/0003_name.sql`` upgrades a database from version 2 to 3; if SQLite and PostgreSQL
differ, there are two files, ``0003_name.sqlite.sql`` and ``0003_name.postgresql.sql``. Files are never
edited, only added. The tables in ``schema.py``, ``learn_ledger.py`` and ``samples.py`` define the newest
version, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from openclaw_rl.errors import written_by_newer

_FOLDER = Path(__file__).with_name("migrations")


@dataclass(frozen=True, slots=True)
class Migrations:
    """The migrations of one database, and the table that holds its version."""

    folder: Path
    table: str

    def run(self, connection: sa.Connection) -> int:
        """Upgrade the database to the newest version, in the caller's transaction; returns that version."""
        versions = sa.Table(self.table, sa.MetaData(), sa.Column("version", sa.Integer, primary_key=True))
        versions.create(connection, checkfirst=True)
        current: int = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar() or 0
        files = self._files(connection.dialect.name)
        if current > len(files):
            known = f"schema {current}, this one knows {len(files)}"
            raise written_by_newer(connection.engine.url.database, known)
        for file in files[current:]:
            for statement in file.read_text().split(";\n"):
                if statement.strip():
                    connection.exec_driver_sql(statement)
            current += 1
            connection.execute(versions.insert().values(version=current))
        return current

    def _files(self, dialect: str) -> list[Path]:
        other = {"sqlite": "postgresql", "postgresql": "sqlite"}[dialect]
        files = sorted(file for file in self.folder.glob("*.sql") if f".{other}." not in file.name)
        numbers = [int(file.name[:4]) for file in files]
        assert numbers == list(range(1, len(files) + 1)), f"{self.folder} lacks a migration: {numbers}"
        return files


#: Turns and their events, written by the serve process.
SERVE = Migrations(_FOLDER / "serve", "schema_version")
#: Verdicts, samples and policies, written by the learn process. Its first schema had no version number.
LEARN = Migrations(_FOLDER / "learn", "learn_schema_version")
