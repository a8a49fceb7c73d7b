"""No sandbox at all: ``OPENCLAW_RL_SANDBOX=none``, for machines that are thrown away afterwards.

Commands run as this user, with its files and network, in a temporary folder of their own. Only the limits on
time, memory and file size remain, and what a command leaves running is killed if it stays in its process
group. Nothing stops a command from leaving the folder, so this is never chosen without being asked for.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.envs.containers import NONE, VARIABLE

#: As the sandbox's own shell, but it kills a process group instead of everything. Terminated, it kills the
#: command that runs.
_SHELL = r"""
trap 'kill -9 -- -$group; exit' TERM
while read -r seconds bytes script; do
  printf %s "$script" | base64 -d > run/script
  setsid timeout -k 1 "$seconds" prlimit {limits} -- bash run/script </dev/null >run/output 2>&1 &
  group=$!
  wait $group
  code=$?
  kill -9 -- -$group 2>/dev/null
  printf '%s %s\n' "$code" "$(head -c "$bytes" run/output | base64 -w0)"
done
"""


def is_unsandboxed() -> bool:
    return os.environ.get(VARIABLE) == NONE


class HostFolder:
    """A temporary folder with what a sandbox has at its root. ValueError if a task needs more than that."""

    def __init__(self, home: str, folders: Sequence[str], read_only: Sequence[str]) -> None:
        if folders or read_only:
            raise ValueError(
                f"{VARIABLE}={NONE} is for tasks that need {home} only; this one needs "
                f"{', '.join([*folders, *read_only])}: install bubblewrap"
            )
        self.path = Path(tempfile.mkdtemp(prefix="openclaw-rl-"))
        for name in (home.strip("/"), "run", "tmp"):
            (self.path / name).mkdir()

    def command(self, memory_mb: int, disk_mb: int, cpu_s: int) -> list[str]:
        # Processes are not limited: the limit counts all that this user runs.
        limits = f"--as={memory_mb * 2**20} --fsize={disk_mb * 2**20} --core=0 --cpu={cpu_s}"
        return ["/bin/bash", "-c", f"cd {self.path}\n{_SHELL.replace('{limits}', limits)}"]

    def environment(self, home: str) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": f"{self.path}{home}", "LANG": "C.UTF-8",
            "TERM": "dumb", "TMPDIR": f"{self.path}/tmp",
        }  # fmt: skip

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
