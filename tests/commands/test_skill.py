"""What was corrected again is proposed as a SKILL.md; writing it approves it, and it can be taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.database import writing
from openclaw_rl.capture.wishes import wish_turns, wishes
from openclaw_rl.commands.cli import main
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system
from tests.listening import listening

SHORT, FRENCH, LISTS = "Please answer in one sentence.", "In French please.", "no lists"


@pytest.fixture
def system(tmp_path: Path) -> Iterator[ServingSystem]:
    system = scripted_system(tmp_path / "home")
    with listening(system) as url:
        (system.config.home / "serve.json").write_text(json.dumps({"url": url, "pid": 1}))
        yield system


def wish(system: ServingSystem, text: str, times: int, user: str = "default", **values: Any) -> str:
    name = f"{user}-{text}"
    row = {"turn_id": name, "scope": "everyone", "user": user, "text": text, "status": "active",
           "created_at": 1.0, "served": 0, "tried": 0, "accepted": 0, "versions": 0, **values}  # fmt: skip
    with writing(system.ledgers.learn.db) as connection:
        connection.execute(wishes.insert().values(row))
        for number in range(times):
            told = {"wish": name, "turn_id": f"{name}-{number}", "at": 1.0 + number}
            connection.execute(wish_turns.insert().values(told))
    return name


def run(system: ServingSystem, *arguments: str) -> int:
    return main(["wishes", "skill", *arguments, "--home", str(system.config.home)])


def test_only_what_one_person_corrected_again_is_proposed_with_its_replies(
    system: ServingSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(system) == 0
    assert "nothing was corrected twice" in capsys.readouterr().out
    wish(system, "once is a remark", 1)
    wish(system, LISTS, 2)
    wish(system, SHORT, 3)
    wish(system, "refused as a note", 4, noted=0)
    wish(system, "taken back", 4, status="taken back")
    wish(system, FRENCH, 5, user="ann")
    assert run(system) == 0
    said = capsys.readouterr().out
    assert "corrected 3 times" in said
    assert f"default-{SHORT}-2" in said, "each with the replies it comes from"
    assert [line for line in said.splitlines() if line.startswith("- ")] == [f"- {SHORT}", f"- {LISTS}"]
    url = json.loads((system.config.home / "serve.json").read_text())["url"]
    hers = httpx.get(
        f"{url}/v1/wishes/skill", headers={"authorization": f"Bearer {system.keys.add('ann')}"}
    ).json()
    assert [w["text"] for w in hers["wishes"]] == [FRENCH]
    assert "name: how-ann-wants-replies" in hers["text"]


def test_the_list_says_how_often_and_how_far(
    system: ServingSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    wish(system, LISTS, 2)
    assert main(["wishes", "--home", str(system.config.home)]) == 0
    assert f"{LISTS}  asked 2 times since 1970-01-01; being learned" in capsys.readouterr().out


def test_it_is_written_where_agents_look_and_taken_back(
    system: ServingSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = tmp_path / "skills" / "wishes", tmp_path / "skills" / "wishes" / "SKILL.md"
    wish(system, SHORT, 2)
    assert run(system, "--to", str(folder)) == 0
    assert path.read_text().startswith("---\nname: how-the-owner-wants-replies\n")
    assert f"+- {SHORT}" in capsys.readouterr().out, "the change is shown"
    wish(system, LISTS, 2)
    assert run(system, "--to", str(folder)) == 0
    assert f"- {LISTS}" in path.read_text()
    assert run(system, "--to", str(folder), "--undo") == 0
    assert not path.exists()
    assert main(["wishes", "skill", "--undo", "--home", str(system.config.home)]) == 2


def test_a_skill_of_ones_own_is_kept_and_comes_back(system: ServingSystem, tmp_path: Path) -> None:
    path = tmp_path / "SKILL.md"
    path.write_text("mine\n")
    wish(system, SHORT, 2)
    assert run(system, "--to", str(tmp_path)) == 0
    assert SHORT in path.read_text()
    assert run(system, "--to", str(tmp_path), "--undo") == 0
    assert path.read_text() == "mine\n"
