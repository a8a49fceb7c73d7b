from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import Edit, Server
from openclaw_rl.connect.files import block


class Codex:
    """Speaks the responses dialect; a profile of our own leaves the user's other settings alone."""

    title = "Codex CLI"

    def explain(self, server: Server) -> str:
        return f"""\
Put this into ~/.codex/config.toml (or run this command with --write):

{self._lines(server)}

Then: codex --profile openclaw-rl"""

    def edits(self, server: Server, home: Path) -> Sequence[Edit]:
        return (block(home / ".codex" / "config.toml", self._lines(server)),)

    def _lines(self, server: Server) -> str:
        return f"""\
[model_providers.openclaw-rl]
name = "OpenClaw-RL"
base_url = "{server.base_url}"
wire_api = "responses"
http_headers = {{ Authorization = "Bearer {server.key}" }}

[profiles.openclaw-rl]
model_provider = "openclaw-rl"
model = "{server.model}"
model_context_window = {server.context_length}"""
