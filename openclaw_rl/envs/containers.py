"""A sandbox in a container instead of bubblewrap: ``OPENCLAW_RL_SANDBOX=podman:IMAGE``, or ``docker:IMAGE``.

The same shell, limits and empty surroundings; besides, memory and processes are bounded for all together. The
image brings the programs: bash, coreutils, findutils, tar and util-linux, and Python where tasks need it.
Nothing is pulled, and nothing of the host is mounted but folders that are named.
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


@dataclass(frozen=True, slots=True)
class Container:
    """Which one a sandbox runs in."""

    program: str
    image: str
    name: str

    def command(
        self, script: str, disk_mb: int, memory_mb: int, processes: int, read_only: Sequence[str],
        folders: Sequence[str],
    ) -> list[str]:  # fmt: skip
        """``folders`` can be written to, besides /tmp and /run; the first is the home folder."""
        home = folders[0]
        uid = 2**20 + secrets.randbelow(2**20)  # limits of processes are counted by user
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
        """Whatever still runs in it; one that has ended is gone already."""
        process = await asyncio.create_subprocess_exec(
            shutil.which(self.program) or self.program, "rm", "--force", self.name,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()


def chosen_container() -> Container | None:
    """None: bubblewrap. ValueError, with the remedy, for what cannot be had: there is no way without any."""
    wanted = os.environ.get(VARIABLE, "") or "bubblewrap"
    program, _, image = wanted.partition(":")
    if wanted == "bubblewrap":
        return None
    if program not in PROGRAMS or not image:
        raise ValueError(f"{VARIABLE} is bubblewrap, podman:IMAGE or docker:IMAGE, not {wanted!r}")
    if shutil.which(program) is None:
        raise ValueError(f"{VARIABLE} asks for {program}, which is not here: install it, or unset {VARIABLE}")
    return Container(program, image, f"openclaw-rl-{secrets.token_hex(8)}")
