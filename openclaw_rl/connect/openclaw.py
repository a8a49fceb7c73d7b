from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.connect.client import Edit, ServerAddress
from openclaw_rl.connect.json_file import Entry, json_entries

_ID = "openclaw-rl"
_PLUGIN = Path(__file__).parent / "openclaw_plugin"
#: OpenClaw's usual prompt is about 15k tokens before the first message.
_ROOMY = 32_768


class OpenClaw:
    """Uses chat completions. Our plugin is copied next to its settings, so that deleting our venv cannot
    break it; everything also works without the plugin.
    """

    title = "OpenClaw"

    def explain(self, server: ServerAddress) -> str:
        tree: dict[str, Any] = {}
        for entry in self._entries(server):
            if entry.how == "listed":
                continue
            table = tree
            for key in entry.keys[:-1]:
                table = table.setdefault(key, {})
            table[entry.keys[-1]] = entry.value
        return f"""\
Put this into ~/.openclaw/openclaw.json (or run this command with --write, which also installs a plugin):

{json.dumps(tree, indent=2)}

Then: openclaw agent --local --agent main --message "Hello" """.rstrip()

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        state = Path(os.environ.get("OPENCLAW_STATE_DIR") or home / ".openclaw")
        settings = Path(os.environ.get("OPENCLAW_CONFIG_PATH") or state / "openclaw.json")
        plugin = state / f"{_ID}-plugin"
        entries = [*self._entries(server), *self._plugin_entries(plugin)]
        # Settings first: if they cannot be changed, nothing is.
        return (json_entries(settings, entries), *(_copy(file, plugin) for file in sorted(_PLUGIN.iterdir())))

    def _entries(self, server: ServerAddress) -> list[Entry]:
        name = f"{_ID}/{server.model}"
        return [
            Entry(("models", "providers", _ID), self._provider(server), prefix=""),
            Entry(("agents", "defaults", "model", "primary"), name, prefix=f"{_ID}/"),
            Entry(("agents", "defaults", "models"), name, "listed"),
            *(_lean() if server.context_length < _ROOMY else ()),
        ]

    def _provider(self, server: ServerAddress) -> dict[str, Any]:
        return {
            "baseUrl": server.base_url,
            "apiKey": server.key,
            "api": "openai-completions",
            # A long prompt takes a small machine a while to process.
            "timeoutSeconds": 900,
            "models": [
                {
                    "id": server.model,
                    "name": server.model,
                    "reasoning": False,
                    "input": ["text"],
                    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                    "contextWindow": server.context_length,
                    "maxTokens": min(server.max_tokens, server.context_length // 8),
                    "compat": {
                        "sendSessionAffinityHeaders": True,
                        "supportsPromptCacheKey": True,
                        "maxTokensField": "max_tokens",
                        "requiresStringContent": True,
                    },
                }
            ],
        }

    def _plugin_entries(self, plugin: Path) -> list[Entry]:
        entry = ("plugins", "entries", _ID)
        return [
            Entry(("plugins", "load", "paths"), str(plugin), "member"),
            # A list of allowed plugins excludes all others, so we add ours to one but never create one.
            Entry(("plugins", "allow"), _ID, "listed"),
            # The user may have settings of the plugin here; they are removed only with the plugin.
            Entry(entry, {}, "default", prefix=""),
            Entry((*entry, "enabled"), True),
            # The hook that reports what started a run could also read the conversation; ours does not.
            Entry((*entry, "hooks", "allowConversationAccess"), True),
        ]


def _lean() -> list[Entry]:
    """A prompt of about 3.5k tokens, for a small context; the user's own settings are kept."""
    defaults: dict[tuple[str, ...], Any] = {
        ("agents", "defaults", "contextInjection"): "never",
        ("agents", "defaults", "skills"): [],
        ("agents", "defaults", "experimental", "localModelLean"): True,
        # The usual mode audits the summaries and asks again, which small models always fail.
        ("agents", "defaults", "compaction", "mode"): "default",
        ("tools", "allow"): ["read", "write", "edit", "exec"],
        ("tools", "toolSearch"): False,
    }
    return [Entry(keys, value, "default") for keys, value in defaults.items()]


def _copy(file: Path, folder: Path) -> Edit:
    text = file.read_text(encoding="utf-8")
    return Edit(folder / file.name, lambda there: text, lambda there, original: "", own_folder=True)
