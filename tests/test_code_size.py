"""Files and functions stay as small as CONTRIBUTING.md says: a large one hides two things."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import openclaw_rl

PACKAGE = Path(openclaw_rl.__file__).parent
SOURCES = {".py", ".js", ".css", ".c", ".h"}
MOST_LINES, MOST_FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 400, 60, 7
#: Functions that may be longer, each with the reason.
LONG: dict[str, str] = {}


def large_files(root: Path) -> list[str]:
    found = []
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCES):
        if "vendor" not in path.parts and (number := len(path.read_text("utf-8").splitlines())) > MOST_LINES:
            found.append(f"{path.relative_to(root)}: {number} lines")
    return found


def functions(root: Path) -> Iterator[tuple[str, int]]:
    """(where and which, how many lines) of every function, those inside others too."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield f"{path.relative_to(root)}: {node.name}", node.end_lineno - node.lineno + 1


def test_no_file_is_large() -> None:
    assert large_files(PACKAGE) == []


def test_no_function_is_long_and_most_are_short() -> None:
    found = list(functions(PACKAGE))
    long = {name for name, number in found if number > MOST_FUNCTION_LINES}
    assert long - set(LONG) == set()
    assert set(LONG) - long == set(), "it has become short: take it off the list"
    assert statistics.median(number for _, number in found) <= MEDIAN_FUNCTION_LINES


@pytest.mark.parametrize(("number", "caught"), [(MOST_LINES, False), (MOST_LINES + 1, True)])
def test_the_check_itself_catches(tmp_path: Path, number: int, caught: bool) -> None:
    (tmp_path / "a.py").write_text("x = 1\n" * number)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "b.js").write_text("\n" * 9999)
    assert bool(large_files(tmp_path)) == caught
    (tmp_path / "a.py").write_text("class A:\n    async def f(self):\n" + "        x = 1\n" * (number - 1))
    assert list(functions(tmp_path)) == [("a.py: f", number)]
