"""ShareGPT: ``{"conversations": [{"from": "human", "value": "…"}, …]}``."""

from __future__ import annotations

from openclaw_rl.types import Json

_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
          "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "model": "assistant"}  # fmt: skip


def recognises(rows: list[Json]) -> bool:
    said = rows[0].get("conversations")
    return isinstance(said, list) and bool(said) and isinstance(said[0], dict) and "from" in said[0]


def read(rows: list[Json]) -> list[Json]:
    """Another speaker, such as a tool, ends a conversation: nothing says what its part belongs to."""
    return [{"messages": _messages(row)} for row in rows if isinstance(row.get("conversations"), list)]


def _messages(row: Json) -> list[Json]:
    found: list[Json] = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for part in row["conversations"]:
        role = _ROLES.get(str(part.get("from")).lower())
        if role is None:
            break
        found.append({"role": role, "content": str(part.get("value") or "")})
    return found
