"""``openclaw-rl start | stop | logs``: a server in the background, one per data folder."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from openclaw_rl.capabilities import check_choices
from openclaw_rl.config import Config, to_environment

_LOG = "serve.log"
_MAX_LOG_BYTES = 10_000_000
_START_S, _STOP_S, _POLL_S = 900.0, 90.0, 0.2


def start(options: argparse.Namespace, config: Config) -> int:
    check_choices(config)
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (pid := _running(config.home)) is not None:
        raise ValueError(f"a server is running with {config.home} already (process {pid})")
    log = config.home / _LOG
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    begin = log.stat().st_size if log.exists() else 0
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "openclaw_rl", "serve"],
            env={**os.environ, **to_environment(config)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    shown = begin
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        shown = _show_since(log, shown)
        if child.poll() is not None:
            _show_since(log, shown)
            return 2
        if _running(config.home) == child.pid:
            _show_since(log, shown)
            each = f", each with --home {shlex.quote(options.home)}" if options.home else ""
            print(f"It runs in the background: openclaw-rl status, logs, stop{each}.")
            return 0
        time.sleep(_POLL_S)
    raise ValueError(f"it has not started within {_START_S:.0f} s; it goes on trying, see {log}")


def stop(options: argparse.Namespace, config: Config) -> int:
    if (pid := _running(config.home)) is None:
        raise ValueError(f"no server is running with {config.home}")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + config.serve.drain_timeout_s + _STOP_S
    while time.monotonic() < deadline:
        if not _is_claimed(config.home):
            print("stopped")
            return 0
        time.sleep(_POLL_S)
    raise ValueError(f"process {pid} has not ended yet: replies are being finished, or see openclaw-rl logs")


def logs(options: argparse.Namespace, config: Config) -> int:
    log = config.home / _LOG
    if not log.exists():
        raise ValueError(f"there is no {log}; a server that 'openclaw-rl start' started writes it")
    lines = log.read_text(errors="replace").splitlines(keepends=True)
    sys.stdout.write("".join(lines[-options.lines :]))
    sys.stdout.flush()
    at = log.stat().st_size
    while options.follow:
        at = _show_since(log, at)
        time.sleep(_POLL_S)
    return 0


def _show_since(log: Path, position: int) -> int:
    with log.open("rb") as file:
        file.seek(position if position <= log.stat().st_size else 0)
        data = file.read()
        sys.stdout.write(data.decode(errors="replace"))
        sys.stdout.flush()
        return file.tell()


def _running(home: Path) -> int | None:
    """The id of the process that serves this data folder; None until it listens."""
    if not _is_claimed(home):
        return None
    try:
        return int(json.loads((home / "serve.json").read_text())["pid"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _is_claimed(home: Path) -> bool:
    """Whether a server holds the folder's lock, which the kernel releases when it dies."""
    try:
        with (home / "serve.json").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
