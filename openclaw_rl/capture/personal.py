"""Exports everything about one user as an archive: sessions, verdicts, samples and wishes."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path

import sqlalchemy as sa

from openclaw_rl.capture.conversations import export_conversations
from openclaw_rl.capture.learn_ledger import verdicts
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.samples import samples
from openclaw_rl.capture.transfer import export_sessions
from openclaw_rl.capture.wish_view import view_wishes
from openclaw_rl.types import Json
from openclaw_rl.users import Person

_MANY = 1_000_000
_ABOUT = """Everything that this server holds about one person.

sessions.jsonl  conversations, one a line, with every token
conversations.jsonl  those of the Responses API, with their items
events.jsonl    what became known of a reply later: what followed it, ratings
verdicts.jsonl  what was thought of each reply, and the hints drawn from it
samples.jsonl   what each reply taught, and in which version
wishes.json     what was asked for, for good, and what became of it
settings.json   group, limits, whether anything is kept

Keys are not part of it, nor are weights: a version is numbers that no sentence can be read from.
"""


def export_person(ledgers: Ledgers, user: str, person: Person, path: Path) -> int:
    """Write the archive; returns the number of turns in it."""
    text = io.StringIO()
    export_sessions(ledgers.serve, text, user)
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    turn_ids = [turn["id"] for session in lines for turn in session["turns"]]
    wishes = view_wishes(ledgers, user, "off", _MANY)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        path.chmod(0o600)
        archive.writestr("README.txt", _ABOUT)
        archive.writestr("sessions.jsonl", text.getvalue())
        archive.writestr("conversations.jsonl", _lines(export_conversations(ledgers.serve, user)))
        archive.writestr("events.jsonl", _lines(_events(ledgers, turn_ids)))
        archive.writestr("verdicts.jsonl", _lines(_rows(ledgers, verdicts, turn_ids)))
        archive.writestr("samples.jsonl", _lines(_rows(ledgers, samples, turn_ids)))
        archive.writestr("wishes.json", json.dumps(wishes, indent=1))
        archive.writestr("settings.json", json.dumps({"user": user, **asdict(person)}, indent=1))
    return len(turn_ids)


def _events(ledgers: Ledgers, turn_ids: list[str]) -> list[Json]:
    return [asdict(event) for turn_id in turn_ids for event in ledgers.serve.events_of(turn_id)]


def _rows(ledgers: Ledgers, table: sa.Table, turn_ids: list[str]) -> list[Json]:
    columns = [column for column in table.c if column.name != "data"]
    found: list[Json] = []
    with ledgers.learn.db.connect() as connection:
        for turn_id in turn_ids:
            rows = connection.execute(sa.select(*columns).where(table.c.turn_id == turn_id))
            found += [dict(row._mapping) for row in rows]
    return found


def _lines(rows: list[Json]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
