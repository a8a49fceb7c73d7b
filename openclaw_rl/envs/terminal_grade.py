"""Grading of terminal tasks: in a fresh sandbox, with the agent's files and the task's tests.

A task folder's tests are in ``/tests``. Harbor's tests write their reward to ``/logs/verifier``; for
terminal-bench's the exit code counts. There is no network: if tests fail after they tried to install
something that is not available, that is a fault of the environment, and raised. As in every harness, tests
share a sandbox with the programs they test, so code written to deceive them can.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from openclaw_rl.envs.in_sandbox import installers
from openclaw_rl.envs.sandbox import HOME, Limits, Sandbox, SandboxFile, python_path
from openclaw_rl.envs.terminal_folders import decode_files
from openclaw_rl.types import Json, Outcome

_TEST_SECONDS = 60.0
_REWARD = "/logs/verifier/reward"
_INSTALLERS = "/installers"
#: Scripts that terminal-bench adds to every task's tests.
_HELPERS = {
    "/tests/setup-uv-pytest.sh": b"uv add pytest\n",
    "/tests/run-uv-pytest.sh": b"uv run pytest $TEST_DIR/test_outputs.py -rA\n",
}
#: Written by uv's installer and sourced by tests, so the agent's version must not count.
_OVERLAID = {".local/bin/env": b""}


async def grade(data: Json, files: Mapping[str, bytes], limits: Limits) -> Outcome:
    """RuntimeError if the result cannot be determined."""
    if "test_script" in data:
        return await _grade_folder(data, files, limits)
    async with Sandbox({**files, **decode_files(data.get("tests", {}))}, limits) as fresh:
        passed = [(await fresh.run(check, _TEST_SECONDS)).code == 0 for check in data["checks"]]
    share = sum(passed) / len(passed)
    return Outcome(2 * share - 1, share == 1, {"passed": sum(passed), "of": len(passed)})


async def _grade_folder(data: Json, files: Mapping[str, bytes], limits: Limits) -> Outcome:
    packages = data["packages"]
    read_only = [packages] if Path(packages).is_dir() else []
    every = {**files, **_OVERLAID, **_HELPERS, **_laid(data), **_stand_ins()}
    async with Sandbox(every, limits, read_only, ["/tests", "/logs", _INSTALLERS]) as fresh:
        variables = f"TEST_DIR=/tests PATH={_INSTALLERS}:$PATH"
        python = f" PYTHONPATH={packages!r}" if read_only else ""
        await fresh.run("mkdir -p /logs/verifier /logs/agent")
        ran = await fresh.run(f"export {variables}{python}\nbash {_script(data)}", _TEST_SECONDS)
        reward = await _read_reward(fresh) if data["writes_reward"] else float(ran.code == 0)
        missing = (await fresh.run(f"sort -u {installers.MISSING} 2>/dev/null")).output.split("\n")
    if (reward is None or reward < 1) and any(missing):
        raise RuntimeError(
            f"the tests want what is not here: {', '.join(filter(None, missing))}. There is no network; "
            f"Python packages come from pip install --target {packages} …, programs from this machine"
        )
    if reward is None:
        late = "; they took too long" if ran.timed_out else ""
        raise RuntimeError(
            f"the tests have written no reward that can be read ({_REWARD}.txt or .json){late}"
        )
    return Outcome(1.0 if reward >= 1 else max(-1.0, 2 * reward - 1), reward >= 1, {"reward": reward})


def _script(data: Json) -> str:
    return f"{HOME}/run-tests.sh" if data["test_script"] == "run-tests.sh" else "/tests/test.sh"


def _laid(data: Json) -> dict[str, bytes]:
    """Tests go to ``/tests``; terminal-bench's also to the agent's folder, as simple scripts expect."""
    tests = decode_files(data["tests"])
    placed = {f"/tests/{name.removeprefix('tests/')}": each for name, each in tests.items()}
    return placed if data["writes_reward"] else {**placed, **tests}


def _stand_ins() -> dict[str, bytes]:
    """Stand-ins for installers, placed before the real ones on ``PATH``."""
    source, python = Path(installers.__file__).read_bytes(), python_path()
    made = {f"{_INSTALLERS}/installers.py": source}
    for name in installers.NAMES:
        lines = (
            "#!/bin/sh",
            f'[ -x "$(command -v {python})" ] || {{ echo {name} >> {installers.MISSING}; exit 127; }}',
            f'exec {python} -I {_INSTALLERS}/installers.py {name} "$@"',
        )
        made[f"{_INSTALLERS}/{name}"] = SandboxFile("\n".join(lines).encode(), 0o755)
    return made


async def _read_reward(fresh: Sandbox) -> float | None:
    """A number, or JSON with ``reward`` or a single number under another name; None if it is neither."""
    text = (await fresh.run(f"cat {_REWARD}.json 2>/dev/null || cat {_REWARD}.txt 2>/dev/null")).output
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            found = found["reward"] if "reward" in found or len(found) != 1 else next(iter(found.values()))
        return float(found) if math.isfinite(float(found)) else None
    except (ValueError, KeyError, TypeError):
        return None
