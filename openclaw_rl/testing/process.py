"""Runs the real command in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from openclaw_rl.testing.waiting import wait_until


def command() -> str:
    """The path of ``openclaw-rl`` in the running Python's environment."""
    return str(Path(sysconfig.get_path("scripts"), "openclaw-rl"))


def clean_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without settings that would leak into the server under test, and with its own home."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name == "OPENCLAW_RL_CACHE" or not (name.startswith("OPENCLAW_RL_") or name in ("HOST", "PORT"))
    }
    return {**ours, "OPENCLAW_RL_HOME": str(home), "PORT": "0", **(extra or {})}


class ServerProcess:
    """``openclaw-rl serve`` with its own data folder and a free port; usable as a context manager."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """``within`` is a wrapper command, such as ``ip netns exec NAME``."""
        self.home, self._arguments, self._within = home, arguments, within
        self._environment = clean_environment(home, environment)
        self._log_path = home.with_name(f"{home.name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self, timeout_s: float = 120.0) -> ServerProcess:
        """Returns once the server listens; raises with its log if it exits or takes too long."""
        self.home.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, command(), "serve", *self._arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.url = wait_until(self._announced, "the server says where it listens", timeout_s)
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log()}") from None
        return self

    def _announced(self) -> str | None:
        """The URL in serve.json, once this process has written it and not a predecessor."""
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with exit code {self.process.returncode}")
        try:
            stated = json.loads((self.home / "serve.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return str(stated["url"]) if stated["pid"] == self.process.pid else None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def key(self) -> str:
        """The default user's key, from the file that the server wrote."""
        return str(json.loads((self.home / "keys.json").read_text())["default"])

    def terminate(self) -> None:
        """Request a graceful stop without waiting for it."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = 90.0) -> int:
        """Stop gracefully; returns the exit code."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop within {timeout_s:.0f} s\n{self.log()}") from None

    def kill(self) -> None:
        """kill -9, and wait for the exit."""
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def __enter__(self) -> ServerProcess:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
