"""Imports conversations of other programs: one file per format, recognised by content, not by file name.

A reader turns the JSON values of a file into conversations: ``{"messages": […]}`` as in chat completions,
with ``scores`` (message index → -1 to 1) for rated replies. A new format is one file and one line here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from openclaw_rl.imports import claude_code, codex, messages, open_webui, openclaw, sharegpt, trajectory
from openclaw_rl.types import Json


@dataclass(frozen=True, slots=True)
class Format:
    title: str
    recognises: Callable[[list[Json]], bool]
    read: Callable[[list[Json]], list[Json]]


#: The first format that recognises a file reads it.
FORMATS: dict[str, Format] = {
    "openclaw": Format("OpenClaw", openclaw.recognises, openclaw.read),
    "claude-code": Format("Claude Code", claude_code.recognises, claude_code.read),
    "codex": Format("Codex", codex.recognises, codex.read),
    "open-webui": Format("Open WebUI", open_webui.recognises, open_webui.read),
    "sharegpt": Format("ShareGPT", sharegpt.recognises, sharegpt.read),
    "trajectory": Format("trajectories", trajectory.recognises, trajectory.read),
    "messages": Format("OpenAI's messages", messages.recognises, messages.read),
}


def read_text(text: str) -> tuple[str, list[Json]]:
    """The format's name, and the conversations that hold a reply. ValueError if no format matches."""
    rows = parse(text)
    name = next((name for name, each in FORMATS.items() if rows and each.recognises(rows)), None)
    if name is None:
        known = ", ".join(each.title for each in FORMATS.values())
        raise ValueError(f"no conversation of a known format is in it; known: {known}")
    return name, [each for each in FORMATS[name].read(rows) if _has_reply(each)]


def parse(text: str) -> list[Json]:
    """The objects of a JSON list, of JSON lines, or a single one. ValueError if it is none of these."""
    try:
        whole = json.loads(text)
        found = whole if isinstance(whole, list) else [whole]
    except RecursionError:
        raise ValueError("nested too deeply to be a conversation") from None
    except ValueError:
        found = _lines(text)
    return [row for row in found if isinstance(row, dict)]


def _lines(text: str) -> list[Json]:
    lines = [line for line in text.splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines) > 1:
                break  # the program was still writing this line, or was killed
            raise ValueError(f"neither JSON nor JSON lines: {error}") from None
    return found


def _has_reply(conversation: Json) -> bool:
    return any(m["role"] == "assistant" and m["content"] for m in conversation["messages"])
