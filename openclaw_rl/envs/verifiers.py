"""Environments of the ``verifiers`` library (before 0.4), as installed by ``pip``.

``tasks`` is an environment's name, as for ``load_environment``, or a JSON file ``{"id": …, "args": {…}}``.

Such an environment runs its own loop and asks a model for each reply. Here that control is inverted: the
model is our own endpoint, whose requests become observations and whose replies are the agent's actions.
This fails, with an error, for environments that rewrite earlier messages or hold several conversations at
once. What an environment runs is not in our sandbox.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from openclaw_rl.envs.endpoint import Endpoint
from openclaw_rl.envs.tasks import by_position
from openclaw_rl.plugins import load_object
from openclaw_rl.types import Json, Message, Observation, Outcome, StepResult, Task

_MOST_TASKS = 1000
_KEY = "OPENCLAW_RL_VERIFIERS_KEY"
#: Runs an episode: takes a task's data and the endpoint's URL, returns the reward.
Run = Callable[[Json, str], Coroutine[Any, Any, float]]


class Verifiers:
    """One episode at a time; the loaded environment is shared."""

    def __init__(self, tasks: str = "", max_steps: int = 30) -> None:
        self._loaded, self._max_steps = load(*read_name(tasks)), max_steps
        self._endpoint: Endpoint | None = None
        self._episode: asyncio.Task[float] | None = None
        self._asked: list[Json] = []
        self._steps = 0

    def tasks(self) -> list[Task]:
        return list(self._loaded.tasks)

    async def reset(self, task: Task) -> Observation:
        await self.close()
        self._asked, self._steps = [], 0
        self._endpoint = await Endpoint().open()
        self._episode = asyncio.create_task(self._loaded.run(task.data, self._endpoint.url))
        body = await self._request()
        if body is None:
            raise RuntimeError("the environment has ended before it asked for a reply")
        return self._observation(body, body["messages"])

    async def step(self, action: Message) -> StepResult:
        if self._endpoint is None:
            raise RuntimeError("reset comes first")
        if self._episode is None or self._episode.done():
            return StepResult(Observation([]), done=True)
        self._steps += 1
        self._endpoint.reply(action)
        body = await self._request()
        if body is None:
            return StepResult(Observation([]), done=True)
        told = body["messages"][len(self._asked) :]
        if body["messages"][: len(self._asked)] != self._asked or not _answers(told):
            raise RuntimeError(
                "this environment changes what was said before, or holds several conversations"
            )
        done = self._steps >= self._max_steps
        if done:
            await self._end()
        return StepResult(self._observation(body, told[1:]), done=done)

    def _observation(self, body: Json, messages: list[Json]) -> Observation:
        self._asked = body["messages"]
        tools = [each["function"] for each in body.get("tools") or [] if each.get("type") == "function"]
        plain = {"name": "", "description": "", "parameters": {"type": "object", "properties": {}}}
        return Observation([dict(each) for each in messages], [{**plain, **tool} for tool in tools])

    async def _request(self) -> Json | None:
        """The next request, or None when the episode is over; raises the episode's error."""
        assert self._endpoint is not None
        assert self._episode is not None
        waiting = asyncio.create_task(self._endpoint.requests.get())
        try:
            await asyncio.wait({waiting, self._episode}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if waiting.done() and not waiting.cancelled():
            return waiting.result()
        await self._episode
        return None

    async def evaluate(self) -> Outcome:
        """The episode's reward once it is over; 0 until then."""
        ended = self._episode is not None and self._episode.done() and not self._episode.cancelled()
        reward = self._episode.result() if ended and self._episode is not None else 0.0
        solved = reward >= 1.0
        score = 1.0 if solved else max(-1.0, min(2 * reward - 1, 0.99))
        return Outcome(score, solved, {"steps": self._steps, "reward": reward, "over": ended})

    async def _end(self) -> None:
        if (episode := self._episode) is not None and not episode.done():
            episode.cancel()
            await asyncio.gather(episode, return_exceptions=True)

    async def close(self) -> None:
        await self._end()
        self._episode = None
        if (endpoint := self._endpoint) is not None:
            self._endpoint = None
            await endpoint.close()


def _answers(told: list[Json]) -> bool:
    return bool(told) and told[0].get("role") == "assistant"


@dataclass(frozen=True)
class Loaded:
    """A ``verifiers`` environment: its tasks, and how to run an episode."""

    tasks: list[Task]
    run: Run


def read_name(tasks: str) -> tuple[str, str]:
    """The environment's name, and its arguments as JSON."""
    if not tasks:
        raise ValueError(
            'which environment of verifiers? --tasks NAME, or a JSON file {"id": …, "args": {…}}'
        )
    if not tasks.endswith(".json"):
        return tasks, "{}"
    try:
        found = json.loads(Path(tasks).read_text(encoding="utf-8"))
        return str(found["id"]), json.dumps(found.get("args", {}), sort_keys=True)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{tasks} is not {{"id": …, "args": {{…}}}}: {error}') from None


@lru_cache(maxsize=4)
def load(name: str, args: str) -> Loaded:
    """Loaded once and shared by parallel episodes."""
    try:
        import verifiers
    except ImportError:
        raise ValueError("environments of verifiers need it: pip install 'verifiers<0.4'") from None
    given = json.loads(args)
    if ":" in name:
        return _load(load_object("environment", name)(**given))
    if not hasattr(verifiers, "load_environment"):
        raise ValueError(
            "tasksets of this version of verifiers are not understood here: pip install 'verifiers<0.4'"
        )
    return _load(verifiers.load_environment(name, **given))


def _load(env: Any) -> Loaded:
    """Tasks are dataset rows; without an evaluation dataset, the training rows are divided into splits."""
    from verifiers.types import ClientConfig

    train = list(islice(env.get_dataset(), _MOST_TASKS))
    held = list(islice(env.get_eval_dataset(), _MOST_TASKS)) if env.eval_dataset is not None else []
    tasks = [Task(f"train-{n}", {"row": _plain(row), "split": "train"}) for n, row in enumerate(train)]
    if not held:
        tasks = [Task(task.id, {**task.data, "split": by_position(n)}) for n, task in enumerate(tasks)]
    tasks += [
        Task(f"eval-{n}", {"row": _plain(row), "split": ("validation", "test")[n % 2]})
        for n, row in enumerate(held)
    ]

    async def run(data: Json, url: str) -> float:
        client = ClientConfig(api_base_url=url, api_key_var=_KEY, max_retries=0)
        ended = await env.run_rollout(dict(data["row"]), client, "default", {})
        if ended.get("error"):
            raise RuntimeError(f"the environment failed: {ended['error']}")
        return float(ended["reward"])

    return Loaded(tasks, run)


def _plain(row: Any) -> Json:
    found: Json = json.loads(json.dumps(row, default=str))
    return found
