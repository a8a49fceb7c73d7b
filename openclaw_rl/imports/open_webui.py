"""Open WebUI's chat export: message trees, of which only the displayed branch is read, and ratings."""

from __future__ import annotations

from openclaw_rl.imports.blocks import branch, text_of
from openclaw_rl.types import Json

_ROLES = ("system", "user", "assistant")


def recognises(rows: list[Json]) -> bool:
    chat = rows[0].get("chat")
    return isinstance(chat, dict) and ("history" in chat or "messages" in chat)


def read(rows: list[Json]) -> list[Json]:
    return [_read(row["chat"]) for row in rows if isinstance(row.get("chat"), dict)]


def _read(chat: Json) -> Json:
    history = chat.get("history") or {}
    known = [{**message, "id": key} for key, message in (history.get("messages") or {}).items()]
    current = history.get("currentId")
    known.sort(key=lambda message: message["id"] == current)  # ``branch`` ends at the last: the displayed one
    shown = branch(known, "id", "parentId") if current else chat.get("messages") or []
    shown = [message for message in shown if message.get("role") in _ROLES]
    system = chat.get("system") or (chat.get("params") or {}).get("system")
    said = [{"role": "system", "content": system}] if system else []
    ratings = {
        len(said) + i: (message.get("annotation") or {}).get("rating") for i, message in enumerate(shown)
    }
    said += [{"role": message["role"], "content": text_of(message.get("content"))} for message in shown]
    scores = {place: rating for place, rating in ratings.items() if isinstance(rating, int | float)}
    return {"messages": said, **({"scores": scores} if scores else {})}
