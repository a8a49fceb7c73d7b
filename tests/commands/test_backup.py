"""A data folder goes into one file while others write to it, and comes back whole."""

from __future__ import annotations

import gzip
import io
import json
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands.cli import main
from openclaw_rl.processes.archive import pack, read_manifest, unpack

OLD = Path(__file__).parents[1] / "capture" / "ledger-0.1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """As version 0.1 left it, with a version on disk."""
    home = tmp_path / "home"
    (home / "policies" / "1").mkdir(parents=True)
    for file in OLD.iterdir():
        (home / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    (home / "policies" / "1" / "manifest.json").write_text("{}")
    (home / "keys.json").write_text(json.dumps({"default": "sk-old"}))
    (home / "search.db").write_text("can be made again")
    return home


def turns(home: Path) -> list[str]:
    ledger = ServeLedger(sqlite_url(home / "serve.db"))
    try:
        return [turn["id"] for turn in ledger.turns_after(0, 100)]
    finally:
        ledger.close()


def test_there_and_back_with_the_data_of_the_release_before(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "b.tar.gz", tmp_path / "other"
    assert main(["backup", str(file), "--home", str(home)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["restore", str(file), "--home", str(other)]) == 0, capsys.readouterr().err
    assert turns(other) == turns(home) != []
    assert (other / "keys.json").read_text() == (home / "keys.json").read_text()
    assert (other / "policies" / "1" / "manifest.json").exists()
    assert not (other / "search.db").exists()
    assert stat.S_IMODE((other / "keys.json").stat().st_mode) == 0o600
    assert main(["backup", str(file), "--home", str(home)]) == 2
    assert "exists; choose another name" in capsys.readouterr().err
    assert main(["restore", str(file), "--home", str(home)]) == 2
    assert "holds data already" in capsys.readouterr().err


def test_what_is_written_but_not_yet_in_the_main_file_is_in_it(home: Path, tmp_path: Path) -> None:
    """The server's log (WAL) holds what was committed lately; somebody has the database open."""
    ledger = ServeLedger(sqlite_url(home / "serve.db"))
    with ledger.db.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE probe (x)")
        connection.exec_driver_sql("INSERT INTO probe VALUES (7)")
    assert (home / "serve.db-wal").stat().st_size > 0
    assert main(["backup", str(tmp_path / "b.tar.gz"), "--home", str(home)]) == 0
    ledger.close()
    other = tmp_path / "other"
    assert main(["restore", str(tmp_path / "b.tar.gz"), "--home", str(other)]) == 0
    restored = ServeLedger(sqlite_url(other / "serve.db"))
    with restored.db.connect() as connection:
        assert connection.exec_driver_sql("SELECT x FROM probe").scalar() == 7
    restored.close()


def test_what_is_no_backup_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = str(tmp_path / "empty")
    assert main(["backup", str(tmp_path / "b.tar.gz"), "--home", empty]) == 2
    assert "nothing to back up" in capsys.readouterr().err
    assert not (tmp_path / "b.tar.gz").exists()
    assert main(["backup", str(tmp_path / "no" / "b.tar.gz"), "--home", str(home)]) == 2
    assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err
    foreign = tmp_path / "foreign.tar.gz"
    with tarfile.open(foreign, "w:gz") as archive:
        archive.add(home / "keys.json", "keys.json")
    assert main(["restore", str(foreign), "--home", empty]) == 2
    assert "is no backup" in capsys.readouterr().err
    manifest = {"format": 1, "version": "0", "made_at": 1.0, "files": {"policies/../../x": ""}}
    (tmp_path / "backup.json").write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "backup.json", "backup.json")
    assert main(["restore", str(tmp_path / "evil.tar.gz"), "--home", str(tmp_path / "e2")]) == 2
    assert "which no backup has" in capsys.readouterr().err


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A backup with other contents of some files; None leaves one out."""
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old.getmembers():
            data = old.extractfile(member)
            assert data is not None
            if (content := change(member.name, data.read())) is not None:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    return target


def cut_short(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes()[:-2000])
    return target


@pytest.mark.parametrize("damage", ["no archive", "cut short", "a file is missing", "a file is another one"])
def test_a_damaged_one_is_told_in_a_sentence_and_leaves_nothing_behind(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    good, bad, other = tmp_path / "good.tar.gz", tmp_path / "bad.tar.gz", tmp_path / "other"
    assert main(["backup", str(good), "--home", str(home)]) == 0
    if damage == "no archive":
        bad.write_bytes(b"this is a picture, say")
    elif damage == "cut short":
        cut_short(good, bad)
    elif damage == "a file is missing":
        rewritten(good, bad, lambda name, data: None if name == "keys.json" else data)
    else:
        rewritten(good, bad, lambda name, data: b"{}" if name == "keys.json" else data)
    capsys.readouterr()
    assert main(["restore", str(bad), "--home", str(other)]) == 2
    said = capsys.readouterr().err
    assert str(bad) in said
    assert "another backup" in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
    left = [path.name for path in other.rglob("*") if path.is_file()] if other.exists() else []
    assert [name for name in left if name != "serve.json"] == [], "but the file that says who uses the folder"
    assert main(["restore", str(good), "--home", str(other)]) == 0, capsys.readouterr().err
    assert turns(other) == turns(home)


def test_a_file_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", str(tmp_path / "none.tar.gz"), "--home", str(tmp_path / "other")]) == 2
    assert "none.tar.gz" in capsys.readouterr().err


def test_what_was_in_the_folder_before_stays(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, other = tmp_path / "good.tar.gz", tmp_path / "bad.tar.gz", tmp_path / "other"
    assert main(["backup", str(good), "--home", str(home)]) == 0
    rewritten(good, bad, lambda name, data: b"[]" if name == "policies/1/manifest.json" else data)
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert main(["restore", str(bad), "--home", str(other)]) == 2
    assert (other / "notes.txt").read_text() == "mine"
    (other / "keys.json").write_text("{}")
    assert main(["restore", str(good), "--home", str(other)]) == 2
    said = capsys.readouterr().err
    assert "keys.json" in said
    assert "move it away" in said
    assert (other / "keys.json").read_text() == "{}"
    assert not (other / "serve.db").exists()


EVIL = "forget-../../../evil"


def test_a_receipt_in_a_backup_names_no_file_elsewhere(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its id is the name under which it is written into the folder that is restored into."""
    good, bad, other = tmp_path / "good.tar.gz", tmp_path / "bad.tar.gz", tmp_path / "deep" / "er" / "other"
    (home / "forgotten").mkdir()
    (home / "forgotten" / "forget-1.json").write_text(json.dumps({"id": EVIL, "at": 1.0, "turns": []}))
    assert main(["backup", str(good), "--home", str(home)]) == 0
    rewritten(good, bad, lambda name, data: data)
    assert main(["restore", str(bad), "--home", str(other)]) == 2
    assert "no receipt" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*evil*")]


@pytest.mark.parametrize(
    "manifest",
    ["[]", "7", "{}", '{"format": 1}', '{"format": 1, "files": []}', '{"a": 1}',
     '{"format": 1, "files": {}, "version": "0"}', '{"format": 1, "files": {}, "made_at": 1.0}',
     '{"format": 1, "files": {"serve.db": 7}}', '{"format": 1, "files": {}, "home": 7}',
     '{"a":' * 50_000, "{" * 100],
)  # fmt: skip
def test_a_manifest_of_another_shape_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: str
) -> None:
    (tmp_path / "backup.json").write_text(manifest)
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "backup.json", "backup.json")
    assert main(["restore", str(tmp_path / "evil.tar.gz"), "--home", str(tmp_path / "e")]) == 2
    assert "is no backup" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_backup_lead_nowhere(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: bytes
) -> None:
    (tmp_path / "secret").write_text("a secret")
    manifest = {"format": 1, "version": "0", "made_at": 1.0, "files": {"keys.json": "0" * 64}}
    (tmp_path / "backup.json").write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("keys.json")
        link.type, link.linkname = kind, str(tmp_path / "secret")
        archive.addfile(link)
        archive.add(tmp_path / "backup.json", "backup.json")
    assert main(["restore", str(tmp_path / "evil.tar.gz"), "--home", str(tmp_path / "e")]) == 2
    assert "another backup" in capsys.readouterr().err
    assert not (tmp_path / "e" / "keys.json").exists()


class Replaced(type(Path())):  # type: ignore[misc]
    """A file that gets other contents as soon as somebody has opened it."""

    def open(self, *arguments: Any, **more: Any) -> Any:
        opened = super().open(*arguments, **more)
        other = Path(f"{self}.other")
        other.write_text("longer than it was before")
        other.rename(self)
        return opened


def test_what_changes_or_goes_while_it_is_packed_damages_no_backup(tmp_path: Path) -> None:
    """Versions are checked and keys are added meanwhile; nothing of such a backup could be restored."""
    changing, target = tmp_path / "keys.json", tmp_path / "b.tar.gz"
    changing.write_text("{}")
    members = [("users.json", tmp_path / "gone.json"), ("keys.json", Replaced(changing))]
    pack(members, target, {"made_at": 1.0, "home": ""})
    assert changing.read_text() == "longer than it was before"
    facts = unpack(target, tmp_path / "unpacked")
    assert list(facts["files"]) == ["keys.json"]
    assert (tmp_path / "unpacked" / "keys.json").read_text() == "{}"


def test_what_is_being_written_is_left_out(home: Path, tmp_path: Path) -> None:
    for name in (".2.part/adapter.bin", "1/manifest.part"):
        (home / "policies" / name).parent.mkdir(exist_ok=True)
        (home / "policies" / name).write_text("half of it")
    assert main(["backup", str(tmp_path / "b.tar.gz"), "--home", str(home)]) == 0
    files = read_manifest(tmp_path / "b.tar.gz")["files"]
    assert [name for name in files if name.startswith("policies/")] == ["policies/1/manifest.json"]


def test_a_backup_is_not_restored_beside_a_ledger_elsewhere(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", str(tmp_path / "b.tar.gz"), "--home", str(home)]) == 0
    elsewhere = ["--home", str(tmp_path / "new"), "--ledger-url", "postgresql://db/claw"]
    assert main(["restore", str(tmp_path / "b.tar.gz"), *elsewhere]) == 2
    assert "not into --ledger-url" in capsys.readouterr().err


def test_a_damaged_ledger_is_told_in_a_sentence(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "serve.db").write_bytes(b"no database " * 1000)
    assert main(["backup", str(tmp_path / "b.tar.gz"), "--home", str(home)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"openclaw-rl: {home / 'serve.db'} cannot be copied (")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
