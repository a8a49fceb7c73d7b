"""The environment's contract, against the example; and how environments are found."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs import ENVIRONMENTS, create_environment
from openclaw_rl.testing.contracts import EnvironmentContract
from openclaw_rl.types import Environment, Message, Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_env.py"


@pytest.fixture
def my_env(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLE.parent)])
    return importlib.import_module("my_env")


class TestExample(EnvironmentContract):
    @pytest.fixture
    async def environment(self, my_env: Any) -> AsyncIterator[Environment]:
        environment = create_environment("my_env:Sums")
        yield environment
        await environment.close()

    @pytest.fixture
    def solve(self, my_env: Any) -> Callable[[Task], list[Message]]:
        def actions(task: Task) -> list[Message]:
            first, *others = my_env.numbers(task)
            made: list[Message] = []
            for other in others:
                call = {"id": "1", "name": "add", "arguments": json.dumps({"a": first, "b": other})}
                made.append({"role": "assistant", "content": "", "tool_calls": [call]})
                first += other
            return [*made, {"role": "assistant", "content": f"It is {first}."}]

        return actions


async def test_a_tool_gives_its_result(my_env: Any) -> None:
    environment = create_environment("my_env:Sums")
    await environment.reset(environment.tasks()[0])
    call = {"id": "7", "name": "add", "arguments": '{"a": 2, "b": 3}'}
    result = await environment.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert result.observation.messages == [{"role": "tool", "tool_call_id": "7", "content": "5"}]


def test_an_unknown_environment_is_named(monkeypatch: pytest.MonkeyPatch, my_env: Any) -> None:
    monkeypatch.setitem(ENVIRONMENTS, "sums", my_env.Sums)
    assert isinstance(create_environment("sums"), my_env.Sums)
    with pytest.raises(ValueError, match=r"unknown environment 'sum'; known: toolcall, .*, sums, or pkg"):
        create_environment("sum")


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 120
