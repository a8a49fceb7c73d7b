"""``start``, ``logs`` and ``stop``: the real command, passing requests on so that no model is loaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from openclaw_rl.commands import background
from openclaw_rl.commands.cli import main
from openclaw_rl.testing import clean_environment, command


def test_in_the_background_and_gone_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENCLAW_RL_API_KEY", raising=False)
    home = ("--home", str(tmp_path / "home"))
    flags = (*home, "--upstream", "http://127.0.0.1:9/v1", "--no-learn", "--port", "0")
    assert main(["stop", *home]) == 2
    assert "no server is running" in capfd.readouterr().err
    started = subprocess.run(
        [command(), "start", *flags],
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    try:
        said = started.stdout
        assert started.returncode == 0, said + started.stderr
        assert "dashboard  http://127.0.0.1:" in said
        assert f"background: openclaw-rl status, logs, stop, each with --home {home[1]}." in said
        assert main(["status", *home]) == 0
        assert main(["start", *flags]) == 2
        assert "is running with" in capfd.readouterr().err
        assert main(["logs", *home]) == 0
        assert "dashboard" in capfd.readouterr().out
    finally:
        assert main(["stop", *home]) == 0
    assert background._running(tmp_path / "home") is None
    log = tmp_path / "home" / "serve.log"
    assert log.stat().st_mode & 0o077 == 0
    assert "Traceback" not in log.read_text()


def test_a_start_that_fails_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ("--home", str(tmp_path / "home"), "--upstream", "nonsense", "--no-learn", "--port", "0")
    assert main(["start", *flags]) == 2
    assert "--upstream is 'nonsense'" in capfd.readouterr().out
