"""``python -m tests.kill_points HOME SCRATCH MOST COMMAND…``: kills a command at its write boundaries.

A boundary is a file of the data folder that is about to be opened for writing, renamed or removed, or a
transaction that is about to be committed. For each of ``MOST`` of them, spread evenly, the data folder is
copied and the command is run in a forked process, which kills itself there. Prints one JSON object per kill:
the number of the boundary, what it was, and the copy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from openclaw_rl.commands.cli import main

_CHANGES = (
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "shutil.rmtree",
    "sqlite3.connect",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch(home: Path, reached: Callable[[str], None]) -> None:
    """From now on ``reached`` is called before each write of this process to the folder."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            is_write = isinstance(path, str) and bool(flags & _WRITES) and mode != "r"
            if is_write and path.startswith(str(home)):
                reached(f"write {Path(path).name}")
        elif event in _CHANGES:
            reached(f"{event} {Path(str(arguments[0])).name}")

    @sa.event.listens_for(sa.Engine, "commit")
    def commits(connection: sa.Connection) -> None:
        reached(f"commit {Path(str(connection.engine.url.database)).name}")

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def executes(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("PRAGMA WAL", "PRAGMA INCREMENTAL", "VACUUM")):
            reached(statement.strip())

    sys.addaudithook(audit)


def run_until(home: Path, arguments: list[str], last: int, report: int) -> None:
    """In a process of its own: it kills itself at boundary ``last``; what it reached goes to ``report``."""
    names: list[str] = []

    def reached(name: str) -> None:
        names.append(name)
        if len(names) > last:
            os.write(report, name.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    watch(home, reached)
    status = main([*arguments, "--home", str(home)])
    os.write(report, str(len(names)).encode())
    os._exit(status)


def forked(home: Path, arguments: list[str], last: int) -> tuple[bool, str]:
    """Whether it was killed, and where; otherwise how many boundaries there are."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            run_until(home, arguments, last, write)
        finally:
            os._exit(70)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True, said
    if status:
        raise SystemExit(f"the command failed with status {status}")
    return False, said


def run(home: Path, scratch: Path, most: int, arguments: list[str]) -> None:
    shutil.copytree(home, scratch / "whole")
    _, number = forked(scratch / "whole", arguments, sys.maxsize)
    points = sorted({round(n * (int(number) - 1) / (most - 1)) for n in range(most)})
    for point in points:
        copy = scratch / str(point)
        shutil.copytree(home, copy)
        killed, where = forked(copy, arguments, point)
        print(json.dumps({"point": point, "killed": killed, "where": where, "home": str(copy)}), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
