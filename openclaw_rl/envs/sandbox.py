"""A sandbox for an agent's commands: bubblewrap, with nothing of the host but its programs, or a container.

No network, no environment variables, no capabilities, its own process namespace. All writes go to memory of a
bounded size and are gone when it closes. One shell in it takes commands, each with limits on time, CPU time,
memory, processes and file size; processes that a command leaves running are killed. All this holds unless
``OPENCLAW_RL_SANDBOX=none`` (``unsandboxed.py``).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import secrets
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.envs.containers import Container, chosen_container
from openclaw_rl.envs.unsandboxed import HostFolder, is_unsandboxed

HOME = "/work"
#: Folders with programs and libraries; symbolic links (as on Debian) are recreated.
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
_LINE = 64 * 2**20
#: How long to wait for a sandbox that is closed during set-up to exit by itself.
_SET_UP_S = 30.0
#: How long the host's shell has to kill the command that runs.
_END_S = 5.0
#: Reads lines "SECONDS BYTES SCRIPT" and answers "CODE OUTPUT"; SCRIPT and OUTPUT are base64. Processes
#: that a script leaves running are killed.
_SHELL = r"""
while read -r seconds bytes script; do
  printf %s "$script" | base64 -d > /run/script
  timeout -k 1 "$seconds" prlimit {limits} -- bash /run/script </dev/null >/run/output 2>&1
  code=$?
  kill -9 -1 2>/dev/null
  printf '%s %s\n' "$code" "$(head -c "$bytes" /run/output | base64 -w0)"
done
"""


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float = 10.0
    """Per command."""
    memory_mb: int = 1024
    """Per process."""
    processes: int = 64
    disk_mb: int = 64
    """Per writable folder."""
    output_bytes: int = 8192


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    output: str

    @property
    def timed_out(self) -> bool:
        return self.code in (124, 137)


class SandboxFile(bytes):
    """A file's content with its mode; plain bytes get the default mode."""

    mode: int

    def __new__(cls, data: bytes, mode: int) -> SandboxFile:
        made = super().__new__(cls, data)
        made.mode = mode & 0o777
        return made


class SandboxGone(RuntimeError):
    """The sandbox's shell has exited: a command killed it, or the host did."""


class Sandbox:
    """``files``: initial files, by path under ``/work``. ``read_only``: host folders to mount.

    ``folders``: further writable folders, such as ``/tests``; files in them have absolute paths.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        read_only: Sequence[str] = (),
        folders: Sequence[str] = (),
    ) -> None:
        self._files, self.limits, self._read_only = dict(files or {}), limits or Limits(), list(read_only)
        self._folders = list(folders)
        self._process: asyncio.subprocess.Process | None = None
        self._container: Container | None = None
        self._host: HostFolder | None = None
        self._stands = False

    async def __aenter__(self) -> Sandbox:
        starting = asyncio.ensure_future(self._start())
        try:
            self._process = await asyncio.shield(starting)
            # The answer to the first command shows that the sandbox is set up.
            if self._host is None:
                await self._unpack("tar -x -p -C / -f /run/files.tar && rm /run/files.tar")
            else:
                await self.put(self._files)
            self._stands = True
        except BaseException as error:
            self._process = await starting  # cancelling it midway would kill a half-made sandbox
            complaint = await self._complaint() if isinstance(error, SandboxGone) else ""
            await self.close()
            if complaint:
                raise RuntimeError(f"the sandbox could not be made: {complaint}") from None
            raise
        return self

    async def _complaint(self) -> str:
        """The error output of podman or docker; bubblewrap's is discarded."""
        if self._process is None or self._process.stderr is None:
            return ""
        return (await self._process.stderr.read(2000)).decode("utf-8", "replace").strip()

    async def _start(self) -> asyncio.subprocess.Process:
        if is_unsandboxed():
            return await self._start_on_host()
        self._container = chosen_container()
        if self._container is not None:
            return await self._start_container(self._container)
        packed = os.memfd_create("files")  # a repository is too large to send through the shell
        try:
            self._pack(self._files, packed)
            return await asyncio.create_subprocess_exec(
                *_command(self.limits, packed, self._read_only, self._folders), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, limit=_LINE,
                start_new_session=True, pass_fds=(packed,),
                env={},  # bubblewrap's own environment is visible in /proc
            )  # fmt: skip
        finally:
            os.close(packed)

    async def _start_on_host(self) -> asyncio.subprocess.Process:
        limits = self.limits
        self._host = host = HostFolder(HOME, self._folders, self._read_only)
        return await asyncio.create_subprocess_exec(
            *host.command(limits.memory_mb, limits.disk_mb, max(1, round(2 * limits.seconds))),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE, start_new_session=True, env=host.environment(HOME),
        )  # fmt: skip

    async def _start_container(self, container: Container) -> asyncio.subprocess.Process:
        """The files are sent first on standard input, so that nothing has to be mounted."""
        packed = io.BytesIO()
        self._pack(self._files, packed)
        data, limits = packed.getvalue(), self.limits
        script = f"head -c {len(data)} > /run/files.tar\n{_shell(limits)}"
        process = await asyncio.create_subprocess_exec(
            *container.command(
                script, limits.disk_mb, limits.memory_mb, limits.processes, self._read_only,
                [HOME, *self._folders],
            ),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=_LINE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(data)
        return process

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Everything in the sandbox dies with its first process."""
        if (process := self._process) is not None:
            self._process = None
            if process.stdin is not None:
                process.stdin.close()  # makes its shell exit
            if not self._stands:
                # If killed during set-up, bubblewrap's child process would wait for it forever.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _SET_UP_S)
            if (container := self._container) is not None:
                await container.remove()
            if (host := self._host) is not None:
                await _terminate(process)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if host is not None:
                await asyncio.to_thread(host.remove)

    async def run(self, script: str, seconds: float | None = None) -> Ran:
        """Run a bash script in the home folder; SandboxGone if the shell has exited."""
        seconds = self.limits.seconds if seconds is None else seconds
        return await self._run(f"cd {self._root}{HOME}\n{script}", seconds, self.limits.output_bytes)

    @property
    def _root(self) -> str:
        """The prefix of its paths, for the host's shell."""
        return "" if self._host is None else str(self._host.path)

    async def put(self, files: Mapping[str, bytes]) -> None:
        packed = io.BytesIO()
        self._pack(files, packed)
        text = base64.b64encode(packed.getvalue()).decode()
        await self._unpack(f"base64 -d <<'END' | tar -x -p -C {self._root or '/'}\n{text}\nEND")

    def _pack(self, files: Mapping[str, bytes], into: int | io.BytesIO) -> None:
        """Write a tar archive to a buffer or a file descriptor, which stays open and is rewound."""
        buffer = into if isinstance(into, io.BytesIO) else os.fdopen(into, "wb", closefd=False)
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, data in files.items():
                archive.addfile(_entry(self._path(name), data), io.BytesIO(data))
        buffer.flush()
        buffer.seek(0)

    def _path(self, name: str) -> str:
        """Relative to the root, where the archive is unpacked."""
        for folder in self._folders:
            if name.startswith(f"{folder}/"):
                return f"{folder}/{_inside(name.removeprefix(f'{folder}/'))}{'/' * name.endswith('/')}"[1:]
        return f"{HOME}/{_inside(name)}{'/' * name.endswith('/')}"[1:]

    async def _unpack(self, script: str) -> None:
        ran = await self._run(script, 30, 200)
        if ran.code:
            raise SandboxGone(f"files could not be put into the sandbox: {ran.output}")

    async def take(self, folders: bool = False) -> dict[str, bytes]:
        """All regular files of the home folder (no links or special files); raises if they are too large.

        ``folders``: also empty folders, as ``name/``.
        """
        most = self.limits.disk_mb * 2**20 * 2
        kinds = "-mindepth 1 \\( -type f -o -type d -empty \\)" if folders else "-type f"
        pack = "tar -c --null --no-recursion -T - | base64 -w0"
        ran = await self._run(f"cd {self._root}{HOME} && find . {kinds} -print0 | {pack}", 30, most)
        files: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(ran.output + "=="))) as archive:
            for entry in archive:
                if entry.isreg() and (read := archive.extractfile(entry)):
                    files[_inside(entry.name)] = SandboxFile(read.read(), entry.mode)
                elif entry.isdir():
                    files[f"{_inside(entry.name)}/"] = b""
        return files

    async def _run(self, script: str, seconds: float, most: int) -> Ran:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise SandboxGone("the sandbox is closed")
        encoded = base64.b64encode(script.encode()).decode()
        try:
            process.stdin.write(f"{seconds} {most} {encoded}\n".encode())
            await process.stdin.drain()
            async with asyncio.timeout(seconds + 30):
                answer = await process.stdout.readline()
        except (ConnectionError, TimeoutError) as error:
            raise SandboxGone(f"the sandbox does not answer: {type(error).__name__}") from None
        if not answer.endswith(b"\n"):
            raise SandboxGone("a command has ended the sandbox")
        code, _, output = answer.decode().rstrip("\n").partition(" ")
        return Ran(int(code), base64.b64decode(output).decode("utf-8", "replace"))


def check_sandbox() -> None:
    """ValueError, with the remedy, if bubblewrap is not installed."""
    if shutil.which("bwrap") is None:
        raise ValueError(
            "agents' commands run in bubblewrap, which is not here: sudo apt-get install bubblewrap "
            "(Debian, Ubuntu), or your system's package of that name"
        )


def enclosed(disk_mb: int, read_only: Sequence[str] = (), folders: Sequence[str] = ()) -> list[str]:
    """The command prefix that runs a program in a sandbox: writable folders in memory, each of bounded size,
    and nothing of the host but programs and ``read_only``. ValueError if bubblewrap is not installed."""
    check_sandbox()
    command = [
        *_nobody(),
        shutil.which("bwrap") or "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]
    for folder in (*_PROGRAMS, *_python()):
        path = Path(folder)
        if path.is_symlink() and path.is_dir():
            command += ["--symlink", os.readlink(path), folder]
        elif path.exists():
            command += ["--ro-bind", folder, folder]
    command += ["--proc", "/proc", "--dev", "/dev", "--symlink", HOME, "/app"]  # benchmark images use /app
    for folder in (HOME, "/tmp", "/run", "/dev/shm", *folders):
        command += ["--size", str(disk_mb * 2**20), "--tmpfs", folder]
    for folder in read_only:
        command += ["--ro-bind", folder, folder]
    for folder in ("/dev", "/"):  # also in memory, but unbounded; mounts inside them stay writable
        command += ["--remount-ro", folder]
    for name, value in (("PATH", "/usr/bin:/bin"), ("HOME", HOME), ("LANG", "C.UTF-8"), ("TERM", "dumb")):
        command += ["--setenv", name, value]
    return [*command, "--chdir", HOME]


def _command(limits: Limits, packed: int, read_only: Sequence[str], folders: Sequence[str]) -> list[str]:
    files = ["--file", str(packed), "/run/files.tar"]
    return [*enclosed(limits.disk_mb, read_only, folders), *files, "/bin/bash", "-c", _shell(limits)]


def _shell(limits: Limits) -> str:
    inner = (
        f"--as={limits.memory_mb * 2**20} --nproc={limits.processes} --fsize={limits.disk_mb * 2**20} "
        f"--core=0 --cpu={max(1, round(2 * limits.seconds))}"
    )
    return _SHELL.replace("{limits}", inner)


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """Without a sandbox, what runs does not die with its shell."""
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        process.terminate()
        await asyncio.wait_for(process.wait(), _END_S)


def _entry(path: str, data: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.rstrip("/"))
    if path.endswith("/"):
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        return entry
    usual = 0o755 if path.endswith(".sh") else 0o644
    entry.size, entry.mode = len(data), data.mode if isinstance(data, SandboxFile) else usual
    return entry


def _nobody() -> list[str]:
    """The command prefix that drops root. Process limits do not apply to root, so each sandbox gets its own
    non-existent user, and its processes are counted separately."""
    if os.getuid() != 0:
        return []
    uid = 2**20 + secrets.randbelow(2**20)
    return [shutil.which("setpriv") or "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def _python() -> list[str]:
    """This interpreter's installation, if it is not the system's and the sandbox's user can read it."""
    prefix = Path(sys.base_prefix)
    everybody = all(folder.stat().st_mode & 0o001 for folder in (prefix, *prefix.parents))
    return [] if str(prefix).startswith("/usr") or not (everybody or os.getuid()) else [str(prefix)]


def python_path() -> str:
    """The path of Python in a sandbox."""
    if is_unsandboxed():
        return sys.executable
    if chosen_container() is not None:
        return "python3"
    if not _python() and not sys.base_prefix.startswith("/usr"):
        return "/usr/bin/python3"
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")


def _inside(name: str) -> str:
    """The normalized path; ValueError if it leads out of the folder."""
    path = os.path.normpath(name)
    if path.startswith(("/", "..")):
        raise ValueError(f"{name!r} is not a path inside the sandbox")
    return path
