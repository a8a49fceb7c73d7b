from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.connect.client import Edit, ServerAddress
from openclaw_rl.connect.files import block
from openclaw_rl.connect.json_file import Entry, json_entries

_NAMES = ("model", "openai-api-base", "openai-api-key")
_LIMITS = ".aider.model.metadata.json"


class Aider:
    """Uses chat completions through LiteLLM, hence the prefix of the model's name.

    Without the model's limits it would look them up on the web and not know when to summarise.
    """

    title = "aider"

    def explain(self, server: ServerAddress) -> str:
        return f"""\
export OPENAI_API_BASE={server.base_url}
export OPENAI_API_KEY={server.key}
aider --model {self._model(server)}

The model's limits go into ~/{_LIMITS} (--write puts them there):
{json.dumps({self._model(server): self._limits(server)})}"""

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        values = (self._model(server), server.base_url, server.key)
        lines = "\n".join(f"{name}: {value}" for name, value in zip(_NAMES, values, strict=True))
        path = home / ".aider.conf.yml"
        limits = Entry((self._model(server),), self._limits(server), prefix="")
        return (
            block(path, lines, lambda rest: self._check(path, rest)),
            json_entries(home / _LIMITS, [limits]),
        )

    def _model(self, server: ServerAddress) -> str:
        return f"openai/{server.model}"

    def _limits(self, server: ServerAddress) -> dict[str, Any]:
        return {
            "max_input_tokens": server.context_length,
            "max_output_tokens": server.max_tokens,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }

    def _check(self, path: Path, rest: str) -> None:
        if taken := re.search(rf"^({'|'.join(_NAMES)}):", rest, re.MULTILINE):
            raise ValueError(f"{path} sets '{taken[1]}' already; take that line out first")
