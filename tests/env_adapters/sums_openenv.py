"""An environment of OpenEnv with tools, as its authors would write it, and its server."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Sums(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("sums")
        self._wanted, self._said = 0, None

        @mcp.tool
        def answer(number: int) -> str:
            """Says the sum."""
            self._said = number
            return "right" if number == self._wanted else "wrong"

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Observation:
        self._wanted, self._said = (seed or 0) + 1, None
        return Observation(done=False, reward=0.0, metadata={"question": f"What is {seed} plus 1?"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        return Observation(done=False, reward=0.0)

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        seen = await super().step_async(action, timeout_s=timeout_s, **more)
        if isinstance(action, CallToolAction) and self._said is not None:
            seen.done, seen.reward = True, float(self._said == self._wanted)
        return seen

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    app = create_app(Sums, CallToolAction, CallToolObservation, env_name="sums", max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
