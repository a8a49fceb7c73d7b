"""Bugs for the software-engineering environment: one changed line in a small repository.

``repos/`` holds correct code and calls of it (``cases.txt``). A bug is a line in which an operator, a
function or a number was replaced so that some calls return something else; the fix must make those calls
pass and keep the others passing. Each bug makes up to three tasks: choose the right line (difficulty 1),
write it (2), or find it with a shell (3). A repository belongs to one split only.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openclaw_rl.types import Json, Task

_REPOSITORIES = {
    "train": ("shop", "words", "dates", "board"),
    "validation": ("bank",),
    "test": ("school", "units"),
}
#: (old, new): the replacements that make a bug, one occurrence at a time.
_MUTATIONS = (
    (" + ", " - "), (" + ", " * "), (" - ", " + "), (" * ", " + "), (" * ", " - "), (" // ", " % "),
    (" // ", " * "),
    (" < ", " <= "), (" < ", " > "), (" <= ", " < "), (" <= ", " > "), (" > ", " >= "), (" > ", " < "),
    (" >= ", " > "), (" >= ", " < "), (" == ", " != "), (" != ", " == "), (" and ", " or "),
    (" or ", " and "),
    ("min(", "max("), ("max(", "min("), ("any(", "all("), ("all(", "any("), (".upper()", ".lower()"),
    ("[0]", "[-1]"), ("[::-1]", "[1:]"), (" % ", " // "), (" in (", " not in ("), (" + 1", " + 2"),
)  # fmt: skip
_FAILED = "an error"


@dataclass(frozen=True, slots=True)
class Bug:
    repository: str
    file: str
    function: str
    about: str
    line: int
    """1-based."""
    right: str
    wrong: str
    failing: list[Json]
    passing: list[Json]
    gives: Any
    """What the first failing call returns with the bug."""


@lru_cache(maxsize=1)
def swe_tasks() -> tuple[Task, ...]:
    made: list[Task] = []
    for split, names in _REPOSITORIES.items():
        for name in names:
            for number, bug in enumerate(bugs := list(_bugs(name))):
                made += _asked(split, number, bug, bugs)
    return tuple(made)


def repository(name: str) -> dict[str, str]:
    """The repository's files, with a test file that shows how it is used."""
    folder = Path(__file__).with_name("repos") / name
    modules = {
        f"{name}/{file.name}": file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py"))
    }
    return modules | {f"tests/test_{name}.py": _visible_tests(name, _known(folder, modules))}


def _bugs(name: str) -> Iterator[Bug]:
    files = repository(name)
    known = _known(Path(__file__).with_name("repos") / name, files)
    for file, text in files.items():
        if file.startswith("tests/"):
            continue
        lines = text.splitlines()
        for function in ast.parse(text).body:
            if isinstance(function, ast.FunctionDef):
                first = function.body[1].lineno
                for number in range(first, (function.end_lineno or first) + 1):
                    for wrong in _mutants(lines[number - 1]):
                        planted = "\n".join([*lines[: number - 1], wrong, *lines[number:]]) + "\n"
                        bug = _planted(name, file, function, number, lines[number - 1], wrong, planted, known)
                        if bug is not None:
                            yield bug


def _mutants(line: str) -> list[str]:
    found: list[str] = []
    for old, new in _MUTATIONS:
        start = line.find(old)
        while start >= 0:
            found.append(line[:start] + new + line[start + len(old) :])
            start = line.find(old, start + 1)
    return list(dict.fromkeys(found))


def _planted(
    name: str, file: str, function: ast.FunctionDef, number: int, right: str, wrong: str, text: str,
    known: Sequence[Json],
) -> Bug | None:  # fmt: skip
    """None if no call shows a difference."""
    module = file.partition("/")[2].removesuffix(".py")
    called = [case for case in known if case["call"].startswith(f"{module}.{function.name}(")]
    code = _module(text)
    given = [_call(case["call"], {module: code}) for case in called]
    failing = [case for case, result in zip(called, given, strict=True) if result != case["gives"]]
    if not failing:
        return None
    gives = given[called.index(failing[0])]
    passing = [case for case in known if case not in failing]
    about = ast.get_docstring(function) or ""
    return Bug(name, file, function.name, about, number, right, wrong, failing, passing, gives)


def _known(folder: Path, files: Mapping[str, str]) -> list[Json]:
    """Each call with its result in the correct code."""
    modules = {
        Path(file).stem: _module(text) for file, text in files.items() if not file.startswith("tests/")
    }
    calls = (folder / "cases.txt").read_text(encoding="utf-8").splitlines()
    return [{"call": each, "gives": _call(each, modules)} for each in calls]


def _module(text: str) -> SimpleNamespace:
    code: dict[str, Any] = {}
    exec(compile(text, "repository", "exec"), code)  # trusted: code from this package
    return SimpleNamespace(**code)


def _call(text: str, modules: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(eval(text, dict(modules))))
    except Exception:
        return _FAILED


def _visible_tests(name: str, known: Sequence[Json]) -> str:
    """One case per function, as a person would test it."""
    first: dict[str, Json] = {}
    for case in known:
        first.setdefault(case["call"].partition("(")[0], case)
    modules = sorted({each.partition(".")[0] for each in first})
    tests = [
        f"    def test_{each.replace('.', '_')}(self):\n"
        f"        self.assertEqual({case['call']}, {case['gives']!r})\n"
        for each, case in first.items()
    ]
    head = (
        f"import unittest\n\nfrom {name} import {', '.join(modules)}\n\n\nclass Tests(unittest.TestCase):\n"
    )
    return head + "\n".join(tests)


def _asked(split: str, number: int, bug: Bug, bugs: Sequence[Bug]) -> Iterator[Task]:
    """The bug's tasks, one per difficulty; difficulty 1 needs at least two lines to choose from."""
    files = repository(bug.repository)
    lines = files[bug.file].splitlines()
    lines[bug.line - 1] = bug.wrong
    files[bug.file] = "\n".join(lines) + "\n"
    call, right = bug.failing[0]["call"], bug.failing[0]["gives"]
    wrong = f"{call} gives {bug.gives!r}, but should give {right!r}."
    facts: Json = {
        "files": files, "file": bug.file, "line": bug.line, "split": split,
        "repo": bug.repository,
        "fail_to_pass": bug.failing, "pass_to_pass": bug.passing,
    }  # fmt: skip
    task_id = f"swe-{bug.repository}-{number}"
    start, end = _function(lines, bug.function)
    shown = "\n".join(lines[start - 1 : end])
    others = [each.wrong for each in bugs if (each.file, each.line) == (bug.file, bug.line)]
    options = sorted(line.strip() for line in {bug.right, *others} - {bug.wrong})[:5]
    if len(options) > 1 and bug.right.strip() in options:
        asked = (
            f"def {bug.function} should give: {bug.about}\n{wrong}\n\n{shown}\n\n"
            f"Which line must replace `{bug.wrong.strip()}`? Call fix with it."
        )
        yield Task(f"{task_id}-choose", _task(facts, asked, 1, options))
    numbered = "\n".join(f"{n}: {lines[n - 1]}" for n in range(start, end + 1))
    asked = (
        f"{bug.file}: {bug.function} has a bug. It should give: {bug.about}\n{wrong}\n\n{numbered}\n\n"
        "Call replace_line with the number and the right text of the wrong line."
    )
    yield Task(f"{task_id}-line", _task(facts, asked, 2))
    asked = (
        f"This repository has a bug: {wrong} Find it and fix it; do not change the tests. "
        f"Tests: python3 -m unittest discover tests"
    )
    yield Task(f"{task_id}-bash", _task(facts, asked, 3))


def _task(facts: Json, asked: str, difficulty: int, options: Sequence[str] = ()) -> Json:
    more: Json = {"options": list(options)} if options else {}
    template = f"{facts['repo']}-{('choose', 'line', 'bash')[difficulty - 1]}"
    return {
        **copy.deepcopy(facts),
        "template": template,
        "instruction": asked,
        "difficulty": difficulty,
        **more,
    }


def _function(lines: Sequence[str], name: str) -> tuple[int, int]:
    """The function's first and last line numbers."""
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node.lineno, node.end_lineno or node.lineno
    raise AssertionError(name)
