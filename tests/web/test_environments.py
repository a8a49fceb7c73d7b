"""The page about environments, after real episodes: what was solved, and an attempt step by step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.commands.train import key_of
from openclaw_rl.envs.gui_tasks import gui_tasks
from openclaw_rl.envs.swe_tasks import swe_tasks
from openclaw_rl.types import Task

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]


def says(live: Any, *calls: tuple[str, dict[str, Any]]) -> None:
    for name, arguments in calls:
        live.system.engine.say(
            f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        )


def attempt(live: Any, name: str, task: Task, size: int) -> int:
    """A group of attempts, told and taken up; how many were solved."""
    home = live.system.config.home
    where = (f"{live.url}/v1", key_of(home, name), str(home / "train" / name / "replays"), str(size))
    program = Path(__file__).with_name("attempts.py")
    ran = subprocess.run(
        [sys.executable, program, name, *where], input=json.dumps(asdict(task)), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    live.system.ledgers.policies.rollouts().pull()
    [solved] = json.loads(ran.stdout)
    return int(solved)


def look(guest: Any, name: str) -> None:
    """``SCREENSHOTS=folder`` keeps a picture, for the docs."""
    if folder := os.environ.get("SCREENSHOTS"):
        guest.page.screenshot(path=Path(folder) / f"{name}.png")


def note(live: Any, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """What ``train`` writes down."""
    path = live.system.config.home / "train" / name / "log.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("phone", [False, pytest.param(True, marks=pytest.mark.web)])
def test_an_attempt_in_a_terminal_is_replayed(live: Any, visit: Callable[..., Any], phone: bool) -> None:
    task = Task("greet", {"instruction": "Write hello into a.txt.", "checks": ["grep -q hello a.txt"]})
    say = ("run", {"command": "echo hello | tee a.txt"})
    says(live, say, ("done", {}), ("run", {"command": "cat nothing"}), ("done", {}))
    assert attempt(live, "terminal", task, 2) == 1
    looks = [{"version": n, "groups": 10 * n, "solved": 2 + 3 * n, "of": 10} for n in range(3)]
    note(
        live,
        "terminal",
        [
            *({"type": "evaluation", "at": 1.0, "low": 0.1, "high": 0.9, **one} for one in looks),
            {"type": "run", "at": 2.0, "seconds": 10.0, "parallel": 2, "busy": 15.0, "held": 0, "groups": 1},
        ],
    )
    guest = visit(live.url, phone=phone)
    guest.sign_in(live.key)
    guest.open("Environments")
    card = guest.page.locator("[data-environment=terminal]")
    card.get_by_text("1 of 2 attempts, 95 % interval 9 % to 91 %").wait_for()
    card.get_by_text("75 %", exact=True).wait_for()
    assert "The model" in card.locator(".faults").inner_text()
    card.get_by_role("img", name="Held-out tasks solved: from 20 % to 80 %").wait_for()
    guest.check()
    card.locator("a.item", has_text="solved").filter(has_not_text="not solved").click()
    guest.page.get_by_role("heading", name="Attempt at greet").wait_for()
    guest.page.get_by_text("Write hello into a.txt.").wait_for()
    guest.page.get_by_role("button", name="Next").click()
    screen = guest.page.locator(".screen")
    assert screen.inner_text().split("\n")[:2] == ["$ echo hello | tee a.txt", "hello"]
    guest.page.keyboard.press("ArrowRight")  # the button has the focus, so nothing moves
    guest.page.get_by_role("heading", name="Step 1 of 2").wait_for()
    guest.check()
    guest.page.get_by_role("button", name="Next").click()
    assert guest.page.get_by_role("button", name="Next").is_disabled()


@pytest.mark.web
def test_pictures_and_differences_are_replayed(live: Any, visit: Callable[..., Any]) -> None:
    page = next(task for task in gui_tasks() if "Press the button" in task.data["instruction"])
    says(live, ("click", {"element": page.data["instruction"].rstrip(".").split("button ")[1]}))
    assert attempt(live, "gui", page, 1) == 1
    bug = next(task for task in swe_tasks() if task.data.get("options"))
    says(live, ("fix", {"text": bug.data["options"][0]}))
    attempt(live, "swe", bug, 1)
    guest = visit(live.url)
    guest.sign_in(live.key)
    guest.open("Environments")
    guest.page.locator("[data-environment=gui] a.item").click()
    shot = guest.page.get_by_role("img", name="The page after step 0")
    shot.wait_for()
    assert shot.evaluate("e => e.naturalWidth") == 1000
    guest.check()
    guest.page.get_by_role("button", name="Next").click()
    guest.page.get_by_role("img", name="The page after step 1").wait_for()
    guest.page.goto(f"{live.url}/#/environments")
    guest.page.locator("[data-environment=swe] a.item").click()
    guest.page.get_by_role("button", name="Next").click()
    guest.page.locator(".screen .came").first.wait_for()
    guest.page.locator(".screen .went").first.wait_for()
    guest.check()
    look(guest, "attempt")


def test_an_attempt_without_a_replay_says_so(live: Any, visit: Callable[..., Any]) -> None:
    guest = visit(live.url)
    guest.sign_in(live.key)
    assert guest.page.get_by_role("link", name="Environments").count() == 0, "there is nothing to show"
    guest.page.goto(f"{live.url}/#/environments/terminal/env-{'0' * 32}")
    guest.page.get_by_text("No replay was kept").wait_for()
