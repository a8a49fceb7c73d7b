"""Environments on other machines: each is a Ray actor (``pip install 'openclaw-rl[ray]'``).

The pool, with its leases and operation ids, stays local; only the environments run remotely. An actor is
never restarted and its calls are never retried: one that dies has failed and is replaced. This package,
what its environments need (bubblewrap, Chromium, repositories) and the task files must be on every machine.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from openclaw_rl.envs import EnvironmentParts, create_environment
from openclaw_rl.types import Environment, Message, Observation, Outcome, StepResult, Task

#: Variables that environments read; actors get the local values.
_VARIABLES = ("SCREENSHOT_BACKEND", "SWE_BENCH_PATH", "TOOLS_CONFIG", "OPENCLAW_RL_SANDBOX")


def connect(address: str) -> None:
    """To a cluster, ``ray://HOST:10001``; without a host, to this machine's cluster, or a new one."""
    ray = _ray()
    if not ray.is_initialized():
        given = {} if address in ("ray", "ray://") else {"address": address}
        ray.init(**given, log_to_driver=False, include_dashboard=None if given else False)


class RayEnvironment:
    """An environment that runs in a Ray actor."""

    def __init__(self, name: str, parts: EnvironmentParts) -> None:
        ray = _ray()
        variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        made = ray.remote(_Actor).options(
            num_cpus=0, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD",
            runtime_env={"env_vars": variables} if variables else None,
        )  # fmt: skip
        self._actor, self._parts, self._name = made.remote(name, parts), parts, name

    def tasks(self) -> list[Task]:
        return create_environment(self._name, self._parts).tasks()

    async def reset(self, task: Task) -> Observation:
        found: Observation = await self._actor.reset.remote(task)
        return found

    async def step(self, action: Message) -> StepResult:
        found: StepResult = await self._actor.step.remote(action)
        return found

    async def evaluate(self) -> Outcome:
        found: Outcome = await self._actor.evaluate.remote()
        return found

    async def close(self) -> None:
        """An actor that fails to close is killed, with everything it holds."""
        try:
            await self._actor.close.remote()
        except BaseException:
            await asyncio.to_thread(_ray().kill, self._actor)
            raise


class _Actor:
    """The remote side."""

    def __init__(self, name: str, parts: EnvironmentParts) -> None:
        self._environment: Environment = create_environment(name, parts)

    async def reset(self, task: Task) -> Observation:
        return await self._environment.reset(task)

    async def step(self, action: Message) -> StepResult:
        return await self._environment.step(action)

    async def evaluate(self) -> Outcome:
        return await self._environment.evaluate()

    async def close(self) -> None:
        await self._environment.close()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("environments on other machines need Ray: pip install 'openclaw-rl[ray]'") from None
    return ray
