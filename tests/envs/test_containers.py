"""The sandbox in a container: what bubblewrap keeps, it keeps, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from openclaw_rl.envs.containers import VARIABLE, chosen_container
from openclaw_rl.envs.sandbox import Limits, Sandbox, python_path
from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.types import Task

IMAGE = "localhost/openclaw-rl-test"
PROGRAMS = [
    "bash", "base64", "cat", "dd", "env", "find", "grep", "head", "ls", "mkdir", "prlimit", "rm", "sed",
    "sleep", "tail", "tar", "timeout", "wc",
]  # fmt: skip


@pytest.mark.parametrize("given", ["podman", "None", "docker:", "chroot:debian"])
def test_only_known_sandboxes_are_taken(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(ValueError, match="bubblewrap, podman:IMAGE, docker:IMAGE or none"):
        chosen_container()


async def test_a_program_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "podman:debian")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="asks for podman, which is not here"):
        chosen_container()


def test_bubblewrap_is_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert chosen_container() is None
    assert python_path() != "python3"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of this machine's own programs: nothing has to be fetched."""
    if shutil.which("podman") is None:
        pytest.skip("Podman is not installed")
    folder = tmp_path_factory.mktemp("image")
    paths = {shutil.which(name) for name in PROGRAMS}
    listed = subprocess.run(["ldd", *filter(None, paths)], capture_output=True, text=True, check=False).stdout
    words = {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}
    libraries = {word.rstrip(":") for word in words if ".so" in word}
    with tarfile.open(folder / "root.tar", "w", dereference=True) as archive:
        for path in sorted({*filter(None, paths), *libraries, "/bin/bash"}):
            archive.add(path)
    settings = folder / "containers.conf"
    if shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin"):
        settings.write_text('[engine]\nruntime = "runc"\n')
        os.environ["CONTAINERS_CONF"] = str(settings)
    subprocess.run(["podman", "import", "-q", folder / "root.tar", IMAGE], check=True, capture_output=True)
    yield
    subprocess.run(["podman", "rmi", "-f", IMAGE], check=False, capture_output=True)
    os.environ.pop("CONTAINERS_CONF", None)


@pytest.fixture
async def sandbox(image: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    monkeypatch.setenv(VARIABLE, f"podman:{IMAGE}")
    files = {"a.txt": b"hello\n", "d/run.sh": b"echo ran\n"}
    async with Sandbox(files, Limits(seconds=5, processes=20)) as made:
        yield made
    assert left() == []


def left() -> list[str]:
    listed = ["podman", "ps", "--all", "--quiet", "--filter", "name=openclaw-rl-"]
    return subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.envs
async def test_it_keeps_what_bubblewrap_keeps(sandbox: Sandbox, tmp_path: Path) -> None:
    assert (await sandbox.run("cat a.txt; ./d/run.sh; pwd; exit 3")).output == "hello\nran\n/work\n"
    assert (await sandbox.run("exit 3")).code == 3
    assert (await sandbox.run("sleep 30", 1)).timed_out
    (tmp_path / "secret").write_text("private")
    for script in (f"cat {tmp_path}/secret", "cat /etc/shadow", "echo x > /usr/bin/ls", "mkdir /x"):
        assert (await sandbox.run(script)).code != 0, script
    assert "private" not in (await sandbox.run("env; cat /proc/1/environ")).output
    listener = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    assert (await sandbox.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}")).code
    listener.close()
    bomb = await sandbox.run("f() { f | f & }; f; sleep 1; echo survived")
    assert "Resource temporarily unavailable" in bomb.output
    assert (await sandbox.run("dd if=/dev/zero of=big bs=1M count=200")).code != 0
    await sandbox.run("rm -f big; (sleep 60; echo late > late.txt) & echo begun")
    assert (await sandbox.run("ls")).output.split() == ["a.txt", "d"]
    assert await sandbox.take() == {"a.txt": b"hello\n", "d/run.sh": b"echo ran\n"}


@pytest.mark.envs
async def test_a_task_is_solved_and_graded_in_them(image: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"podman:{IMAGE}")
    env = Terminal()
    await env.reset(Task("t", {"instruction": "x", "checks": ["grep -q hello a.txt"]}))
    call = {"id": "1", "name": "run", "arguments": '{"command": "echo hello > a.txt"}'}
    await env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert (await env.evaluate()).solved
    await env.close()
    assert left() == []


@pytest.mark.envs
async def test_an_image_that_is_not_here_is_said(image: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "podman:localhost/no-such-image")
    with pytest.raises(RuntimeError, match="no-such-image"):
        async with Sandbox():
            pass
