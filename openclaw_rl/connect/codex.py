from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import ROOMY, Edit, ServerAddress
from openclaw_rl.connect.files import block
from openclaw_rl.text import toml_string

_NAME = "openclaw-rl"


class Codex:
    """Uses the responses dialect; a profile is a separate file that overrides the user's settings."""

    title = "Codex CLI"

    def explain(self, server: ServerAddress) -> str:
        return f"""\
Put this into ~/.codex/{_NAME}.config.toml (or run this command with --write):

{self._lines(server)}

Then: codex --profile {_NAME}"""

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        folder = Path(os.environ.get("CODEX_HOME") or home / ".codex")
        return (block(folder / f"{_NAME}.config.toml", self._lines(server)),)

    def _lines(self, server: ServerAddress) -> str:
        return f"""\
model = {toml_string(server.model)}
model_provider = "{_NAME}"
model_context_window = {server.context_length}
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.{_NAME}]
name = "OpenClaw-RL"
base_url = "{server.base_url}"
wire_api = "responses"
http_headers = {{ Authorization = "Bearer {server.key}" }}
# Reading a long prompt takes a small machine a while.
stream_idle_timeout_ms = 900000

[analytics]
enabled = false{_LEAN if server.context_length < ROOMY else ""}"""


#: Turns off what a small context has no room for; the prompt is then about 4.5k tokens.
_LEAN = """

[features]
goals = false
multi_agent = false
view_image = false

[skills]
include_instructions = false"""
