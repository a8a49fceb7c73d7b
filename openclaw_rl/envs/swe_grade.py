"""Grading of a fix: which of the agent's files count, and whether tests pass in a clean checkout.

This package's own tasks are calls whose results are compared outside the sandbox. SWE-bench's tests run in
the same process as the code they test, as in every harness, so code written to deceive them can.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from openclaw_rl.envs.sandbox import Sandbox, python_path
from openclaw_rl.types import Json

_TEST_SECONDS = 300.0
#: Files that decide how tests run; the agent's versions of these are discarded.
_TESTS = re.compile(
    r"(^|/)(tests?|testing|\.git)/|(^|/)test_[^/]*$|_test\.py$|(^|/)(conftest|sitecustomize|usercustomize)\.py$"
    r"|(^|/)(pytest\.ini|\.pytest\.ini|tox\.ini|setup\.cfg|pyproject\.toml|\.coveragerc)$|\.(pth|pyc|so)$"
)
_STANDARD = sys.stdlib_module_names | {"pytest", "_pytest", "pluggy", "py", "iniconfig", "packaging"}
_CALLS = (Path(__file__).with_name("in_sandbox") / "calls.py").read_text(encoding="utf-8")


def carried(base: Mapping[str, bytes], changed: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files to test: the agent's source files, and the originals of those that decide how tests run."""

    def allowed(name: str) -> bool:
        stands_in = PurePosixPath(name).parts[0].removesuffix(".py") in _STANDARD
        return not _TESTS.search(name) and (name in base or not stands_in)

    kept = {name: data for name, data in base.items() if not allowed(name)}
    return kept | {name: data for name, data in changed.items() if allowed(name)}


async def passed(fresh: Sandbox, data: Json, tests: Sequence[Any]) -> list[bool]:
    """Results of calls are compared here, out of reach of the agent's code; named tests run under pytest or
    ``test_cmd``."""
    if not tests:
        return []
    if isinstance(tests[0], dict):
        calls = shlex.quote(json.dumps([each["call"] for each in tests]))
        ran = await fresh.run(f"{python_path()} -c {shlex.quote(_CALLS)} {data['repo']} {calls}")
        try:
            given = json.loads(ran.output.strip().rpartition("\n")[2])
            return [found == [each["gives"]] for found, each in zip(given, tests, strict=True)]
        except (ValueError, TypeError):
            return [False] * len(tests)
    return await _named(fresh, data, tests)


async def check_pytest(sandbox: Sandbox, data: Json) -> None:
    """RuntimeError, with the remedy, if a row's tests cannot run: that is not the agent's fault."""
    named = data["fail_to_pass"] and isinstance(data["fail_to_pass"][0], str) and not data.get("test_cmd")
    if named and (await sandbox.run(f"{_pytest(data)} --version", _TEST_SECONDS)).code:
        raise RuntimeError(
            f"pytest does not run for {data['repo']}: pip install --target {data['packages']} pytest and "
            "whatever the repository imports"
        )


def _pytest(data: Json) -> str:
    return f"PYTHONPATH={shlex.quote(data['packages'])} {python_path()} -P -m pytest"


async def _named(fresh: Sandbox, data: Json, tests: Sequence[str]) -> list[bool]:
    """Run tests by name. The exit code and the report count; printed output does not."""
    report = f"/tmp/{secrets.token_hex(16)}.xml"
    pytest = f"{_pytest(data)} -q -o pythonpath=. -p no:cacheprovider --junitxml={report}"
    names = " ".join(map(shlex.quote, tests))
    ran = await fresh.run(f"{data.get('test_cmd') or pytest} {names}", _TEST_SECONDS)
    if data.get("test_cmd"):
        return [ran.code == 0] * len(tests)
    counted = dict(
        re.findall(r'(tests|errors|failures|skipped)="(\d+)"', (await fresh.run(f"cat {report}")).output)
    )
    good = int(counted.pop("tests", 0)) - sum(map(int, counted.values()))
    return [ran.code == 0 and good >= len(tests)] * len(tests)
