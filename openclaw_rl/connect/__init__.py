"""``openclaw-rl connect CLIENT``: how to point a program at this server, said or done.

A new client is a file beside this and a line in ``CLIENTS``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from openclaw_rl.connect import files
from openclaw_rl.connect.aider import Aider
from openclaw_rl.connect.claude_code import ClaudeCode
from openclaw_rl.connect.client import Client, Server
from openclaw_rl.connect.cline import Cline
from openclaw_rl.connect.codex import Codex
from openclaw_rl.connect.environment import Environment
from openclaw_rl.connect.open_webui import OpenWebUI
from openclaw_rl.connect.openclaw import OpenClaw

CLIENTS: dict[str, Client] = {
    "openclaw": OpenClaw(),
    "env": Environment(),
    "claude-code": ClaudeCode(),
    "codex": Codex(),
    "aider": Aider(),
    "open-webui": OpenWebUI(),
    "cline": Cline(),
}


def run(
    name: str,
    server: Server,
    say: Callable[[str], None],
    *,
    write: bool = False,
    undo: bool = False,
    home: Path | None = None,
) -> None:
    """Print the set-up, write it, or take it back. ``home`` is where the client keeps its settings."""
    client = CLIENTS[name]
    if not write and not undo:
        say(client.explain(server))
        return
    edits = client.edits(server, home or Path.home())
    if not edits:
        raise ValueError(f"{client.title} has no settings file; 'openclaw-rl connect {name}' says what to do")
    for edit in edits:
        (files.undo if undo else files.write)(edit, say)
