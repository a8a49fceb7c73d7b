"""The documents name the test of each promise and of each attack: the file exists and has tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"`((?:tests/)?[\w/]*test_\w+\.py)`")


def section(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


INVARIANTS = section("architecture.md", "Invariants")
ATTACKS = section("security.md", "Attacks that are tested")


def promises() -> list[str]:
    return [line for line in INVARIANTS.splitlines() if line.startswith("- ")]


def attacks() -> list[str]:
    return [line for line in ATTACKS.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("line", [*promises(), *attacks()])
def test_each_names_tests_that_exist(line: str) -> None:
    names = _NAME.findall(line)
    assert names, "no test is named"
    for name in names:
        path = ROOT / (name if "/" in name else f"tests/security/{name}")
        assert path.exists(), name
        assert re.search(r"^(async )?def test_", path.read_text("utf-8"), re.MULTILINE), f"{name} has no test"


def test_every_file_of_attacks_is_named() -> None:
    files = {path.name for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert files <= set(_NAME.findall(ATTACKS))
    assert len(promises()) >= 6
