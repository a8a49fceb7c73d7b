"""What the owner decides about people is kept, read again when it changes, and checked."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from openclaw_rl.commands.cli import main
from openclaw_rl.scopes import PolicyScopes
from openclaw_rl.users import Person, Users


def test_a_decision_counts_in_other_processes_at_once(tmp_path: Path) -> None:
    here, there = Users.in_home(tmp_path), Users.in_home(tmp_path)
    assert there.of("ann") == Person()
    here.change("ann", group="team")
    here.change("ann", requests_per_minute=5)
    assert there.of("ann") == Person(group="team", requests_per_minute=5)
    here.forget("ann")
    assert there.of("ann") == Person()
    assert stat.S_IMODE(here.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("changes", [{"group": "a b"}, {"requests_per_minute": 0}, {"tokens_per_day": -1}])
def test_what_cannot_be_meant_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Users.in_home(tmp_path).change("ann", **changes)


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text('{"ann": "red"')
    with pytest.raises(ValueError, match=r"users\.json cannot be read"):
        Users.in_home(tmp_path).of("ann")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def users(*words: str) -> str:
        status = main(["users", *words, "--home", str(tmp_path)])
        shown = capsys.readouterr()
        return shown.out if not status else f"{status}: {shown.err}"

    assert users("add", "ann").startswith("ann: sk-")
    assert users("group", "ann", "team") == "ann, group team\n"
    users("quota", "ann", "--requests-per-minute", "5", "--tokens-per-day", "1000")
    users("record", "ann", "off")
    assert (
        users("list") == "ann, group team, off the record, 5 requests a minute, 1000 tokens a day\ndefault\n"
    )
    assert users("quota", "ann", "--requests-per-minute", "none").count("requests") == 0
    assert "users add bob" in users("group", "bob", "team")
    assert "'many' is no limit" in users("quota", "ann", "--tokens-per-day", "many")


@pytest.mark.parametrize(
    ("mode", "scopes"),
    [
        ("everyone", {"default": "everyone", "ann": "everyone", "ben": "everyone"}),
        ("group", {"default": "everyone", "ann": "group:team", "ben": "everyone"}),
        ("user", {"default": "everyone", "ann": "group:team", "ben": "user:ben"}),
        ("auto", {"default": "everyone", "ann": "group:team", "ben": "user:ben"}),
    ],
)
def test_whose_policy_answers(tmp_path: Path, mode: str, scopes: dict[str, str]) -> None:
    users = Users.in_home(tmp_path)
    users.change("ann", group="team")
    found = PolicyScopes(mode, "default", users, lambda: list(scopes))
    assert {user: found.of(user) for user in scopes} == scopes


def test_one_key_is_as_before_and_a_second_makes_two_policies(tmp_path: Path) -> None:
    names = ["default"]
    found = PolicyScopes("auto", "default", Users.in_home(tmp_path), lambda: names)
    assert found.of("default") == "everyone"
    names.append("ann")
    assert found.of("default") == "everyone", "what was learned before stays with whoever taught it"
    assert found.of("ann") == "user:ann"
