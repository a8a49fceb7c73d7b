from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import Edit, Server


class Cline:
    """Keeps its settings inside the editor, where no command can reach them."""

    title = "Cline"

    def explain(self, server: Server) -> str:
        return f"""\
In the editor: Cline → Settings → API Configuration
  API Provider       OpenAI Compatible
  Base URL           {server.base_url}
  API Key            {server.key}
  Model ID           {server.model}
  Context Window     {server.context_length}
  Max Output Tokens  {server.max_tokens}

Its own prompt is long: it needs a context of 32k tokens or more; this server has {server.context_length}."""

    def edits(self, server: Server, home: Path) -> Sequence[Edit]:
        return ()
