"""Without a sandbox: only where asked for; what a command leaves running or written goes with it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from openclaw_rl.envs.containers import VARIABLE
from openclaw_rl.envs.sandbox import Limits, Sandbox
from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.envs.unsandboxed import is_unsandboxed
from openclaw_rl.testing import until


@pytest.fixture(autouse=True)
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")


def test_it_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_unsandboxed()
    monkeypatch.delenv(VARIABLE)
    assert not is_unsandboxed()


async def test_files_commands_and_results_are_as_in_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    async with Sandbox({"a/b.txt": b"hi\n"}, Limits(seconds=1)) as sandbox:
        ran = await sandbox.run("cat a/b.txt; mkdir empty; exit 3")
        assert (ran.code, ran.output) == (3, "hi\n")
        assert "SECRET_KEY" not in (await sandbox.run("env")).output
        assert (await sandbox.run("sleep 20")).timed_out
        assert dict(await sandbox.take(folders=True)) == {"a/b.txt": b"hi\n", "empty/": b""}


async def test_nothing_is_left() -> None:
    async with Sandbox() as sandbox:
        folder = Path((await sandbox.run("pwd")).output.strip()).parent
        left = (await sandbox.run("sleep 300 & echo $!")).output
        assert folder.is_dir()
    assert not folder.exists()
    await until(lambda: is_gone(int(left)), "it is killed")


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_a_command_that_runs_when_it_closes_ends_with_it() -> None:
    """An attempt is cancelled when the time of a run is up."""
    sandbox = await Sandbox(limits=Limits(seconds=600)).__aenter__()
    folder = Path((await sandbox.run("pwd")).output.strip())
    running = asyncio.create_task(sandbox.run("sleep 300 & echo $! > pid.new; mv pid.new pid; wait"))
    await until((folder / "pid").exists, "the command runs")
    pid = int((folder / "pid").read_text())
    running.cancel()
    await sandbox.close()
    await until(lambda: is_gone(pid), "it is killed")
    assert not folder.exists()


async def test_tasks_that_need_more_than_a_folder_are_refused() -> None:
    with pytest.raises(ValueError, match="install bubblewrap"):
        await Sandbox(folders=["/tests"]).__aenter__()


async def test_a_terminal_task_is_solved() -> None:
    environment = Terminal()
    task = next(task for task in environment.tasks() if task.data["template"] == "folder")
    await environment.reset(task)
    name = task.data["instruction"].rstrip(".").split()[-1]
    arguments = f'{{"command": "mkdir {name}"}}'
    call = {"id": "1", "name": "run", "arguments": arguments}
    await environment.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert (await environment.evaluate()).solved
    await environment.close()
    assert not os.path.exists(name)
