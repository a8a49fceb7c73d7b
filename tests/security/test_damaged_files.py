"""Damaged files: a sentence with the remedy at the start; while running, what was known goes on to count."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.migrate import LEARN, SERVE, Migrations
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.engine.weights import load_tensors, read_checkpoint
from openclaw_rl.processes.parts import load_tokenizer
from openclaw_rl.testing import clean_environment, command, scripted_system, tiny_model
from tests.security.conftest import Live, chat


@pytest.mark.parametrize("content", ["", "{", "[]", '{"default": 5}', "\x00\x00"])
def test_damaged_keys_while_running_leave_those_known_before(live: Live, content: str) -> None:
    path = live.system.keys.path
    whole = path.read_text()
    with live.client() as client:
        assert client.get("/v1/models").status_code == 200
        path.write_text(content)
        assert client.post("/v1/chat/completions", json=chat()).status_code == 200
        ready = client.get("/readyz").json()
        assert (ready["status"], "key file" in ready["keys"]["problem"]) == ("degraded", True)
        path.write_text(whole)
        assert client.get("/v1/models").status_code == 200
        assert client.get("/readyz").json()["status"] == "ok"


@pytest.mark.parametrize("content", ["{", "[]", '{"default": 5}'])
def test_damaged_keys_at_the_start_are_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    said = subprocess.run(
        [command(), "keys", "list"], env=clean_environment(tmp_path), capture_output=True, text=True
    )
    assert said.returncode == 2
    assert "Traceback" not in said.stderr
    assert "remove it and restart" in said.stderr


@pytest.mark.parametrize("name", ["serve.db", "learn.db"])
@pytest.mark.parametrize("damage", ["half", "garbage", "one page less"])
def test_damaged_databases_are_a_sentence(tmp_path: Path, name: str, damage: str) -> None:
    kind = ServeLedger if name == "serve.db" else LearnLedger
    ledger = kind(sqlite_url(tmp_path / name))
    ledger.close()
    data = (tmp_path / name).read_bytes()
    cut = {"half": data[: len(data) // 2], "garbage": b"garbage" * 2000, "one page less": data[:-4096]}[
        damage
    ]
    (tmp_path / name).write_bytes(cut)
    with pytest.raises(ValueError, match=rf"{name}.*(damaged|cannot be opened).*") as said:
        kind(sqlite_url(tmp_path / name))
    assert "backup" in str(said.value) or "cannot be opened" in str(said.value)


def test_a_whole_database_with_a_log_is_not_taken_for_a_short_one(tmp_path: Path) -> None:
    system = scripted_system(tmp_path / "home")
    again = ServeLedger(sqlite_url(tmp_path / "home" / "serve.db"))
    assert again.counts()["turns"] == 0, "it opens, and can be read"
    again.close()
    system.ledgers.close()


def test_damaged_tokenizers_are_a_sentence(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    file = model / "tokenizer.json"
    file.write_text(file.read_text()[:1000])
    with pytest.raises(ValueError, match=r"cannot be read .* remove the folder"):
        load_tokenizer(model)


@pytest.mark.parametrize("damage", ["half", "empty", "a bit of the header", "garbage"])
def test_damaged_model_weights_are_a_sentence(tmp_path: Path, damage: str) -> None:
    file = tiny_model(tmp_path / "model") / "model.safetensors"
    data = file.read_bytes()
    damaged = {
        "half": data[: len(data) // 2],
        "empty": b"",
        "a bit of the header": data[:9] + bytes([data[9] ^ 0x80]) + data[10:],
        "garbage": b"garbage" * 2000,
    }
    file.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged .* remove its folder"):
        load_tensors(file.parent)


def test_a_start_with_a_damaged_model_ends_with_a_sentence(tmp_path: Path) -> None:
    file = tiny_model(tmp_path / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    serve = [command(), "serve", "--model", str(file.parent), "--renderer", "qwen3", "--port", "0"]
    said = subprocess.run(serve, env=clean_environment(tmp_path / "home"), capture_output=True, text=True)
    assert said.returncode != 0
    assert "Traceback" not in said.stderr
    assert "model.safetensors is damaged" in said.stderr
    assert "remove its folder" in said.stderr


def test_a_damaged_description_of_a_model_is_a_sentence(tmp_path: Path) -> None:
    file = tiny_model(tmp_path / "model") / "config.json"
    file.write_text(file.read_text()[:100])
    with pytest.raises(ValueError, match=r"config.json is damaged .* remove its folder"):
        read_checkpoint(file.parent)


@pytest.mark.parametrize(("kind", "table"), [(ServeLedger, SERVE), (LearnLedger, LEARN)])
def test_a_newer_schema_is_refused_by_both(tmp_path: Path, kind: type, table: Migrations) -> None:
    url = sqlite_url(tmp_path / "x.db")
    kind(url).close()
    engine = database.connect(sa.make_url(url))
    with database.writing(engine) as connection:
        connection.exec_driver_sql(f"INSERT INTO {table.table} VALUES (999)")
    engine.dispose()
    with pytest.raises(ValueError, match="newer version of openclaw-rl"):
        kind(url)


def test_the_log_of_learn_can_be_emptied_while_it_runs(tmp_path: Path) -> None:
    ledger = LearnLedger(sqlite_url(tmp_path / "learn.db"))
    log = tmp_path / "learn.db-wal"
    for number in range(2000):
        with database.writing(ledger.db) as connection:
            ledger.set_mark(connection, f"m{number % 7}", number)
        if number % 100 == 0:
            assert database.checkpoint(ledger.db) == 0
    assert log.stat().st_size < 4_000_000
    assert json.dumps(ledger.cursors()) == "[0, 0]"
    ledger.close()
