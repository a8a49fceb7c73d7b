from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.connect.client import ROOMY, Edit, ServerAddress
from openclaw_rl.connect.json_file import Tree, parse, to_text

_PROVIDER = "openai-compatible"
_EMPTY: Tree = {"version": 1, "modes": {}}


class Cline:
    """The command line has a settings file; no command can change the editor extension's settings."""

    title = "Cline"

    def explain(self, server: ServerAddress) -> str:
        room = f"\n\nIts prompt is 5.4k tokens long; this server's {server.context_length} leave little room."
        return f"""\
On the command line (or run this command with --write, which also says how long the context is):
  cline auth -p {_PROVIDER} -b {server.base_url} -k {server.key} -m {server.model}

In an editor: Cline → Settings → API Configuration
  API Provider       OpenAI Compatible
  Base URL           {server.base_url}
  API Key            {server.key}
  Model ID           {server.model}
  Context Window     {server.context_length}
  Max Output Tokens  {server.max_tokens}{room if server.context_length < ROOMY else ""}"""

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        folder = Path(os.environ.get("CLINE_DATA_DIR") or home / ".cline" / "data")
        return (_providers(folder / "settings" / "providers.json", server),)


def _providers(path: Path, server: ServerAddress) -> Edit:
    """One provider among others. Cline updates its date; it is ours as long as it points at this server."""
    ours = {
        "provider": _PROVIDER,
        "apiKey": server.key,
        "model": server.model,
        "baseUrl": server.base_url,
        "contextWindow": server.context_length,
        "maxTokens": server.max_tokens,
    }

    def apply(text: str) -> str:
        tree = {**_EMPTY, **parse(path, text)}
        known = tree.setdefault("providers", {})
        settings = known.get(_PROVIDER, {}).get("settings", {})
        if tree.get("lastUsedProvider") == _PROVIDER and ours.items() <= settings.items():
            return text
        updated = known.get(_PROVIDER, {}).get("updatedAt", "1970-01-01T00:00:00.000Z")
        known[_PROVIDER] = {"settings": ours, "updatedAt": updated, "tokenSource": "manual"}
        tree["lastUsedProvider"] = _PROVIDER
        return to_text(tree)

    def remove(text: str, original: str) -> str:
        tree, before = parse(path, text), parse(path, original)
        known = tree.get("providers", {})
        if known.get(_PROVIDER, {}).get("settings", {}).get("baseUrl") != server.base_url:
            return text
        _put_back(known, before.get("providers", {}), _PROVIDER)
        if tree.get("lastUsedProvider") == _PROVIDER:
            _put_back(tree, before, "lastUsedProvider")
        is_empty = not known and not original and {**tree, "providers": {}} == {**_EMPTY, "providers": {}}
        return "" if is_empty else to_text(tree)

    return Edit(path, apply, remove)


def _put_back(now: Tree, before: Tree, key: str) -> None:
    if key in before:
        now[key] = before[key]
    else:
        del now[key]
