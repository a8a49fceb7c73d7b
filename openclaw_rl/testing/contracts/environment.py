"""The Environment protocol."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.types import Environment, Message, Observation, Outcome, StepResult, Task, is_solved

pytestmark = pytest.mark.asyncio


class EnvironmentContract:
    """Fixtures: ``environment``, ready to reset, and closed afterwards; ``solve``, a function from a task to
    the actions that solve it. ``wrong`` is an action that solves no task."""

    wrong: Message = {"role": "assistant", "content": "I do not know."}  # noqa: RUF012
    max_steps = 50
    """An episode must be over after this many wrong actions."""

    @pytest.fixture
    async def began(self, environment: Environment) -> Observation:
        return await environment.reset(environment.tasks()[0])

    async def test_tasks_are_the_same_each_time(self, environment: Environment) -> None:
        tasks = environment.tasks()
        assert tasks
        assert tasks == environment.tasks()
        assert len({task.id for task in tasks}) == len(tasks)

    async def test_a_task_begins_the_same_way_each_time(self, environment: Environment) -> None:
        task = environment.tasks()[0]
        first = await environment.reset(task)
        await environment.step(self.wrong)
        assert await environment.reset(task) == first

    async def test_an_observation_is_plain_data(self, began: Observation) -> None:
        assert began.messages
        for message in began.messages:
            assert message["role"] in ("system", "user", "tool")
            assert isinstance(message["content"], str)
        for tool in began.tools:
            assert {"name", "description", "parameters"} <= set(tool)

    async def test_what_solves_a_task_is_scored_highest(self, environment: Environment, solve: Any) -> None:
        for task in environment.tasks()[:3]:
            outcome = await self._act(environment, task, solve(task))
            assert outcome.solved, task
            assert outcome.score == pytest.approx(1.0), task
            assert is_solved(outcome.score), task

    async def test_a_wrong_action_is_answered_and_not_rewarded(
        self, environment: Environment, began: Observation
    ) -> None:
        result = await environment.step(self.wrong)
        assert isinstance(result, StepResult)
        outcome = await environment.evaluate()
        assert not outcome.solved
        assert outcome.score >= -1
        assert not is_solved(outcome.score), "solved and the score say the same"

    async def test_a_call_of_no_tool_is_an_observation_not_an_error(
        self, environment: Environment, began: Observation
    ) -> None:
        calls = [{"id": "1", "name": "no_such_tool", "arguments": "{not json"}]
        result = await environment.step({"role": "assistant", "content": "", "tool_calls": calls})
        assert result.done or result.observation.messages

    async def test_an_episode_ends(self, environment: Environment, began: Observation) -> None:
        for _ in range(self.max_steps):
            if (await environment.step(self.wrong)).done:
                return
        pytest.fail(f"not done after {self.max_steps} wrong actions")

    async def test_evaluating_changes_nothing(self, environment: Environment, began: Observation) -> None:
        assert await environment.evaluate() == await environment.evaluate()

    async def test_acting_before_the_beginning_is_refused(self, environment: Environment) -> None:
        with pytest.raises(RuntimeError):
            await environment.step(self.wrong)

    async def test_it_may_be_closed_twice(self, environment: Environment) -> None:
        await environment.close()
        await environment.close()

    async def _act(self, environment: Environment, task: Task, actions: list[Message]) -> Outcome:
        await environment.reset(task)
        for action in actions:
            if (await environment.step(action)).done:
                break
        return await environment.evaluate()
