"""Versions that hosts share through object storage."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from openclaw_rl.config import load_config
from openclaw_rl.processes.parts import open_store
from openclaw_rl.train.mirror import MirroredStore
from openclaw_rl.types.lora import ADAPTER_FILE


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket" if request.param == "file" else f"memory://{tmp_path.name}/bucket"


def save(folder: Path) -> None:
    (folder / "average").mkdir()
    (folder / "average" / ADAPTER_FILE).write_bytes(b"mean")
    (folder / ADAPTER_FILE).write_bytes(b"weights")
    (folder / "trainer.pt").write_bytes(b"state")


def test_another_host_finds_what_one_wrote(tmp_path: Path, url: str) -> None:
    one, other = MirroredStore(tmp_path / "one", url), MirroredStore(tmp_path / "other", url)
    assert not other.exists(1)
    one.write(1, save, {"version": 1, "scope": "user:ann"})
    assert other.has_weights(1)
    assert other.weights(1).scope == "user:ann"
    assert (other.path(1) / "average" / ADAPTER_FILE).read_bytes() == b"mean"
    one.update_manifest(1, gate={"passed": True})
    fresh = MirroredStore(tmp_path / "fresh", url)
    assert fresh.manifest(1)["gate"] == {"passed": True}
    one.forget(1, only_state=True)
    late = MirroredStore(tmp_path / "late", url)
    assert late.has_weights(1), "training goes on from it with a new optimizer"
    assert not (late.path(1) / "trainer.pt").exists()
    one.forget(1, only_state=False)
    assert not MirroredStore(tmp_path / "last", url).exists(1)


def test_a_version_without_its_manifest_is_none(tmp_path: Path, url: str) -> None:
    one = MirroredStore(tmp_path / "one", url)
    tokens = iter([7, 7])

    def fence() -> int:
        if (token := next(tokens, None)) is None:
            raise ConnectionError("the lease ran out during the upload")
        return token

    one.fence = fence
    with pytest.raises(ConnectionError):
        one.write(1, save, {})
    assert not MirroredStore(tmp_path / "other", url).exists(1)


def test_what_was_changed_there_is_not_served(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    MirroredStore(tmp_path / "one", url).write(1, save, {})
    (tmp_path / "bucket" / "1" / ADAPTER_FILE).write_bytes(b"another's")
    assert "is damaged" in str(MirroredStore(tmp_path / "other", url).problem(1))


def test_the_setting_takes_folders_and_urls(tmp_path: Path) -> None:
    def store(**settings: str) -> object:
        return open_store(load_config({"home": tmp_path, **settings}, environment={}))

    assert isinstance(store(policies="memory://somewhere"), MirroredStore)
    assert not isinstance(store(policies=str(tmp_path / "shared")), MirroredStore)
    with pytest.raises(ValueError, match="--policies"):
        store(policies="nosuchthing://bucket")
    assert fsspec.filesystem("memory") is not None
