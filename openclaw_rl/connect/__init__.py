"""``openclaw-rl connect CLIENT``: prints or writes the settings that point a program at this server.

A new client is one file in this folder and one line in ``CLIENTS``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from openclaw_rl.connect import files
from openclaw_rl.connect.aider import Aider
from openclaw_rl.connect.claude_code import ClaudeCode
from openclaw_rl.connect.client import Client, ServerAddress
from openclaw_rl.connect.cline import Cline
from openclaw_rl.connect.codex import Codex
from openclaw_rl.connect.environment import ShellVariables
from openclaw_rl.connect.open_webui import OpenWebUI
from openclaw_rl.connect.openclaw import OpenClaw

CLIENTS: dict[str, Client] = {
    "openclaw": OpenClaw(),
    "env": ShellVariables(),
    "claude-code": ClaudeCode(),
    "codex": Codex(),
    "aider": Aider(),
    "open-webui": OpenWebUI(),
    "cline": Cline(),
}

#: Clients that send ``store: false`` with every request.
_SENDS_STORE_FALSE = ("codex",)
_LEARNED = (
    "# This client sends store: false. Its turns are kept here and learned from, and not given out by id;\n"
    "# --store-false off-the-record keeps nothing of them."
)
_NOT_KEPT = (
    "# This client sends store: false: nothing is kept or learned (--store-false not-retrievable: all is)."
)
_OFF_THE_RECORD = (
    "# This key's user is off the record: nothing is kept or learned ('openclaw-rl users record NAME on' "
    "undoes it)."
)


def run(
    name: str,
    server: ServerAddress,
    say: Callable[[str], None],
    *,
    write: bool = False,
    undo: bool = False,
    home: Path | None = None,
) -> None:
    """Print the set-up, write it, or undo it. ``home`` is where the client keeps its settings."""
    client = CLIENTS[name]
    if server.off_the_record and not undo:
        say(_OFF_THE_RECORD)
    elif name in _SENDS_STORE_FALSE and not undo:
        say(_LEARNED if server.keeps_store_false else _NOT_KEPT)
    if not write and not undo:
        say(client.explain(server))
        return
    edits = client.edits(server, home or Path.home())
    if not edits:
        raise ValueError(f"{client.title} has no settings file; 'openclaw-rl connect {name}' says what to do")
    for edit in edits:
        (files.undo if undo else files.write)(edit, say)
