"""Claims the port and the data folder before any slow work, so that a conflict is reported at once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

import uvicorn


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening socket; ValueError with the remedy if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends each token of a stream at once (TCP_NODELAY).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} on {host} is in use; choose another with --port") from None
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


class FolderLock:
    """A data folder locked by this process. The kernel releases the lock when the process dies."""

    def __init__(self, file: TextIO, home: Path) -> None:
        self._file, self._home = file, home

    def close(self) -> None:
        self._file.close()

    def announce(self, text: str) -> None:
        """Write where we listen, for ``openclaw-rl status`` and other commands."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(text)
        self._file.flush()


def claim_home(home: Path) -> FolderLock:
    """Lock the data folder; a second server is refused, since both would write to one ledger."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = (home / "serve.json").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ValueError(
            f"another server is using {home}; stop it, or choose another folder with --home"
        ) from None
    os.chmod(home / "serve.json", 0o600)
    file.truncate(0)
    return FolderLock(file, home)


def bind_private(path: Path) -> socket.socket:
    """A Unix socket that only its owner may connect to; a stale one is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise ValueError(f"cannot open {path}: {error}; a shorter --home may help") from None
    finally:
        os.umask(mask)
    return listener


class Listener(uvicorn.Server):
    """Leaves signals to the process: if both handled them, one Ctrl-C would count as two."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def announced(home: Path) -> str | None:
    """The URL of the server that uses this data folder, or None."""
    try:
        text = (home / "serve.json").read_text()
    except FileNotFoundError:
        return None
    return str(json.loads(text)["url"]) if text else None
