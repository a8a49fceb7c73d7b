"""``openclaw-rl serve`` as a child process, for commands and tests that need a server of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from openclaw_rl.processes.supervise import die_with_parent

_POLL_S = 0.02


def clean_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without settings that would leak into the server, and with its own home."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name == "OPENCLAW_RL_CACHE" or not (name.startswith("OPENCLAW_RL_") or name in ("HOST", "PORT"))
    }
    return {**ours, "OPENCLAW_RL_HOME": str(home), "PORT": "0", **(extra or {})}


#: Without notes replies show what the weights have learned: for measurements.
UNREMINDED = ("--notes", "off")


class ServerProcess:
    """A server with its own data folder and a free port; usable as a context manager.

    It stops when we die. On Linux that means the thread that started it: start it from one that stays.
    """

    def __init__(
        self,
        home: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
        log: Path | None = None,
    ) -> None:
        """``environment`` holds settings (``OPENCLAW_RL_…``); flags override them.

        ``within`` is a wrapper command, such as ``ip netns exec NAME``.
        """
        self.home, self._flags, self._within = home, flags, within
        self._environment = clean_environment(home, environment)
        self.log_path = log or home.with_name(f"{home.name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self, timeout_s: float = 300.0) -> ServerProcess:
        """Returns once the server listens; ValueError with its log if it exits or takes too long."""
        self.home.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, sys.executable, "-m", "openclaw_rl", "serve", *self._flags],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )  # fmt: skip
        deadline = time.monotonic() + timeout_s
        while not (url := self._announced()):
            if self.process.poll() is not None:
                raise self._error(f"the server ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                self.kill()
                raise self._error(f"the server does not listen after {timeout_s:.0f} s")
            time.sleep(_POLL_S)
        self.url = url
        return self

    def _announced(self) -> str | None:
        """The URL in serve.json, once this process has written it and not a predecessor."""
        try:
            stated = json.loads((self.home / "serve.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return str(stated["url"]) if stated["pid"] == self.process.pid else None

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{what}; its log, {self.log_path}:\n{self.log()}")

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
            raise self._error(f"the server did not stop within {timeout_s:.0f} s and was killed") from None

    def kill(self) -> None:
        """kill -9, and wait for the exit."""
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def __enter__(self) -> ServerProcess:
        return self.start() if self._process is None else self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()
