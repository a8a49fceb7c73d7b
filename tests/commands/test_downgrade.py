"""Up and down again: what a newer version wrote is refused with a way out, and a backup is that way."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands.cli import main
from openclaw_rl.testing import clean_environment, command

from ..capture.conftest import make_turn

OLD = Path(__file__).parents[1] / "capture" / "ledger-0.1"
TABLES = {"serve.db": "schema_version", "learn.db": "learn_schema_version"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for file in OLD.iterdir():
        (home / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    (home / "keys.json").write_text(json.dumps({"default": "sk-old"}))
    assert main(["policy", "list", "--home", str(home)]) == 0, "this version's schema"
    return home


def talk(home: Path, turn_id: str) -> None:
    with closing(ServeLedger(sqlite_url(home / "serve.db"))) as ledger:
        ledger.append([make_turn(turn_id, f"session of {turn_id}")])


def turns(home: Path) -> list[str]:
    with closing(ServeLedger(sqlite_url(home / "serve.db"))) as ledger:
        return [turn["id"] for turn in ledger.turns_after(0, 100)]


def upgrade(home: Path, name: str) -> int:
    """As a version with one more migration would leave it."""
    with closing(sqlite3.connect(home / name)) as database:
        (version,) = database.execute(f"SELECT MAX(version) FROM {TABLES[name]}").fetchone()
        database.execute(f"INSERT INTO {TABLES[name]} VALUES ({version + 1})")
        database.commit()
        return int(version) + 1


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("arguments", ["serve", "policy list"])
def test_a_folder_of_a_newer_version_is_refused_with_a_way_out(home: Path, name: str, arguments: str) -> None:
    newer = upgrade(home, name)
    ran = subprocess.run(
        [command(), *arguments.split()], env=clean_environment(home), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    said = ran.stderr
    assert f"{home / name} was written by a newer version of openclaw-rl (schema {newer}" in said
    assert "upgrade openclaw-rl, or restore a backup" in said
    assert "openclaw-rl restore FILE.tar.gz --home NEW_FOLDER" in said
    assert "Traceback" not in said
    with closing(sqlite3.connect(home / name)) as database:
        (version,) = database.execute(f"SELECT MAX(version) FROM {TABLES[name]}").fetchone()
    assert version == newer, "it is left as it was"


def test_people_that_a_newer_version_wrote_are_refused_too(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "users.json").write_text(json.dumps({"ann": {"group": "us", "favourite_colour": "green"}}))
    assert main(["users", "list", "--home", str(home)]) == 2
    said = capsys.readouterr().err
    assert "users.json was written by a newer version of openclaw-rl (favourite_colour)" in said
    assert "upgrade openclaw-rl, or restore a backup" in said


def test_a_backup_leads_back_to_before_the_upgrade(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, back = tmp_path / "before.tar.gz", tmp_path / "back"
    talk(home, "before")
    kept = turns(home)
    assert main(["backup", str(file), "--home", str(home)]) == 0
    talk(home, "after")
    for name in TABLES:
        upgrade(home, name)
    assert main(["policy", "list", "--home", str(home)]) == 2
    assert main(["restore", str(file), "--home", str(back)]) == 0, capsys.readouterr().err
    assert turns(back) == kept
    assert kept[-1] == "before"
    assert main(["policy", "list", "--home", str(back)]) == 0
    talk(back, "and on")
    assert turns(back) == [*kept, "and on"], "it goes on where the backup was taken"


def test_new_data_does_not_change_what_is_in_a_backup(home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "b.tar.gz", tmp_path / "other"
    kept = turns(home)
    assert main(["backup", str(file), "--home", str(home)]) == 0
    talk(home, "new")
    (home / "keys.json").write_text(json.dumps({"default": "sk-old", "ann": "sk-ann"}))
    assert main(["restore", str(file), "--home", str(other)]) == 0
    assert turns(other) == kept
    assert turns(home) == [*kept, "new"]
    assert json.loads((other / "keys.json").read_text()) == {"default": "sk-old"}


def test_a_backup_by_a_newer_version_leaves_nothing_behind(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "newer.tar.gz", tmp_path / "other"
    upgrade(home, "learn.db")
    assert main(["backup", str(file), "--home", str(home)]) == 0
    assert main(["restore", str(file), "--home", str(other)]) == 2
    assert "newer version" in capsys.readouterr().err
    assert not [path for path in other.rglob("*") if path.is_file() and path.name != "serve.json"]
    assert main(["restore", str(file), "--home", str(other)]) == 2
    assert "newer version" in capsys.readouterr().err, "not: 'holds data already'"
