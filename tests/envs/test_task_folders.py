"""Task folders of terminal-bench and Harbor: what is read of them, how they are graded, and whose fault it is
when they cannot be."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.envs.terminal_folders import read_folder
from openclaw_rl.types import Message, Outcome

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"), reason="bubblewrap is not installed"
)
REWARD = "/logs/verifier/reward"
INSTALLS = """#!/bin/bash
apt-get update >/dev/null 2>&1
apt-get install -y curl >/dev/null 2>&1
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
"""
GRADES = (
    "if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi"
)
CHECK = 'from pathlib import Path\n\n\ndef test_it():\n    assert Path("/app/done").read_text() == "yes\\n"\n'


@pytest.fixture
def tasks() -> Iterator[Path]:
    """Everybody may read it, because a sandbox that root begins belongs to nobody."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def lay(tasks: Path, files: Mapping[str, str | bytes]) -> None:
    for name, data in files.items():
        path = tasks / "fix-it" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)


def harbor(tasks: Path, test: str, **more: str | bytes) -> None:
    lay(tasks, {"instruction.md": "<!-- canary -->\nDo it.", "task.toml": "", "tests/test.sh": test, **more})


def bench(tasks: Path, test: str, **more: str) -> None:
    lay(tasks, {"task.yaml": "instruction: Do it.\n", "run-tests.sh": test, **more})


def running(command: str) -> Message:
    call = {"id": "1", "name": "run", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def graded(tasks: Path, *commands: str) -> Outcome:
    """After an episode in which these were run."""
    env = Terminal(str(tasks))
    try:
        await env.reset(env.tasks()[0])
        for command in commands:
            await env.step(running(command))
        return await env.evaluate()
    finally:
        await env.close()


async def seen(tasks: Path, command: str) -> str:
    env = Terminal(str(tasks))
    await env.reset(env.tasks()[0])
    said: str = (await env.step(running(command))).observation.messages[0]["content"]
    await env.close()
    return said


def packages(tasks: Path, *names: str) -> None:
    """As ``pip install --target packages`` lays them out."""
    for name in names:
        for file in importlib.metadata.files(name) or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                path = tasks / "packages" / str(file)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), path)


PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")


# --- what is read ----------------------------------------------------------------------------------


def test_a_harbor_folder_is_read(tasks: Path) -> None:
    harbor(
        tasks, "true", **{"environment/Dockerfile": "FROM x", "environment/a.txt": "x", "solution/s.sh": "y"}
    )
    [task] = read_folder(tasks)
    assert task.data["instruction"] == "Do it."
    assert task.data["files"] == {"a.txt": "x"}


async def test_bytes_and_modes_of_files_reach_the_agent(tasks: Path) -> None:
    raw = bytes(range(256)) * 4
    harbor(tasks, "true", **{"environment/data.bin": raw, "environment/tool": "#!/bin/sh\necho ran\n"})
    (tasks / "fix-it/environment/tool").chmod(0o755)
    (tasks / "fix-it/environment/data.bin").chmod(0o600)
    assert await seen(tasks, "./tool; wc -c < data.bin; od -An -tu1 -j 252 -N 4 data.bin; stat -c %a *") == (
        "ran\n1024\n 252 253 254 255\n600\n755\n"
    )
    assert json.loads(json.dumps(read_folder(tasks)[0].data)) == read_folder(tasks)[0].data, "plain data"


async def test_bytes_and_modes_of_files_reach_the_tests(tasks: Path) -> None:
    test = f"cmp /tests/want.bin made.bin && [ -x made.bin ]; r=$?; echo $((1 - r)) > {REWARD}.txt"
    harbor(tasks, test, **{"tests/want.bin": b"\x00\xff\xfe"})
    assert (await graded(tasks, "printf '\\x00\\xff\\xfe' > made.bin; chmod 755 made.bin")).solved
    assert not (await graded(tasks, "printf '\\x00\\xff\\xfe' > made.bin")).solved


@pytest.mark.parametrize(
    "files", [{"instruction.md": "x"}, {"task.yaml": "instruction: x", "tests/a.py": ""}]
)
def test_a_task_without_tests_is_refused(tasks: Path, files: dict[str, str]) -> None:
    lay(tasks, files)
    with pytest.raises(ValueError, match=r"fix-it has no tests/test\.sh"):
        read_folder(tasks)


# --- Harbor ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "score"),
    [
        (f"echo 1 > {REWARD}.txt; exit 1", 1.0),
        (f"echo 0 > {REWARD}.txt; exit 0", -1.0),
        (f"echo 0.75 > {REWARD}.txt", 0.5),
        (f"echo 7 > {REWARD}.txt", 1.0),
        (f'echo \'{{"reward": 1, "style": 0.2}}\' > {REWARD}.json', 1.0),
        (f"echo '{{\"accuracy\": 0.5}}' > {REWARD}.json", 0.0),
        (f"echo 0 > {REWARD}.txt; echo '{{\"reward\": 1.0}}' > {REWARD}.json", 1.0),
    ],
)
async def test_the_reward_is_what_the_tests_write(tasks: Path, written: str, score: float) -> None:
    harbor(tasks, written)
    outcome = await graded(tasks, "true")
    assert (outcome.score, outcome.solved) == (pytest.approx(score), score == 1.0)


@pytest.mark.parametrize(
    "written",
    [
        "exit 0",
        "exit 1",
        f"touch {REWARD}.txt",
        f"echo nan > {REWARD}.txt",
        f"echo yes > {REWARD}.txt",
        f"echo '[1]' > {REWARD}.json",
        f'echo \'{{"a": 1, "b": 0}}\' > {REWARD}.json',
    ],
)
async def test_a_reward_that_cannot_be_read_is_no_fault_of_the_model(tasks: Path, written: str) -> None:
    harbor(tasks, written)
    with pytest.raises(RuntimeError, match="reward"):
        await graded(tasks, "true")


async def test_the_agent_reaches_neither_tests_nor_reward(tasks: Path) -> None:
    harbor(tasks, f"[ -e /app/done ] && echo 1 > {REWARD}.txt || echo 0 > {REWARD}.txt")
    planted = "mkdir -p /logs/verifier /tests logs/verifier tests; echo 1 > /logs/verifier/reward.txt"
    also = "echo '{\"reward\": 1}' > logs/verifier/reward.json"
    test = "echo 'echo 1 > /logs/verifier/reward.txt' > tests/test.sh"
    assert (await graded(tasks, planted, also, test)).score == -1
    assert (await graded(tasks, "touch /app/done")).solved, "/app is the folder it works in"


# --- tests that want to install something -----------------------------------------------------------


@pytest.mark.parametrize(
    "test",
    [
        f"{INSTALLS}uvx -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest /tests/test_outputs.py\n{GRADES}",
        f"pip install no-such-package >/dev/null 2>&1\npython3 /tests/test_outputs.py\nfalse\n{GRADES}",
        f"python3 -m pip install no-such-package\nfalse\n{GRADES}",
        f"python3 -m no_such_module /tests/test_outputs.py\n{GRADES}",
        f"wget -q https://example.com/data.csv\nfalse\n{GRADES}",
        f"apt-get install -y no-such-program\nfalse\n{GRADES}",
        f"{INSTALLS}set -e\nuv add no-such-package\n{GRADES}",
    ],
)
async def test_what_cannot_be_installed_is_no_fault_of_the_model(tasks: Path, test: str) -> None:
    harbor(tasks, test, **{"tests/test_outputs.py": CHECK})
    with pytest.raises(RuntimeError, match="not here"):
        await graded(tasks, "true")


async def test_terminal_bench_scripts_that_install_are_no_fault_of_the_model_either(tasks: Path) -> None:
    bench(tasks, f"{INSTALLS}uv init\nuv add pytest==8.4.1\nuv run pytest $TEST_DIR/test_outputs.py -rA\n")
    with pytest.raises(RuntimeError, match=r"pip install --target .*packages"):
        await graded(tasks, "echo yes > done")


async def test_what_fails_to_install_does_not_matter_where_the_tests_pass(tasks: Path) -> None:
    harbor(tasks, f"apt-get install -y no-such-program\n[ -e done ]\n{GRADES}")
    assert (await graded(tasks, "touch done")).solved


@pytest.mark.parametrize(
    "test",
    [
        "uvx -p 3.13 -w pytest==8.4.1 pytest /tests/test_outputs.py -rA",
        "uv venv .tbench-testing\nsource .tbench-testing/bin/activate\nuv pip install pytest==8.3.4\n"
        "uv run pytest $TEST_DIR/test_outputs.py -rA",
        "pip install -q pytest==8.4.1\npytest -q /tests/test_outputs.py",
        "source $TEST_DIR/setup-uv-pytest.sh\nbash $TEST_DIR/run-uv-pytest.sh",
    ],
)
@pytest.mark.parametrize("layout", [harbor, bench])
async def test_packages_are_laid_beside_the_tasks(tasks: Path, layout: Any, test: str) -> None:
    packages(tasks, *PYTEST)
    script = f"{INSTALLS}set -e\n{test}\n" if layout is bench else f"{INSTALLS}{test}\n{GRADES}"
    layout(tasks, script, **{"tests/test_outputs.py": CHECK})
    assert (await graded(tasks, "echo yes > done")).solved
    assert (await graded(tasks, "echo no > done")).score == -1, "the model's own failure"


async def test_what_the_agent_leaves_is_not_taken_for_an_installed_program(tasks: Path) -> None:
    packages(tasks, *PYTEST)
    test = "uvx -w pytest==8.4.1 pytest /tests/test_outputs.py"
    harbor(tasks, f"{INSTALLS}{test}\n{GRADES}", **{"tests/test_outputs.py": CHECK})
    cheat = "echo 1 > /logs/verifier/reward.txt; exit 0"
    for command in (
        f"mkdir -p .local/bin; echo '{cheat}' > .local/bin/env",
        "mkdir -p .local/bin; printf '#!/bin/sh\\nexit 0' > .local/bin/uvx; chmod 755 .local/bin/uvx",
        "echo 'exit(0)' > pytest.py; cp pytest.py importlib.py; cp pytest.py sitecustomize.py",
        "printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini",
        "echo 'import os; os._exit(0)' > conftest.py",
    ):
        assert (await graded(tasks, command)).score == -1, command
