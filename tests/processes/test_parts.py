"""Where the parts find each other."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.processes.parts import engine_socket


def test_the_socket_lies_in_the_data_folder(tmp_path: Path) -> None:
    home = Path("/var/data")
    assert engine_socket(Config(home=home)) == home / "engine.sock"


def test_a_data_folder_too_deep_for_a_socket_has_one_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        deep = tmp_path / ("a" * 60) / ("b" * 60)
        path = engine_socket(Config(home=deep))
        assert path == engine_socket(Config(home=deep))  # both processes find the same
        assert path != engine_socket(Config(home=deep / "other"))
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(path))
        path.parent.chmod(0o755)
        with pytest.raises(ValueError, match="open to others"):
            engine_socket(Config(home=deep))
