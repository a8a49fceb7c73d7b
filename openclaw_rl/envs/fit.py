"""Checks before the first episode whether the server supports what the agent needs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import httpx

from openclaw_rl.envs.rollout import Agent, connect
from openclaw_rl.types import Json


async def fit_agent(agent: Agent, env: str, transport: httpx.AsyncBaseTransport | None = None) -> Agent:
    """The agent adapted to what the server supports; ValueError, with the remedy, if it cannot be."""
    engine = await _engine(agent, transport)
    if engine.get("reads_pictures") is False and shows_pictures(env):
        raise ValueError(
            "SCREENSHOT_BACKEND=screenshot shows pictures to the model, and this one reads text only: "
            "SCREENSHOT_BACKEND=tree"
        )
    if engine.get("forces_calls") is False and agent.force_calls:
        note = "this engine follows no grammars: replies are not forced to be calls of a tool"
        print(note, file=sys.stderr)
        return replace(agent, force_calls=False)
    return agent


def shows_pictures(env: str) -> bool:
    return env == "gui" and os.environ.get("SCREENSHOT_BACKEND") == "screenshot"


async def _engine(agent: Agent, transport: httpx.AsyncBaseTransport | None) -> Json:
    """The server's description of its engine; empty if the server is not one of ours."""
    async with connect(agent, 1, transport) as http:
        try:
            answer = await http.get("/status")
            found: Json = answer.raise_for_status().json()["engine"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return {}
    return found
