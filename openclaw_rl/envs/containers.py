"""A sandbox in a container instead of bubblewrap: ``OPENCLAW_RL_SANDBOX=podman:IMAGE``, or ``docker:IMAGE``.

The same shell, limits and isolation; in addition, memory and processes are limited for the whole container.
The image must contain bash, coreutils, findutils, tar and util-linux, and Python if tasks need it. No image
is pulled, and no host folder is mounted except those passed as ``read_only``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

VARIABLE = "OPENCLAW_RL_SANDBOX"
PROGRAMS = ("podman", "docker")
#: Commands run on the host itself.
NONE = "none"


@dataclass(frozen=True, slots=True)
class Container:
    """The container of one sandbox."""

    program: str
    image: str
    name: str

    def command(
        self, script: str, disk_mb: int, memory_mb: int, processes: int, read_only: Sequence[str],
        folders: Sequence[str],
    ) -> list[str]:  # fmt: skip
        """``folders`` are writable, as are /tmp and /run; the first is the home folder."""
        home = folders[0]
        uid = 2**20 + secrets.randbelow(2**20)  # the process limit (nproc) counts per user
        written = [f"--tmpfs={each}:rw,size={disk_mb}m,mode=1777" for each in (*folders, "/tmp", "/run")]
        mounts = [f"--volume={each}:{each}:ro" for each in read_only]
        variables = [f"--env={each}" for each in (f"HOME={home}", "LANG=C.UTF-8", "TERM=dumb")]
        return [
            shutil.which(self.program) or self.program, "run", "--rm", "--interactive", f"--name={self.name}",
            "--pull=never", "--network=none", "--read-only", "--cap-drop=ALL",
            "--security-opt=no-new-privileges", "--ulimit=nofile=1024:1024",
            f"--ulimit=nproc={processes + 16}:{processes + 16}", f"--user={uid}:{uid}",
            f"--memory={4 * memory_mb}m", f"--pids-limit={processes + 16}", f"--shm-size={disk_mb}m",
            *written, *mounts, *variables,
            f"--workdir={home}", "--entrypoint=/bin/bash", self.image, "-c", script,
        ]  # fmt: skip

    async def remove(self) -> None:
        """Kill and remove it if it still runs; one that has exited is removed already."""
        process = await asyncio.create_subprocess_exec(
            shutil.which(self.program) or self.program, "rm", "--force", self.name,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()


def chosen_container() -> Container | None:
    """None: bubblewrap, or no sandbox if that is asked for (``unsandboxed.py``). ValueError, with the remedy,
    if the choice is unavailable."""
    wanted = os.environ.get(VARIABLE, "") or "bubblewrap"
    program, _, image = wanted.partition(":")
    if wanted in ("bubblewrap", NONE):
        return None
    if program not in PROGRAMS or not image:
        raise ValueError(f"{VARIABLE} is bubblewrap, podman:IMAGE, docker:IMAGE or none, not {wanted!r}")
    if shutil.which(program) is None:
        raise ValueError(f"{VARIABLE} asks for {program}, which is not here: install it, or unset {VARIABLE}")
    return Container(program, image, f"openclaw-rl-{secrets.token_hex(8)}")
