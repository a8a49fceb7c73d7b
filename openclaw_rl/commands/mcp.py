"""``openclaw-rl mcp``: Model Context Protocol tools with which agents can query what was learned.

A server over standard input and output, built with the official SDK (``pip install 'openclaw-rl[mcp]'``). It
uses the public API with one key, so it can see and change what that key's user may.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from urllib.parse import quote

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config
from openclaw_rl.types import BASE_VERSION, Json

SKILL = Path(__file__).with_name("SKILL.md")
_MOST_QUESTIONS, _MOST_TOKENS = 5, 200


def run(options: argparse.Namespace, config: Config) -> int:
    if options.skill:
        print(SKILL.read_text(encoding="utf-8"), end="")
        return 0
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        raise ValueError("this needs the official SDK: pip install 'openclaw-rl[mcp]'") from None
    with ServerClient.chosen(options, config) as server:
        tools = Tools(server)
        program: Any = MCPServer("openclaw-rl")
        for tool in (tools.what_have_you_learned, tools.forget_wish, tools.pause_wish, tools.which_version,
                     tools.evaluate):  # fmt: skip
            program.tool()(tool)
        program.run("stdio")
    return 0


class Tools:
    """Each public method is a tool; its docstring is the description that agents see."""

    def __init__(self, server: ServerClient) -> None:
        self._server = server

    def what_have_you_learned(self) -> list[dict[str, str]]:
        """What this person asked for in earlier conversations, in their words, and whether it works now."""
        return [_told(wish) for wish in self._server.get("/v1/wishes")["data"] if wish["state"] != "over"]

    def forget_wish(self, wish_id: str) -> str:
        """Forget one thing that was learned, for good, with the turns it came from. Ask the person first."""
        receipt = self._server.delete(f"/v1/wishes/{quote(wish_id, safe='')}")
        return f"forgotten, with {receipt['num_turns']} turns; what was learned from them is being unlearned"

    def pause_wish(self, wish_id: str, paused: bool = True) -> str:
        """Stop (or resume) what was learned for one wish, without forgetting it."""
        wish = self._server.patch(f"/v1/wishes/{quote(wish_id, safe='')}", {"paused": paused})
        return f"{wish['text']}: {wish['state']}"

    def which_version(self) -> dict[str, Any]:
        """Which version of the model answers this person now; 0 is the unchanged base model."""
        status = self._server.get("/v1/status")
        names = ("model", "policy_version", "scope", "status", "busy")
        return {**{name: status[name] for name in names}, "learning": bool(status["learn"])}

    def evaluate(self, questions: list[str] | None = None) -> dict[str, Any]:
        """How good first replies were, by version; and up to five questions, answered by base and version."""
        learning, version = self._server.get("/v1/learning"), self._server.get("/v1/status")["policy_version"]
        asked = (questions or [])[:_MOST_QUESTIONS]
        return {
            "first_replies_right": learning["first_replies"],
            "judged_turns": learning["rewards"]["turns"],
            "answers": [self._compare(question, version) for question in asked],
        }

    def _compare(self, question: str, version: int) -> Json:
        versions = sorted({BASE_VERSION, version})
        body = {"prompt": question, "versions": versions, "max_tokens": _MOST_TOKENS, "seed": 0}
        said = dict.fromkeys(versions, "")
        with self._server.stream("/v1/compare", body) as (_, events):
            for event in events:
                if "text" in event:
                    said[event["version"]] += event["text"]
        return {"question": question, **{f"version {v}": text for v, text in said.items()}}


def _told(wish: Json) -> dict[str, str]:
    learned = f" (version {wish['learned_in']})" if wish["learned_in"] else ""
    why = f": {wish['reason']}" if wish["reason"] else ""
    times = "once" if wish["times"] == 1 else f"{wish['times']} times"
    return {"id": wish["id"], "wish": wish["text"], "asked": times, "state": f"{wish['state']}{learned}{why}"}
