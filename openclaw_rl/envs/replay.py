"""Replays: an episode step by step, for people to review; one JSON file each, only the newest are kept.

The ledger has the model's prompts and replies. A replay adds what the ledger lacks: the result of the last
action, the facts behind the outcome, and pictures that the agent did not see.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.types import Json, Message, Observation, Outcome, Task

KEPT = 200
_MOST_CHARS = 20_000


@dataclass
class Replay:
    """Filled while the episode runs."""

    task: Task
    steps: list[Json] = field(default_factory=list)

    def add(self, action: Message | None, seen: Observation) -> None:
        picture = base64.b64encode(seen.picture).decode() if seen.picture else None
        self.steps.append({"action": action, "seen": _plain(seen.messages), "picture": picture})

    def write(
        self, folder: Path, session_id: str, outcome: Outcome | None, failure: str, reason: str
    ) -> None:
        """Written atomically; deletes the oldest files beyond ``KEPT``."""
        folder.mkdir(parents=True, exist_ok=True)
        ended = None
        if outcome is not None:
            ended = {"score": outcome.score, "solved": outcome.solved, "facts": outcome.facts}
        data = self.task.data
        task: Json = {name: data[name] for name in ("split", "template", "difficulty") if name in data}
        row = {
            "session_id": session_id, "task": {"id": self.task.id, **task}, "steps": self.steps,
            "outcome": ended, "failure": failure, "reason": reason,
        }  # fmt: skip
        path = folder / f"{session_id}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(row, default=str))
        os.replace(part, path)
        known = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in known[:-KEPT]:
            old.unlink(missing_ok=True)


def _plain(messages: Sequence[Message]) -> list[Json]:
    return [{"role": each["role"], "content": _text(each.get("content"))[:_MOST_CHARS]} for each in messages]


def _text(content: Any) -> str:
    if isinstance(content, list):  # has pictures, which are stored separately
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""
