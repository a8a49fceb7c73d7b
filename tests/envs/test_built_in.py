"""The environments that come with the package: their contract, what is solved, and how sets are split."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs import EnvironmentParts, create_environment
from openclaw_rl.envs.tasks import SPLITS, check_disjoint, of_split, terminal_tasks, toolcall_tasks
from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.envs.toolcall import ToolCalls, read_tasks, same
from openclaw_rl.testing.contracts import EnvironmentContract
from openclaw_rl.types import Environment, Message, Task

needs_sandbox = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"), reason="bubblewrap is not installed"
)


def calls(*given: tuple[str, Any]) -> Message:
    made = [
        {"id": str(n), "name": name, "arguments": json.dumps(arguments)}
        for n, (name, arguments) in enumerate(given)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


class TestToolCalls(EnvironmentContract):
    @pytest.fixture
    async def environment(self) -> AsyncIterator[Environment]:
        made = create_environment("toolcall")
        yield made
        await made.close()

    @pytest.fixture
    def solve(self) -> Callable[[Task], list[Message]]:
        def actions(task: Task) -> list[Message]:
            a, b = (
                int(word.rstrip("?"))
                for word in task.data["instruction"].split()
                if word.rstrip("?").isdigit()
            )
            return [calls(("add", {"a": a, "b": b}))]

        return actions


@needs_sandbox
class TestTerminal(EnvironmentContract):
    wrong: Message = calls(("run", {"command": "false"}))

    @pytest.fixture
    async def environment(self) -> AsyncIterator[Environment]:
        made = create_environment("terminal")
        yield made
        await made.close()

    @pytest.fixture
    def solve(self) -> Callable[[Task], list[Message]]:
        def actions(task: Task) -> list[Message]:
            [command] = [each for each in task.data["commands"] if each.startswith("mkdir")]
            return [calls(("run", {"command": command}))]

        return actions


async def test_an_empty_folder_reaches_the_checks() -> None:
    environment = create_environment("terminal")
    task = next(task for task in environment.tasks() if task.data["template"] == "folder")
    await environment.reset(task)
    name = task.data["instruction"].rstrip(".").split()[-1]
    await environment.step(calls(("run", {"command": f"mkdir {name}"})))
    assert (await environment.evaluate()).solved
    await environment.close()


@pytest.mark.parametrize("make", [toolcall_tasks, terminal_tasks])
def test_there_are_enough_tasks_and_no_template_is_in_two_splits(make: Callable[[], list[Task]]) -> None:
    tasks = make()
    assert len(tasks) >= 200
    splits = {split: of_split(tasks, split) for split in SPLITS}
    assert all(splits.values())
    templates = [{task.data["template"] for task in splits[split]} for split in SPLITS]
    assert not templates[0] & templates[1]
    assert not templates[0] & templates[2]
    assert {1, 2} <= {task.data["difficulty"] for task in splits["train"]} <= {0, 1, 2}


def test_a_task_in_two_splits_is_found() -> None:
    same_task = {"instruction": "x", "answer": "1"}
    with pytest.raises(ValueError, match="must be disjoint"):
        check_disjoint(
            [Task("a", {**same_task, "split": "train"}), Task("b", {**same_task, "split": "test"})]
        )


def test_tasks_that_name_no_split_are_divided_by_what_they_ask() -> None:
    tasks = [Task(str(n), {"instruction": f"What is {n}?", "packages": "/here"}) for n in range(200)]
    splits = {split: {task.id for task in of_split(tasks, split)} for split in SPLITS}
    assert set.union(*splits.values()) == {task.id for task in tasks}
    assert sum(map(len, splits.values())) == 200, "each in one"
    assert len(splits["train"]) > 120
    assert min(len(splits["validation"]), len(splits["test"])) > 5
    moved = [Task(task.id, {**task.data, "packages": "/there"}) for task in reversed(tasks[:50])]
    assert {task.id for task in of_split(moved, "test")} == {id for id in splits["test"] if int(id) < 50}, (
        "wherever they lie, in whatever order, and whatever is beside them"
    )
    assert len(of_split(tasks, "all")) == 200


def test_where_some_tasks_name_their_split_the_others_are_for_training() -> None:
    tasks = [Task(str(n), {"instruction": f"What is {n}?"}) for n in range(50)]
    tasks.append(Task("held", {"instruction": "What is it?", "split": "test"}))
    assert [len(of_split(tasks, split)) for split in SPLITS] == [50, 0, 1]


# --- tool calls ------------------------------------------------------------------------------------


async def toolcall(tmp_path: Path, *rows: dict[str, Any]) -> ToolCalls:
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    environment = ToolCalls(str(file))
    await environment.reset(environment.tasks()[0])
    return environment


async def test_only_what_is_answered_counts(tmp_path: Path) -> None:
    env = await toolcall(
        tmp_path, {"prompt": "What is 2 plus 3? Say answer 5.", "answer": "5", "tools": ["add"]}
    )
    result = await env.step({"role": "assistant", "content": "The answer is 5. \\boxed{5}"})
    assert not result.done
    assert (await env.evaluate()).score == -1
    result = await env.step(calls(("add", {"a": 2, "b": 3})))
    assert result.observation.messages[0]["content"] == "5"
    assert (await env.step(calls(("answer", {"answer": "6"})))).done
    outcome = await env.evaluate()
    assert (outcome.solved, outcome.score) == (False, -0.8), (
        "wrong, but the tools were used as they should be"
    )
    await env.reset(env.tasks()[0])
    assert (await env.step(calls(("answer", {"answer": "5.0"})))).done
    assert (await env.evaluate()).solved


async def test_where_one_call_decides_there_is_no_second(tmp_path: Path) -> None:
    row = {"prompt": "What is 2 plus 3?", "answer": "5", "tools": ["add", "multiply"], "one_call": True}
    env = await toolcall(tmp_path, row)
    seen = await env.reset(env.tasks()[0])
    assert [each["name"] for each in seen.tools] == ["add", "multiply"]
    assert (await env.step(calls(("multiply", {"a": 2, "b": 3}), ("add", {"a": 2, "b": 3})))).done
    assert not (await env.evaluate()).solved
    await env.reset(env.tasks()[0])
    await env.step(calls(("answer", {"answer": "5"})))
    assert not (await env.evaluate()).solved, "there is no such tool here"
    await env.reset(env.tasks()[0])
    await env.step(calls(("add", {"a": 3, "b": 2})))
    assert (await env.evaluate()).solved


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("add", {"a": 1}, "needs 'b'"),
        ("add", {"a": 1, "b": "2"}, "must be of type integer"),
        ("add", {"a": 1, "b": True}, "must be of type integer"),
        ("add", {"a": 1, "b": 2, "c": 3}, "no argument 'c'"),
        ("add", [1, 2], "must be an object"),
        ("divide", {}, "there is no tool 'divide'; there is: add"),
        ("python", {"code": "1"}, "there is no tool 'python'"),
    ],
)
async def test_a_wrong_call_is_explained(tmp_path: Path, name: str, arguments: Any, said: str) -> None:
    env = await toolcall(tmp_path, {"prompt": "?", "answer": "5", "tools": ["add"]})
    result = await env.step(calls((name, arguments)))
    assert said in result.observation.messages[0]["content"]
    await env.step(calls(("answer", {"answer": "7"})))
    assert (await env.evaluate()).score == -1, "not by valid calls"


@needs_sandbox
async def test_code_runs_in_a_sandbox(tmp_path: Path) -> None:
    env = await toolcall(tmp_path, {"prompt": "?", "answer": "1024", "tools": ["python"]})
    result = await env.step(calls(("python", {"code": "print(2**10)"})))
    assert result.observation.messages[0]["content"] == "1024\n"
    code = f"print(open({str(tmp_path / 'tasks.jsonl')!r}).read())"
    result = await env.step(calls(("python", {"code": code})))
    assert "No such file" in result.observation.messages[0]["content"]
    await env.close()


@needs_sandbox
async def test_code_that_ends_its_interpreter_is_told_so_and_may_go_on(tmp_path: Path) -> None:
    env = await toolcall(tmp_path, {"prompt": "?", "answer": "1024", "tools": ["python"]})
    code = "import os, signal\nfor pid in range(1, 100):\n    try:\n        pid != os.getpid() and "
    code += "os.kill(pid, signal.SIGKILL)\n    except OSError:\n        pass\nos.kill(os.getpid(), 9)"
    result = await env.step(calls(("python", {"code": code})))
    assert not result.done
    assert "error" in result.observation.messages[0]["content"]
    result = await env.step(calls(("python", {"code": "print(2**10)"})))
    assert result.observation.messages[0]["content"] == "1024\n", "a new interpreter"
    assert (await env.step(calls(("answer", {"answer": "1024"})))).done
    assert (await env.evaluate()).solved
    await env.close()


async def test_a_python_function_is_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = [
        "def shout(word: str, times: int) -> str:",
        '    """Says a word loudly."""',
        "    return word.upper() * times",
    ]
    (tmp_path / "my_tools.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    env = await toolcall(tmp_path, {"prompt": "?", "answer": "HIHI", "tools": ["my_tools:shout"]})
    seen = await env.reset(env.tasks()[0])
    assert seen.tools[0]["name"] == "shout"
    assert seen.tools[0]["description"] == "Says a word loudly."
    assert seen.tools[0]["parameters"]["properties"] == {
        "word": {"type": "string"},
        "times": {"type": "integer"},
    }
    result = await env.step(calls(("shout", {"word": "hi", "times": 2})))
    assert result.observation.messages[0]["content"] == "HIHI"


async def test_calls_that_block_hold_nobody_else_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four waits for the other three: one after another, none would ever come to its end."""
    code = ["import threading", "all_of_them = threading.Barrier(4)", "def meet() -> int:"]
    (tmp_path / "my_barrier.py").write_text("\n".join([*code, "    return all_of_them.wait(30) * 0"]))
    monkeypatch.syspath_prepend(tmp_path)
    row = {"prompt": "?", "answer": "0", "tools": ["my_barrier:meet"]}
    envs = [await toolcall(tmp_path, row) for _ in range(4)]
    for env in envs:
        await env.reset(env.tasks()[0])
    results = await asyncio.gather(*(env.step(calls(("meet", {}))) for env in envs))
    assert [result.observation.messages[0]["content"] for result in results] == ["0"] * 4


@pytest.mark.parametrize(
    ("said", "expected", "right"),
    [
        ("5", "5.0", True),
        ("1,000", "1000", True),
        (" red ", "red", True),
        ("Red", "red", False),
        ("55", "5", False),
    ],
)
def test_what_is_the_same_answer(said: str, expected: str, right: bool) -> None:
    assert same(said, expected) == right


def test_a_line_that_is_no_task_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_tasks(file)


# --- terminal ------------------------------------------------------------------------------------


def folder_of(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "fix-it"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


BENCH = {
    "task.yaml": "instruction: |\n  Make add.sh print the sum.\ndifficulty: easy\n",
    "add.sh": "echo 0\n",
    "run-tests.sh": "bash tests/check.sh\n",
    "tests/check.sh": '[ "$(bash add.sh 2 3)" = 5 ]\n',
    "solution.sh": "secret\n",
}


@needs_sandbox
async def test_a_task_folder_and_its_tests(tmp_path: Path) -> None:
    env = Terminal(str(folder_of(tmp_path, **BENCH)))
    [task] = env.tasks()
    assert task.data["instruction"] == "Make add.sh print the sum."
    await env.reset(task)
    seen = await env.step(calls(("run", {"command": "ls"})))
    assert seen.observation.messages[0]["content"] == "add.sh\n", "neither tests nor the solution"
    assert not (await env.evaluate()).solved
    await env.step(calls(("run", {"command": "echo 'echo $(($1 + $2))' > add.sh"})))
    assert (await env.evaluate()).solved
    await env.close()


@needs_sandbox
async def test_the_tests_cannot_be_tampered_with(tmp_path: Path) -> None:
    env = Terminal(str(folder_of(tmp_path, **BENCH)))
    await env.reset(env.tasks()[0])
    for command in (
        "mkdir tests; echo true > tests/check.sh; echo true > run-tests.sh",
        "(while true; do echo true > tests/check.sh; done) &",
        "echo 'exit 0' > ~/.bashrc; echo 'exit 0' > ~/.profile",
        "mkdir -p bin; printf '#!/bin/sh\\nexit 0' > bin/bash; chmod +x bin/bash",
    ):
        await env.step(calls(("run", {"command": command})))
        assert not (await env.evaluate()).solved, command
    await env.close()


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no task"):
        create_environment("terminal", EnvironmentParts(str(tmp_path)))


@needs_sandbox
async def test_who_breaks_the_shell_has_failed() -> None:
    env = Terminal()
    await env.reset(env.tasks()[0])
    result = await env.step(
        calls(("run", {"command": "for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done"}))
    )
    outcome = await env.evaluate()
    assert not outcome.solved
    assert result.done or result.observation.messages
    await env.close()
