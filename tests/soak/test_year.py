"""A year in minutes: memory, files and disk do not grow with time. ``make test-year`` runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.soak.year import Plan, live

#: Caches fill in the first weeks.
_SETTLED = 12


@pytest.mark.year
def test_a_year_does_not_wear_it_out(tmp_path: Path) -> None:
    plan = Plan(int(os.environ.get("YEAR_WEEKS", "52")), int(os.environ.get("YEAR_TURNS", "1000000")))
    lines = tmp_path / "year.jsonl"
    result = live(tmp_path, plan, lambda line: print(line, flush=True))
    lines.write_text(json.dumps(result))
    weeks = result["weeks"]
    assert weeks[-1]["policies_there"] >= 3 * plan.weeks
    early, late = weeks[_SETTLED : 2 * _SETTLED], weeks[-_SETTLED:]
    for name in ("serve_files", "learn_files", "serve_threads", "learn_threads"):
        assert most(late, name) <= most(early, name) + 10, name
    for name in ("serve_mb", "learn_mb"):
        assert typical(late, name) <= 1.1 * typical(early, name) + 30, name
    for file in ("serve.db", "serve.db-wal", "learn.db-wal", "search.db", "policies"):
        assert disk(late, file) <= 1.3 * disk(early, file) + 5000, file
    # Verdicts and samples stay, without words, when their turns are pruned.
    assert disk(late, "learn.db") <= weeks[-1]["verdicts_there"] * 3


def most(weeks: list[dict[str, Any]], name: str) -> int:
    return max(week[name] for week in weeks)


def typical(weeks: list[dict[str, Any]], name: str) -> float:
    return median(week[name] for week in weeks)


def disk(weeks: list[dict[str, Any]], file: str) -> int:
    """kB; a week after a prune has less than the one before."""
    return max(week["disk_kb"].get(file, 0) for week in weeks)
