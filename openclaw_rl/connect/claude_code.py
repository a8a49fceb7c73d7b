from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import ROOMY, Edit, ServerAddress
from openclaw_rl.connect.json_file import json_entries


class ClaudeCode:
    """Uses the messages dialect; its settings can hold environment variables."""

    title = "Claude Code"

    def explain(self, server: ServerAddress) -> str:
        lines = "\n".join(f"export {name}={value}" for name, value in self._variables(server).items())
        return f"{lines}\nclaude{_SMALL.format(server.context_length) if _is_small(server) else ''}"

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        entries: dict[tuple[str, ...], str] = {
            ("env", name): value for name, value in self._variables(server).items()
        }
        folder = Path(os.environ.get("CLAUDE_CONFIG_DIR") or home / ".claude")
        return (json_entries(folder / "settings.json", entries),)

    def _variables(self, server: ServerAddress) -> dict[str, str]:
        models = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
                  "ANTHROPIC_DEFAULT_HAIKU_MODEL")  # fmt: skip
        return {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": server.key,
            **dict.fromkeys(models, server.model),
            # For a model that it does not know, it assumes a context of a million tokens.
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context_length),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.max_tokens),
            # Turned off: this line at the start of the prompt differs between conversations, so nothing
            # after it could be reused from the cache.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **({"CLAUDE_CODE_SIMPLE": "1"} if _is_small(server) else {}),
        }


_SMALL = """

CLAUDE_CODE_SIMPLE is what 'claude --bare' sets: three tools, a short prompt, no hooks, plugins or CLAUDE.md.
The usual prompt is 12k to 20k tokens; this server's context is {}."""


def _is_small(server: ServerAddress) -> bool:
    return server.context_length < ROOMY
