"""Readable text: titles of sessions, and the text of turns. A few queries per page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.normalise import is_ephemeral, strip_ephemeral
from openclaw_rl.capture.rows import load_bodies, load_chains, walk
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.text import well_formed
from openclaw_rl.types import Json

_TITLE_CHARS = 120


def session_titles(ledger: ServeLedger, session_ids: Sequence[str]) -> dict[str, str]:
    """The last message of each session's first request, without the client's injected context."""
    sessions, turns = schema.sessions, schema.turns
    titles: dict[str, str] = {}
    with ledger.db.connect() as connection:
        for batch in batched(session_ids):
            firsts = sa.select(sa.func.min(turns.c.seq).label("seq"), sessions.c.id)
            firsts = firsts.join(sessions, sessions.c.seq == turns.c.session)
            first = firsts.where(sessions.c.id.in_(batch)).group_by(sessions.c.id).subquery()
            query = (
                sa.select(first.c.id, turns.c.node, schema.bodies.c.body)
                .join(turns, turns.c.seq == first.c.seq)
                .join(schema.nodes, schema.nodes.c.hash == turns.c.node)
                .join(schema.bodies, schema.bodies.c.hash == schema.nodes.c.body)
            )
            rows = connection.execute(query).all()
            titles.update((row.id, _title(json.loads(row.body))) for row in rows)
            # Claude Code appends a system message about its environment after the first question.
            for row in rows:
                if json.loads(row.body).get("role") == "system":
                    nodes = load_chains(connection, schema.nodes, "body", {row.node})
                    bodies = load_bodies(connection, {body for _, body in nodes.values()})
                    messages = [json.loads(bodies[key]) for key in walk(nodes, row.node)]
                    said = [_title(message) for message in messages if message.get("role") == "user"]
                    titles[row.id] = next(filter(None, reversed(said)), titles[row.id])
    return titles


def _title(message: Json) -> str:
    text = " ".join(strip_ephemeral(plain_text(message)).split())
    return text if len(text) <= _TITLE_CHARS else text[: _TITLE_CHARS - 1] + "…"


def turn_texts(ledger: ServeLedger, turn_ids: Sequence[str]) -> dict[str, Json]:
    """For each turn, what its request added to the conversation (``input``), and its ``reply``."""
    turns = schema.turns
    texts: dict[str, Json] = {}
    with ledger.db.connect() as connection:
        for batch in batched(turn_ids):
            columns = (turns.c.id, turns.c.node, turns.c.reply)
            rows = connection.execute(sa.select(*columns).where(turns.c.id.in_(batch))).all()
            nodes = load_chains(connection, schema.nodes, "body", {row.node for row in rows})
            bodies = load_bodies(connection, {body for _, body in nodes.values()} | {r.reply for r in rows})
            for row in rows:
                messages = [json.loads(bodies[key]) for key in walk(nodes, row.node)]
                texts[row.id] = {
                    "input": added(messages),
                    "reply": well_formed(json.loads(bodies[row.reply])),
                }
    return texts


def added(messages: Sequence[Json]) -> list[Json]:
    """What follows the last reply of a history, as role and plain text."""
    last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=-1)
    shown = [
        {"role": str(well_formed(message.get("role"))), "content": strip_ephemeral(plain_text(message))}
        for message in messages[last + 1 :]
        if not is_ephemeral({**message, "content": plain_text(message)})
    ]
    return [message for message in shown if message["content"].strip()]


def plain_text(message: Json) -> str:
    """A message's text in any dialect; parts that are not text are shown as their type."""
    return str(well_formed(_plain(message.get("content"))))


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(filter(None, map(_plain_part, content)))
    return content if isinstance(content, str) else ""


def _plain_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    text = part.get("text") or _plain(part.get("content"))
    return str(text) if text else f"[{part.get('type', 'part')}]"
