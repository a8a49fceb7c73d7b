"""Weights that are not what was written never serve: the last good version does, and says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from openclaw_rl.testing import ServerProcess, tiny_model, wait_until
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.policies import MANIFEST, TRAINER_STATE, PolicyStore
from openclaw_rl.types.lora import ADAPTER_FILE
from tests.train.versions import OPTIONS, Home


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model, and a data folder with versions one after another, of which the last serves."""
    torch.set_num_threads(1)
    model, home = tiny_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("made") / "home"
    data = Home(home, LocalTrainer(model, OPTIONS))
    for _ in range(LAST):
        data.step(True)
    data.close()
    return model, home


@pytest.fixture
def home(made: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[1], tmp_path / "home"))


def server(made: tuple[Path, Path], home: Path) -> ServerProcess:
    return ServerProcess(home, "--model", str(made[0]), "--renderer", "qwen3", "--no-learn")


def client(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {server.key}"}, timeout=60)


def truncate(folder: Path) -> None:
    with (folder / ADAPTER_FILE).open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)


def flip(folder: Path) -> None:
    """One bit, in the middle of the numbers."""
    with (folder / ADAPTER_FILE).open("r+b") as file:
        middle = file.seek(0, 2) // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 0x40]))


def empty_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("")


def lose_file(folder: Path) -> None:
    (folder / ADAPTER_FILE).unlink()


DAMAGES: list[Callable[[Path], Any]] = [truncate, flip, empty_manifest, lose_file, shutil.rmtree]
LAST = 2 + len(DAMAGES)


def test_a_start_with_damaged_weights_serves_the_last_good_ones(
    made: tuple[Path, Path], home: Path, tmp_path: Path
) -> None:
    """Each version after the second is damaged in its own way; then the last one is restored."""
    folder = home / "policies" / str(LAST)
    shutil.copytree(folder, tmp_path / "backup")
    for version, damage in enumerate(DAMAGES, 3):
        damage(home / "policies" / str(version))
    with server(made, home) as running, client(running) as http:
        assert http.get("/v1/status").json()["policy_version"] == 2
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert str(LAST) in ready.json()["policy"]["problem"]
        body = {"model": "default", "messages": [{"role": "user", "content": "question 1"}], "max_tokens": 4}
        reply = http.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.headers["x-policy-version"]) == (200, "2")
        shutil.rmtree(folder, ignore_errors=True)
        (tmp_path / "backup").rename(folder)
        wait_until(
            lambda: http.get("/v1/status").json()["policy_version"] == LAST, "the restored version serves"
        )
        wait_until(lambda: http.get("/readyz").json()["status"] == "ok", "all is well again")
    assert "Traceback" not in running.log()


def test_damaged_weights_are_not_promoted_and_the_ledger_does_not_name_them(
    made: tuple[Path, Path], home: Path
) -> None:
    with server(made, home) as running, client(running) as http:
        for damage in DAMAGES:
            folder = home / "policies" / "1"
            damage(folder)
            answer = http.post("/v1/policies/1/promote")
            assert answer.status_code == 404, answer.text
            assert "policy" in answer.json()["error"]["message"]
            serving = [
                p["version"] for p in http.get("/v1/policies").json()["data"] if p["status"] == "serving"
            ]
            assert serving == [LAST]
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(made[1] / "policies" / "1", folder)
        assert http.post("/v1/policies/1/promote").status_code == 200
        assert http.get("/readyz").json()["status"] == "ok"


def test_versions_of_earlier_releases_have_no_checksums_and_still_load(home: Path) -> None:
    store = PolicyStore(home / "policies")
    assert set(store.manifest(3)["files"]) >= {ADAPTER_FILE}
    store.update_manifest(3, files={})
    assert store.has_weights(3)
    store.update_manifest(3, gate={"passed": True})
    truncate(home / "policies" / "2")
    assert not store.has_weights(2)


def test_a_damaged_optimizer_state_costs_the_optimizer_only(made: tuple[Path, Path], home: Path) -> None:
    state = home / "policies" / "3" / TRAINER_STATE
    state.write_bytes(state.read_bytes()[:100])
    store, trainer = PolicyStore(home / "policies"), LocalTrainer(made[0], OPTIONS)
    trainer.resume(store.weights(3))
    assert store.has_weights(3)
