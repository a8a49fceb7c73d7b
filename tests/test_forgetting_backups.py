"""What is forgotten is gone from the backups made before, or does not come back with them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_rl.capture import schema
from openclaw_rl.capture.prune import prune
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands.cli import main
from openclaw_rl.processes.backups import Backups
from openclaw_rl.testing import clean_environment, wait_until

from .test_forgetting import WORDS, close, forgetting, spelled, talk
from .test_scopes import Stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path / "home", reward_baseline=False)
    yield stack
    await close(stack)


def back_up(stack: Stack, file: Path) -> Path:
    assert main(["backup", str(file), "--home", str(stack.config.home)]) == 0
    return file


def restored(file: Path, home: Path) -> Path:
    assert main(["restore", str(file), "--home", str(home)]) == 0
    return home


def unpacked(file: Path, folder: Path) -> Path:
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    return folder


def holds(file: Path, folder: Path) -> list[str]:
    """Files of a backup that hold the words, also inside what is compressed in the databases."""
    home, found = unpacked(file, folder), []
    for path in home.rglob("*"):
        if path.is_file() and (WORDS.lower().encode() in path.read_bytes().lower() or in_bodies(path)):
            found.append(path.name)
    shutil.rmtree(folder)
    return found


def in_bodies(path: Path) -> bool:
    if path.name != "serve.db":
        return False
    ledger = ServeLedger(sqlite_url(path))
    try:
        with ledger.db.connect() as connection:
            bodies = [row.body for row in connection.execute(schema.bodies.select())]
    finally:
        ledger.close()
    return any(WORDS.lower().encode() in form.lower() for body in bodies for form in forms(body))


def forms(body: bytes) -> list[bytes]:
    try:
        return [body, zlib.decompress(body)]
    except zlib.error:
        return [body]


def sessions_of(home: Path) -> set[str]:
    ledger = ServeLedger(sqlite_url(home / "serve.db"))
    try:
        return {session["id"] for session in ledger.list_sessions(100)}
    finally:
        ledger.close()


async def test_no_byte_is_left_in_a_backup_made_before(stack: Stack, tmp_path: Path) -> None:
    sessions = await talk(stack, "one", WORDS, "three", "four")
    await stack.learn()
    file = back_up(stack, tmp_path / "b.tar.gz")
    clean = back_up(stack, tmp_path / "c.tar.gz")
    assert "serve.db" in holds(file, tmp_path / "x")
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert receipt["backups"] == {str(file): "rewritten", str(clean): "rewritten"}
    assert holds(file, tmp_path / "x") == holds(clean, tmp_path / "x") == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert spelled(tmp_path) == []
    forgotten = restored(file, tmp_path / "other")
    assert sessions_of(forgotten) == {sessions[0], *sessions[2:]}, "the rest is there"
    assert not (forgotten / "policies" / "1").exists(), "what was trained on it is not"
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


async def test_a_later_backup_is_left_as_it_is(stack: Stack, tmp_path: Path) -> None:
    sessions = await talk(stack, "one", "two")
    forgetting(stack).forget("session", sessions[0])
    file = back_up(stack, tmp_path / "b.tar.gz")
    before = file.read_bytes()
    receipt = forgetting(stack).forget("session", (await talk(stack, WORDS))[0])
    assert receipt is not None
    assert list(receipt["backups"].values()) == ["holds nothing of it"]
    assert file.read_bytes() == before


async def test_what_a_person_said_after_being_forgotten_stays(stack: Stack, tmp_path: Path) -> None:
    await talk(stack, WORDS)
    old = back_up(stack, tmp_path / "old.tar.gz")
    assert forgetting(stack).forget("user", "ann") is not None
    [later] = await talk(stack, "later")
    new = back_up(stack, tmp_path / "new.tar.gz")
    assert forgetting(stack).forget("user", "ben") is None
    [other] = await talk(stack, "other")
    forgetting(stack).forget("session", other)
    assert sessions_of(restored(new, tmp_path / "1")) == {later}
    assert sessions_of(restored(old, tmp_path / "2")) == set()


async def test_one_that_is_away_is_said_and_does_not_bring_it_back(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = await talk(stack, WORDS, "two")
    await stack.learn()
    file, away = back_up(stack, tmp_path / "b.tar.gz"), tmp_path / "away.tar.gz"
    file.rename(away)
    assert main(["forget", "session", sessions[0], "--home", str(stack.config.home)]) == 0
    said = capsys.readouterr()
    assert f"{file} still holds it (not found)" in said.err
    assert said.out.splitlines()[-1].startswith("Receipt: forget-")
    home = restored(away, tmp_path / "other")
    assert "was erased from it" in capsys.readouterr().out
    assert sessions_of(home) == {sessions[1]}
    assert spelled(home) == []
    assert json.loads((home / "backups.json").read_text())[-1]["file"] == str(away)
    away.rename(file)
    assert forgetting(stack).forget("session", sessions[1]) is not None
    assert holds(file, tmp_path / "x") == [], "all that was forgotten so far, once the file is back"


async def test_without_the_folder_it_came_from_its_receipts_are_enough(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = await talk(stack, WORDS, "two")
    away = back_up(stack, tmp_path / "b.tar.gz").rename(tmp_path / "away.tar.gz")
    forgetting(stack).forget("session", sessions[0])
    shutil.copytree(stack.config.home / "forgotten", tmp_path / "other" / "forgotten")
    moved = stack.config.home.rename(tmp_path / "moved")
    try:
        home = restored(away, tmp_path / "other")
    finally:
        moved.rename(stack.config.home)
    assert "is not there" in capsys.readouterr().out
    assert sessions_of(home) == {sessions[1]}
    assert spelled(home) == []


async def test_pruned_meanwhile_is_forgotten_in_the_backup_by_the_person_s_name(
    stack: Stack, tmp_path: Path
) -> None:
    sessions = await talk(stack, WORDS)
    file = back_up(stack, tmp_path / "b.tar.gz")
    with stack.system.ledgers.serve.writing() as connection:
        connection.execute(schema.turns.update().values(created_at=1.0))
    prune(stack.system.ledgers.serve, older_than_s=1e6, learn_ledger=stack.system.ledgers.learn)
    assert sessions_of(stack.config.home) == set()
    await talk(stack, "two")
    assert forgetting(stack).forget("user", "ann") is not None
    assert holds(file, tmp_path / "x") == []
    assert sessions[0] not in sessions_of(restored(file, tmp_path / "other"))


async def test_a_file_that_is_no_backup_any_more_is_left_alone(stack: Stack, tmp_path: Path) -> None:
    sessions = await talk(stack, WORDS, "two")
    file = back_up(stack, tmp_path / "b.tar.gz")
    file.write_text("a letter")
    receipt = forgetting(stack).forget("session", sessions[0])
    assert receipt is not None
    assert receipt["backups"][str(file)].startswith("not rewritten: ")
    assert file.read_text() == "a letter"


async def test_others_do_not_see_where_backups_are(stack: Stack, tmp_path: Path) -> None:
    [session] = await talk(stack, WORDS)
    await stack.complain("ben", 2)
    await stack.learn()
    back_up(stack, tmp_path / "b.tar.gz")
    answer = await stack.http["ann"].delete(f"/v1/sessions/{session}")
    assert answer.json()["backups"] == {"rewritten": 1}
    assert str(tmp_path) not in answer.text
    assert "ben" not in answer.text


async def test_a_backup_by_an_earlier_release_is_not_restored_without_a_word(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await talk(stack, WORDS)
    file, old = back_up(stack, tmp_path / "b.tar.gz"), tmp_path / "old.tar.gz"
    folder = unpacked(file, tmp_path / "x")
    facts = json.loads((folder / "backup.json").read_text())
    (folder / "backup.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "home"}))
    with tarfile.open(old, "w:gz") as archive:
        for name in (*facts["files"], "backup.json"):
            archive.add(folder / name, name)
    restored(old, tmp_path / "other")
    assert "does not say which folder it was made from" in capsys.readouterr().out


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2, 0.5])
async def test_a_kill_leaves_the_old_archive_or_the_new_one(
    stack: Stack, tmp_path: Path, delay_s: float
) -> None:
    sessions = await talk(stack, WORDS, "two")
    await stack.learn()
    file, home = back_up(stack, tmp_path / "b.tar.gz"), stack.config.home
    process = subprocess.Popen(
        [sys.executable, "-m", "openclaw_rl", "forget", "session", sessions[0], "--home", str(home)],
        stdout=subprocess.DEVNULL,
        env=clean_environment(home),
    )
    wait_until(lambda: list(home.glob("forgotten/forget-*.json")), "it has begun")
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with tarfile.open(file) as archive:
        assert archive.getnames(), "whole in any case"
    forgetting(stack).resume()
    assert holds(file, tmp_path / "x") == []
    assert spelled(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]
    assert not (home / ".backup.part").exists()


async def test_the_list_says_where_and_when_and_is_private(stack: Stack, tmp_path: Path) -> None:
    await talk(stack, WORDS)
    file = back_up(stack, tmp_path / "b.tar.gz")
    [entry] = Backups(stack.config.home).entries()
    assert (entry["file"], set(entry)) == (str(file), {"file", "made_at"})
    assert stat.S_IMODE((stack.config.home / "backups.json").stat().st_mode) == 0o600
