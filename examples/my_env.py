"""A custom environment: sums of several numbers, with a calculator tool that adds two.

    openclaw-rl train --env my_env:Sums

The agent calls ``add`` as often as it likes, up to the step limit, and finally states the total.
"""

import json
import random
import re

from openclaw_rl.types import Message, Observation, Outcome, StepResult, Task, Tool

ADD: Tool = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
MAX_STEPS = 10


def numbers(task: Task) -> list[int]:
    rng = random.Random(task.data["seed"])
    return [rng.randrange(100, 1000) for _ in range(task.data["length"])]


class Sums:
    def __init__(self) -> None:
        self._task: Task | None = None
        self._steps, self._said = 0, ""

    def tasks(self) -> list[Task]:
        return [Task(f"sum-{seed}", {"seed": seed, "length": 3 + seed % 3}) for seed in range(100)]

    async def reset(self, task: Task) -> Observation:
        self._task, self._steps, self._said = task, 0, ""
        asked = f"What is {' + '.join(map(str, numbers(task)))}? End with the number."
        return Observation([{"role": "user", "content": asked}], [ADD])

    async def step(self, action: Message) -> StepResult:
        if self._task is None:
            raise RuntimeError("reset comes first")
        self._steps += 1
        done = self._steps >= MAX_STEPS
        if calls := action.get("tool_calls"):
            results = [{"role": "tool", "tool_call_id": call["id"], "content": _call(call)} for call in calls]
            return StepResult(Observation(results, [ADD]), done)
        self._said = action.get("content") or ""
        if self._is_right():
            return StepResult(Observation([]), done=True)
        hint = "Add the numbers two by two with the tool, then say the last result."
        again: Message = {"role": "user", "content": "That is not it. Try again."}
        return StepResult(Observation([again], [ADD]), done, hint)

    async def evaluate(self) -> Outcome:
        solved = self._is_right()
        return Outcome(1.0 if solved else -1.0, solved, {"steps": self._steps})

    async def close(self) -> None:
        self._task = None

    def _is_right(self) -> bool:
        found = re.findall(r"\d+", self._said.replace(",", ""))
        return self._task is not None and bool(found) and int(found[-1]) == sum(numbers(self._task))


def _call(call: dict[str, str]) -> str:
    """Errors are returned as text for the agent to read."""
    try:
        if call["name"] != "add":
            return f"error: there is no tool {call['name']}; there is: add"
        given = json.loads(call["arguments"])
        return str(int(given["a"]) + int(given["b"]))
    except (ValueError, KeyError, TypeError) as error:
        return f"error: add wants a and b, two integers ({error})"
