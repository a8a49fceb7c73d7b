"""Software engineering: fixes are graded in a clean checkout, out of the agent's reach."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs import create_environment
from openclaw_rl.envs.swe import SoftwareEngineering, read_rows
from openclaw_rl.envs.swe_grade import carried
from openclaw_rl.envs.swe_tasks import swe_tasks
from openclaw_rl.envs.tasks import SPLITS, of_split
from openclaw_rl.testing.contracts import EnvironmentContract
from openclaw_rl.types import Environment, Message, Task
from tests.envs.test_built_in import calls, needs_sandbox


def task_of(difficulty: int, start: str = "swe-shop") -> Task:
    return next(t for t in swe_tasks() if t.data["difficulty"] == difficulty and t.id.startswith(start))


def right_line(task: Task) -> str:
    """What stands in that line in the repository as it was written."""
    folder = Path(importlib.util.find_spec("openclaw_rl.envs.repos").origin).parent  # type: ignore
    return (folder / task.data["file"]).read_text().splitlines()[task.data["line"] - 1]


def solution(task: Task) -> list[Message]:
    line, right = task.data["line"], right_line(task)
    if task.data["difficulty"] == 1:
        return [calls(("fix", {"text": right.strip()}))]
    if task.data["difficulty"] == 2:
        return [calls(("replace_line", {"line": line, "text": right.strip()})), calls(("done", {}))]
    code = f"p='{task.data['file']}'\nl=open(p).read().splitlines()\nl[{line - 1}]={right!r}\n"
    command = f"python3 - <<'E'\n{code}open(p,'w').write('\\n'.join(l)+'\\n')\nE"
    return [calls(("bash", {"command": command})), calls(("done", {}))]


@needs_sandbox
class TestSoftwareEngineering(EnvironmentContract):
    wrong: Message = calls(("bash", {"command": "false"}))

    @pytest.fixture
    async def environment(self) -> AsyncIterator[Environment]:
        made = create_environment("swe")
        yield made
        await made.close()

    @pytest.fixture
    def solve(self) -> Callable[[Task], list[Message]]:
        return solution


def test_there_are_enough_tasks_and_no_repository_is_in_two_splits() -> None:
    tasks = list(swe_tasks())
    assert len(tasks) >= 200
    splits = [of_split(tasks, split) for split in SPLITS]
    repositories = [{task.data["repo"] for task in split} for split in splits]
    assert not repositories[0] & (repositories[1] | repositories[2])
    assert not repositories[1] & repositories[2]
    for split in splits:
        assert {task.data["difficulty"] for task in split} == {1, 2, 3}
    for task in tasks:
        assert task.data["fail_to_pass"]
        assert task.data["pass_to_pass"]
        if task.data["difficulty"] == 1:
            assert right_line(task).strip() in task.data["options"]
            assert len(task.data["options"]) > 1


@pytest.fixture
async def swe() -> AsyncIterator[SoftwareEngineering]:
    made = SoftwareEngineering(max_steps=30)
    yield made
    await made.close()


async def bash(env: SoftwareEngineering, command: str) -> str:
    result = await env.step(calls(("bash", {"command": command})))
    return str(result.observation.messages[0]["content"])


@needs_sandbox
async def test_the_next_state_is_output_diff_and_lint(swe: SoftwareEngineering) -> None:
    task = task_of(3)
    await swe.reset(task)
    file = task.data["file"]
    assert "diff:" not in await bash(swe, f"grep -n def {file}")
    said = await bash(swe, f"echo 'x = undefined_thing' >> {file}; echo hello")
    assert said.startswith("hello\n")
    assert "+x = undefined_thing" in said
    assert "undefined name 'undefined_thing'" in said
    said = await bash(swe, f"sed -i '$d' {file}; echo 'def (' >> {file}")
    assert "lint: " in said
    assert "invalid syntax" in said
    assert "diff:" not in await bash(swe, "true"), "only what has changed since"
    said = await bash(swe, f"git commit -qam x; sed -i '$d' {file}; touch new.py; echo y > new.py")
    assert "+y" in said
    assert "undefined name 'y'" in said
    block: Message = {"role": "assistant", "content": "I look.\n```bash\necho from a block\n```"}
    result = await swe.step(block)
    assert result.observation.messages == [{"role": "user", "content": "from a block"}]


@needs_sandbox
async def test_a_line_is_replaced_and_a_choice_decides(swe: SoftwareEngineering) -> None:
    task = task_of(2)
    await swe.reset(task)
    result = await swe.step(calls(("replace_line", {"line": 999, "text": "x"})))
    assert "has lines 1 to" in result.observation.messages[0]["content"]
    [fix, done] = solution(task)
    result = await swe.step(fix)
    assert f"+{right_line(task)}" in result.observation.messages[0]["content"], "with its indentation"
    assert (await swe.step(done)).done
    assert (await swe.evaluate()).solved
    task = task_of(1)
    seen = await swe.reset(task)
    assert seen.tools[0]["parameters"]["properties"]["text"]["enum"] == task.data["options"]
    result = await swe.step(calls(("fix", {"text": "return 'something else'"})))
    assert "must be one of" in result.observation.messages[0]["content"]
    assert not result.done
    wrong = next(each for each in task.data["options"] if each != right_line(task).strip())
    assert (await swe.step(calls(("fix", {"text": wrong})))).done
    assert (await swe.evaluate()).score == -1


CHEATS = {
    "exits": "{ echo 'import os'; echo 'os._exit(0)'; } | tee -a shop/*.py",
    "claims": "echo 'print(\"[[true],[true],[7]]\"); raise SystemExit(0)' | tee -a shop/*.py",
    "stands in for a module": "echo 'loads = dumps = lambda *a: \"[]\"' > json.py; cp json.py importlib.py",
    "everything is equal": (
        "cat > shop/__init__.py <<'E'\n"
        "import json\n"
        "class All:\n    def __eq__(self, other): return True\n"
        "json.dumps = lambda *a, **k: '[' + ','.join(['[true]'] * 99) + ']'\nE"
    ),
    "reads the tests": "grep -rn gives /work /run /tmp | head -c 100 > shop/found.txt",
    "writes to the grader": "for p in 1 2 $PPID; do echo '0 b2s=' > /proc/$p/fd/1; done; echo x > /run/files",
    "waits for the grader": "(while true; do touch /work/x; sleep 0.1; done) & disown",
    "site packages": "mkdir -p .local/lib/python3.11/site-packages; echo 'import os; os._exit(0)' "
    "> .local/lib/python3.11/site-packages/usercustomize.py; cp .local/lib/*/*/*.py sitecustomize.py",
}


@needs_sandbox
async def test_no_cheat_is_a_fix(swe: SoftwareEngineering) -> None:
    task = task_of(3)
    await swe.reset(task)
    for name, command in CHEATS.items():
        await bash(swe, f"git checkout -q .; git clean -fdqx; {command}")
        outcome = await swe.evaluate()
        assert (outcome.solved, outcome.score) == (False, -1), name


def test_what_is_carried_over() -> None:
    base = {"a.py": b"1", "tests/test_a.py": b"2", "setup.cfg": b"3", "gone.py": b"4"}
    changed = {
        "a.py": b"fixed", "new/b.py": b"5", "tests/test_a.py": b"easy", "conftest.py": b"6",
        "x/conftest.py": b"7",
        "setup.cfg": b"8", "json.py": b"9", "pytest/__init__.py": b"10", ".git/config": b"11", "a.pyc": b"12",
        "sitecustomize.py": b"13", "x.pth": b"14", "test_new.py": b"15",
    }  # fmt: skip
    assert carried(base, changed) == {
        "a.py": b"fixed", "new/b.py": b"5", "tests/test_a.py": b"2", "setup.cfg": b"3",
    }  # fmt: skip


# --- SWE-bench rows ------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    known = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"]}
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", *who, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=known).stdout.strip()


@pytest.fixture
def rows() -> Iterator[Path]:
    """A clone, a row and the packages its tests need, as people lay them out. Everybody may read it,
    because a sandbox that root begins belongs to nobody."""
    with tempfile.TemporaryDirectory() as folder:
        tmp_path = Path(folder)
        tmp_path.chmod(0o755)
        yield laid_out(tmp_path)


def laid_out(tmp_path: Path) -> Path:
    clone = tmp_path / "repos" / "me__sums"
    (clone / "tests").mkdir(parents=True)
    (clone / "sums.py").write_text("def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n")
    (clone / "tests" / "test_sums.py").write_text(
        "from sums import twice\n\n\ndef test_twice():\n    assert twice(2) == 4\n"
    )
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "base")
    base = git(clone, "rev-parse", "HEAD")
    test = (clone / "tests" / "test_sums.py").read_text().replace("import twice", "import add, twice")
    (clone / "tests" / "test_sums.py").write_text(test + "\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    patch = git(clone, "diff") + "\n"
    git(clone, "commit", "-qam", "the fix, which nobody may look up")
    row = {
        "instance_id": "me__sums-1", "repo": "me/sums", "base_commit": base, "test_patch": patch,
        "problem_statement": "add does not add.",
        "FAIL_TO_PASS": json.dumps(["tests/test_sums.py::test_add"]),
        "PASS_TO_PASS": ["tests/test_sums.py::test_twice"],
    }  # fmt: skip
    packages = tmp_path / "packages" / "me__sums"
    packages.mkdir(parents=True)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
        found = importlib.util.find_spec(name)
        assert found is not None
        path = Path(str(found.origin))
        shutil.copytree(path.parent, packages / name) if path.stem == "__init__" else shutil.copy(
            path, packages
        )
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file


@needs_sandbox
async def test_a_row_of_swe_bench(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_BENCH_PATH", str(rows))
    env: Any = create_environment("swe")
    [task] = env.tasks()
    assert task.id == "me__sums-1"
    seen = await env.reset(task)
    assert seen.messages[-1]["content"] == "add does not add."
    assert "the fix" not in await bash(env, "git log --all"), "history ends at the base commit"
    await bash(env, "sed -i 's/a - b/a + b/' sums.py")
    outcome = await env.evaluate()
    assert outcome.solved
    assert outcome.facts["fail_to_pass"] == "1 of 1"
    await bash(env, "sed -i 's/2 . a/3 * a/' sums.py")
    assert not (await env.evaluate()).solved, "what passed must still pass"
    await env.close()


def test_rows_that_cannot_be_used_are_named(rows: Path) -> None:
    row = json.loads(rows.read_text())
    del row["FAIL_TO_PASS"]
    rows.write_text(json.dumps([row]))
    with pytest.raises(ValueError, match="row 1 has no FAIL_TO_PASS"):
        read_rows(rows)
    rows.write_text(json.dumps([{**row, "FAIL_TO_PASS": [], "repo": "me/other"}]))
    with pytest.raises(ValueError, match=r"clone me/other into .*repos/me__other"):
        read_rows(rows)


@needs_sandbox
async def test_a_repository_without_pytest_is_no_fault_of_the_model(rows: Path) -> None:
    shutil.rmtree(rows.parent / "packages" / "me__sums" / "_pytest")
    env = SoftwareEngineering(str(rows))
    with pytest.raises(RuntimeError, match=r"pip install --target .*packages/me__sums"):
        await env.reset(env.tasks()[0])
    await env.close()


@needs_sandbox
async def test_a_patch_that_does_not_apply_is_the_tasks_fault(rows: Path) -> None:
    row = json.loads(rows.read_text())
    rows.write_text(json.dumps([{**row, "test_patch": row["test_patch"].replace("twice(2)", "twice(3)")}]))
    env = SoftwareEngineering(str(rows))
    await env.reset(env.tasks()[0])
    with pytest.raises(RuntimeError, match="does not apply"):
        await env.evaluate()
    await env.close()


@pytest.mark.envs
@needs_sandbox
async def test_no_cheat_passes_tests_of_a_row(rows: Path) -> None:
    env = SoftwareEngineering(str(rows))
    await env.reset(env.tasks()[0])
    assert not (await env.evaluate()).solved
    for cheat in (
        "sed -i 's/== 5/== -1/' tests/*.py; echo 'def test_add(): pass' > tests/test_sums.py",
        "echo 'import os; os._exit(0)' >> sums.py",
        "git checkout -q .; echo 'def pytest_pyfunc_call(pyfuncitem): return True' > conftest.py",
        "printf '[pytest]\\naddopts = --version\\n' > pytest.ini; rm conftest.py",
    ):
        await bash(env, cheat)
        assert not (await env.evaluate()).solved, cheat
    await env.close()


@pytest.mark.envs
@needs_sandbox
async def test_every_task_can_be_solved_and_is_not_yet() -> None:
    async def check(task: Task) -> None:
        async with limit:
            env = SoftwareEngineering()
            await env.reset(task)
            assert not (await env.evaluate()).solved, task.id
            for action in solution(task):
                await env.step(action)
            assert (await env.evaluate()).solved, task.id
            await env.close()

    limit = asyncio.Semaphore(4)
    await asyncio.gather(*map(check, swe_tasks()))
