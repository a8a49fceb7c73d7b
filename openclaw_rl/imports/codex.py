"""Codex's transcripts: ``~/.codex/sessions/<date>/rollout-….jsonl``, items of the Responses API."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from openclaw_rl.imports.blocks import call, joined, reply, text_of, tool_result
from openclaw_rl.types import Json, Message

#: Messages that the program writes in the user's name.
_NOT_SAID = ("<environment_context>", "<user_instructions>", "<permissions", "<turn_aborted>", "<skill",
             "# AGENTS.md instructions", "<collaboration_mode>", "<INSTRUCTIONS>")  # fmt: skip
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


def recognises(rows: list[Json]) -> bool:
    return any(row.get("type") in ("session_meta", "response_item") and "payload" in row for row in rows[:50])


def read(rows: list[Json]) -> list[Json]:
    items = [row["payload"] for row in rows if row.get("type") == "response_item"]
    said = [message for item in items if (message := _message(item)) is not None]
    return [{"messages": joined(said)}]


def _message(item: Json) -> Message | None:
    kind = item.get("type")
    if kind in _CALLS:
        return reply("", [call(item.get("call_id"), item.get("name"), item.get(_CALLS[kind]))])
    if kind in ("function_call_output", "custom_tool_call_output"):
        return tool_result(item.get("call_id"), _output(item.get("output")))
    if kind != "message":
        return None
    text = text_of(item.get("content"))
    if item.get("role") == "assistant":
        return reply(text)
    said = item.get("role") == "user" and text.strip() and not text.lstrip().startswith(_NOT_SAID)
    return {"role": "user", "content": text} if said else None


def _output(value: Any) -> str:
    """The text of a string, of blocks, or of a JSON object that holds it."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        value = value.get("output", value.get("content", ""))
    return text_of(value)
