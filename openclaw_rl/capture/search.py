"""Full-text search for sessions: an index next to the ledger, filled in the background.

The index is a separate SQLite file whatever the ledger is, may be deleted at any time, and holds no
text, only words and the numbers of turns. It follows the ledger by number; a prune makes it start over,
so that deleted text is gone here as well.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.rows import load_bodies
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.texts import plain_text

_PAGE = 200
_MAX_HITS = 2000
_WORD = re.compile(r"\w+")


class SearchIndex:
    def __init__(self, path: Path, ledger: ServeLedger) -> None:
        self._path, self._ledger = path, ledger
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def follow(self) -> int:
        """Index turns stored since the last call, at most a page; returns how many."""
        with self._lock:
            db = self._open()
            generation = self._ledger.counts()["generation"]
            last, known = db.execute("SELECT last, generation FROM state").fetchone()
            if known != generation:
                db, last = self._begin_anew(), 0
            rows = self._read(last)
            db.executemany("INSERT INTO words(rowid, user, text) VALUES (?, ?, ?)", rows)
            last = rows[-1][0] if rows else last
            db.execute("UPDATE state SET last = ?, generation = ?", (last, generation))
            db.commit()
            return len(rows)

    def find(self, query: str, user: str | None, limit: int, skip: int = 0) -> list[str]:
        """Ids of sessions with a turn that contains all of the words, newest hit first."""
        words = [f'text:"{word}"*' for word in _WORD.findall(query)]
        if not words:
            return []
        if user is not None:
            words.append(f'user:"{_hex(user)}"')
        with self._lock:
            hits = self._open().execute(
                "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?",
                (" AND ".join(words), _MAX_HITS),
            )
            seqs = [row[0] for row in hits]
        return self._sessions(seqs)[skip : skip + limit]

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _begin_anew(self) -> sqlite3.Connection:
        """Start over in a new file: deleted words could still be read from the old one."""
        if self._db is not None:
            self._db.close()
            self._db = None
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return self._open()

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            db = sqlite3.connect(self._path, check_same_thread=False)
            self._path.chmod(0o600)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")  # rebuilt if a power cut destroys it
            db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(user, text, content='')")
            db.execute("CREATE TABLE IF NOT EXISTS state (last INTEGER, generation INTEGER)")
            if db.execute("SELECT count(*) FROM state").fetchone()[0] == 0:
                db.execute("INSERT INTO state VALUES (0, 0)")
                db.commit()  # or it would stay locked for every other process until the next page
            self._db = db
        return self._db

    def _read(self, last: int) -> list[tuple[int, str, str]]:
        """The last message and the reply of each turn after number ``last``."""
        turns, nodes = schema.turns, schema.nodes
        query = (
            sa.select(turns.c.seq, turns.c.user, turns.c.reply, nodes.c.body)
            .outerjoin(nodes, nodes.c.hash == turns.c.node)
            .where(turns.c.seq > last)
            .order_by(turns.c.seq)
            .limit(_PAGE)
        )
        with self._ledger.db.connect() as connection:
            rows = connection.execute(query).all()
            keys = {key for row in rows for key in (row.reply, row.body) if key is not None}
            bodies = load_bodies(connection, keys)
        return [
            (row.seq, _hex(row.user), " ".join(_words(bodies.get(key)) for key in (row.body, row.reply)))
            for row in rows
        ]

    def _sessions(self, seqs: Sequence[int]) -> list[str]:
        """In the order of the hits, each once; deleted turns are left out."""
        turns, sessions = schema.turns, schema.sessions
        found: dict[int, str] = {}
        with self._ledger.db.connect() as connection:
            for start in range(0, len(seqs), 500):
                query = sa.select(turns.c.seq, sessions.c.id)
                query = query.join(sessions, sessions.c.seq == turns.c.session)
                batch = query.where(turns.c.seq.in_(seqs[start : start + 500]))
                found.update((row.seq, row.id) for row in connection.execute(batch))
        return list(dict.fromkeys(found[seq] for seq in seqs if seq in found))


def _words(body: bytes | None) -> str:
    if body is None:
        return ""
    message = json.loads(body)
    return plain_text(message) if isinstance(message, dict) else ""


def _hex(user: str) -> str:
    """The user's name as one word, whatever it contains."""
    return "u" + user.encode("utf-8", "surrogatepass").hex()


def renew_index(home: Path, ledger: ServeLedger) -> None:
    """Remove what was pruned or forgotten from the index, at once."""
    if (path := home / "search.db").exists():
        index = SearchIndex(path, ledger)
        while index.follow():
            pass
        index.close()
