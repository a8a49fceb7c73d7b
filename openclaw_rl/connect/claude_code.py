from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import Edit, Server
from openclaw_rl.connect.json_file import json_entries


class ClaudeCode:
    """Speaks the messages dialect; its settings may carry variables."""

    title = "Claude Code"

    def explain(self, server: Server) -> str:
        lines = "\n".join(f"export {name}={value}" for name, value in self._variables(server).items())
        return f"""\
{lines}
claude

Its own prompt is long: it needs a context of 32k tokens or more; this server has {server.context_length}."""

    def edits(self, server: Server, home: Path) -> Sequence[Edit]:
        entries: dict[tuple[str, ...], str] = {
            ("env", name): value for name, value in self._variables(server).items()
        }
        return (json_entries(home / ".claude" / "settings.json", entries),)

    def _variables(self, server: Server) -> dict[str, str]:
        models = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
                  "ANTHROPIC_DEFAULT_HAIKU_MODEL")  # fmt: skip
        return {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": server.key,
            **dict.fromkeys(models, server.model),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.max_tokens),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
