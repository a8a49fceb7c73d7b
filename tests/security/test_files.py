"""What is stored is its owner's alone, whatever the folder and the umask are."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import httpx
import pytest

from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.testing import ServerProcess, clean_environment, command, tiny_model


@pytest.fixture
def no_umask() -> object:
    mask = os.umask(0)
    yield
    os.umask(mask)


def readable(folder: Path) -> list[str]:
    """Files that somebody else might read."""
    files = [file for file in folder.rglob("*") if not file.is_dir()]
    return sorted(
        str(f.relative_to(folder)) for f in files if f.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    )


@pytest.mark.usefixtures("no_umask")
def test_databases_and_exports_of_a_real_server(tmp_path: Path) -> None:
    home, model = tmp_path / "home", tiny_model(tmp_path / "model")
    home.mkdir()
    home.chmod(0o755)
    with ServerProcess(home, "--model", str(model), "--renderer", "qwen3") as server:
        headers = {"authorization": f"Bearer {server.key}"}
        body = {"model": "default", "messages": [{"role": "user", "content": "question 1"}], "max_tokens": 4}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/v1/sessions?query=x", headers=headers).status_code == 200
        assert {"serve.db", "serve.db-wal", "learn.db"} <= {file.name for file in home.iterdir()}
        assert readable(home) == []
    target = tmp_path / "export" / "turns.jsonl"
    target.parent.mkdir(mode=0o755)
    subprocess.run(
        [command(), "data", "export", str(target)],
        env=clean_environment(home),
        check=True,
        capture_output=True,
    )
    assert target.stat().st_size > 0
    assert readable(target.parent) == []
    assert readable(home) == []


@pytest.mark.usefixtures("no_umask")
def test_a_database_that_was_readable_no_longer_is(tmp_path: Path) -> None:
    path = tmp_path / "serve.db"
    ServeLedger(sqlite_url(path)).close()
    path.chmod(0o644)
    ledger = ServeLedger(sqlite_url(path))
    assert readable(tmp_path) == []
    ledger.close()
