from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import Edit, Server
from openclaw_rl.connect.files import block

_NAMES = ("model", "openai-api-base", "openai-api-key")


class Aider:
    """Speaks chat completions through LiteLLM, hence the prefix of the model's name."""

    title = "aider"

    def explain(self, server: Server) -> str:
        return f"""\
export OPENAI_API_BASE={server.base_url}
export OPENAI_API_KEY={server.key}
aider --model openai/{server.model}"""

    def edits(self, server: Server, home: Path) -> Sequence[Edit]:
        values = (f"openai/{server.model}", server.base_url, server.key)
        lines = "\n".join(f"{name}: {value}" for name, value in zip(_NAMES, values, strict=True))
        path = home / ".aider.conf.yml"
        return (block(path, lines, lambda rest: self._check(path, rest)),)

    def _check(self, path: Path, rest: str) -> None:
        if taken := re.search(rf"^({'|'.join(_NAMES)}):", rest, re.MULTILINE):
            raise ValueError(f"{path} sets '{taken[1]}' already; take that line out first")
