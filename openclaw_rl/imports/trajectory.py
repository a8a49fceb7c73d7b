"""Trajectories without tokens: ``{"session_id", "turns": [{"prompt", "response", "next_state"}]}``.

Our own export, which holds the exact tokens, is imported as it is (``data import``) and never gets here.
"""

from __future__ import annotations

from typing import Any

from openclaw_rl.imports.blocks import text_of
from openclaw_rl.types import Json


def recognises(rows: list[Json]) -> bool:
    turns = rows[0].get("turns")
    return isinstance(turns, list) and bool(turns) and "response" in turns[0]


def read(rows: list[Json]) -> list[Json]:
    """The last main turn has the whole history in its prompt."""
    found = []
    for row in rows:
        main = [turn for turn in row.get("turns", ()) if turn.get("type", "main") != "side"]
        if main:
            last = main[-1]
            said = [*_messages(last.get("prompt"), "user"), *_messages(last.get("response"), "assistant"),
                    *_messages(last.get("next_state"), "user")]  # fmt: skip
            found.append({"messages": said, **({"user": row["user"]} if row.get("user") else {})})
    return found


def _messages(value: Any, role: str) -> list[Json]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    parts = [value] if isinstance(value, dict) else value or []
    return [{"role": role, **part, "content": text_of(part.get("content"))} for part in parts]
