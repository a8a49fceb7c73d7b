from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import Edit, ServerAddress


class ShellVariables:
    """Programs that read the usual variables: both SDKs, LangChain, pydantic-ai, and most scripts."""

    title = "plain environment variables"

    def explain(self, server: ServerAddress) -> str:
        return f"""\
export OPENAI_BASE_URL={server.base_url}
export OPENAI_API_KEY={server.key}
export OPENAI_MODEL={server.model}
export ANTHROPIC_BASE_URL={server.url}
export ANTHROPIC_API_KEY={server.key}
export ANTHROPIC_MODEL={server.model}"""

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        return ()
