"""What an agent's command cannot do."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from openclaw_rl.envs.sandbox import Limits, Sandbox, SandboxFile, SandboxGone, check_sandbox, python_path

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"), reason="bubblewrap is not installed"
)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox({"a.txt": b"hello\n", "d/run.sh": b"echo ran\n"}, Limits(seconds=5)) as made:
        yield made


async def test_commands_share_a_folder_and_say_what_came_of_them(sandbox: Sandbox) -> None:
    assert (await sandbox.run("cat a.txt")).output == "hello\n"
    assert (await sandbox.run("./d/run.sh")).output == "ran\n"
    assert (await sandbox.run("echo x > b.txt; exit 3")).code == 3
    assert (await sandbox.run("cat b.txt; pwd")).output == "x\n/work\n"
    assert (await sandbox.run(f"{python_path()} -c 'print(6 * 7)'")).output == "42\n"
    assert await sandbox.take() == {"a.txt": b"hello\n", "b.txt": b"x\n", "d/run.sh": b"echo ran\n"}


async def test_nothing_of_the_host_is_seen(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("private")
    for script in (f"cat {secret}", "cat /etc/shadow", "cat /etc/passwd", "ls /home", "ls /var"):
        assert (await sandbox.run(script)).code != 0, script
    os.environ["OPENCLAW_RL_TEST_SECRET"] = "private"
    try:
        async with Sandbox() as other:
            assert "private" not in (await other.run("env; cat /proc/*/environ")).output
    finally:
        del os.environ["OPENCLAW_RL_TEST_SECRET"]


async def test_there_is_no_network(sandbox: Sandbox) -> None:
    listener = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    ran = await sandbox.run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached")
    listener.close()
    assert "reached" not in ran.output
    assert ran.code


async def test_the_hosts_programs_cannot_be_changed(sandbox: Sandbox) -> None:
    for script in (
        "echo x > /usr/bin/ls",
        "touch /usr/x",
        "mount -o remount,rw /usr",
        "chmod 777 /usr/bin/env",
    ):
        assert (await sandbox.run(script)).code != 0, script


async def test_what_takes_too_long_is_ended(sandbox: Sandbox) -> None:
    for seconds in (0.5, 3.0, 20.0):  # a slow machine has not begun when the first is over
        ran = await sandbox.run("echo begun; sleep 1000", seconds=seconds)
        assert ran.timed_out
        if ran.output:
            break
    assert ran.output == "begun\n"
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_nothing_goes_on_in_the_background(sandbox: Sandbox) -> None:
    begun = "until [ -s ticks ]; do sleep 0.05; done"
    await sandbox.run(f"(while true; do echo x >> ticks; sleep 0.05; done) & disown; {begun}")
    first = (await sandbox.run("wc -l < ticks")).output
    assert int(first) > 0
    await asyncio.sleep(0.4)
    assert (await sandbox.run("wc -l < ticks")).output == first


async def test_processes_are_bounded_so_a_fork_bomb_ends(sandbox: Sandbox) -> None:
    code = (
        "import os, time\nmade = 0\ntry:\n    while made < 200:\n        made += 1\n"
        "        if not os.fork():\n            time.sleep(60)\nexcept OSError:\n    pass\nprint(made)\n"
    )
    await sandbox.put({"fork.py": code.encode()})
    assert 10 < int((await sandbox.run(f"{python_path()} fork.py")).output) <= sandbox.limits.processes
    await sandbox.run(":(){ :|:& };: ; sleep 1", seconds=1)
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_disk_and_memory_are_bounded() -> None:
    async with Sandbox(limits=Limits(seconds=10, disk_mb=8, memory_mb=256)) as small:
        ran = await small.run(
            "for n in 1 2 3 4; do head -c 4000000 /dev/zero > f$n; done; du -sm . | cut -f1"
        )
        assert int(ran.output.split()[-1]) <= 9
        code = f"{python_path()} -c \"x = b'a' * 10**9\""
        assert (await small.run(code)).code != 0
        await small.run("yes | head -c 50000000 > /tmp/y; yes | head -c 50000000 > /run/y")
        assert (await small.run("rm -f /tmp/y /run/y f*; echo on")).output == "on\n"


@pytest.mark.parametrize("folder", ["/", "/dev", "/dev/shm", "/etc", "/work", "/tmp"])
async def test_no_folder_takes_more_than_the_limit(folder: str) -> None:
    """What is written anywhere lies in memory, so every place that can be written to has a size."""
    async with Sandbox(limits=Limits(seconds=10, disk_mb=8, memory_mb=256)) as small:
        write = f"for n in 1 2 3 4; do head -c 4000000 /dev/zero > {folder}/f$n; done 2>/dev/null"
        written = await small.run(f"{write}; cat {folder}/f? 2>/dev/null | wc -c")
        assert int(written.output) <= 8 * 2**20
        made = await small.run(f"mkdir {folder}/made && echo made")
        assert (made.code == 0) == (folder in ("/dev/shm", "/work", "/tmp"))


async def test_further_folders_have_files_of_their_own() -> None:
    files = {"a.txt": b"a", "/tests/run.sh": b"cat a.txt; echo b > /logs/b"}
    async with Sandbox(files, folders=["/tests", "/logs"]) as made:
        assert (await made.run("/tests/run.sh; cat /logs/b")).output == "ab\n"
        assert await made.take() == {"a.txt": b"a"}, "only the home folder comes out"
    with pytest.raises(ValueError, match="not a path inside"):
        await Sandbox({"/etc/passwd": b""}, folders=["/tests"]).__aenter__()


async def test_modes_and_bytes_of_files_are_kept() -> None:
    data = bytes(range(256))
    async with Sandbox({"run": SandboxFile(b"#!/bin/sh\necho ran\n", 0o755), "raw": data}) as made:
        assert (await made.run("./run")).output == "ran\n"
        await made.run("printf 'echo on' > on; chmod 711 on; chmod 600 raw")
        found = await made.take()
    assert found["raw"] == data
    async with Sandbox(found) as again:
        assert (await again.run("stat -c '%a %n' *")).output == "711 on\n600 raw\n755 run\n"


async def test_output_is_bounded(sandbox: Sandbox) -> None:
    ran = await sandbox.run("yes | head -c 1000000")
    assert len(ran.output) == sandbox.limits.output_bytes


async def test_who_ends_the_shell_ends_the_sandbox() -> None:
    """The shell is the parent of ``timeout``, which is the parent of the script."""
    async with Sandbox() as made:
        with pytest.raises(SandboxGone):
            await made.run("kill -9 $(cut -d ' ' -f 4 /proc/$PPID/stat); sleep 5")


async def test_links_and_paths_lead_nowhere(sandbox: Sandbox) -> None:
    await sandbox.run("ln -s /etc/passwd link; mkfifo pipe; ln -s / root")
    assert set(await sandbox.take()) == {"a.txt", "d/run.sh"}
    with pytest.raises(ValueError, match="not a path inside"):
        await sandbox.put({"../x": b""})


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    async def children() -> set[str]:
        found = set()
        for folder in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = folder.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.add(folder.parent.name)
        return found

    before, folders = await children(), set(os.listdir("/tmp"))
    for _ in range(5):
        async with Sandbox({"x": b"y"}) as made:
            await made.run("sleep 100 & echo x > /tmp/made-in-the-sandbox")
    assert await children() == before
    assert "made-in-the-sandbox" not in set(os.listdir("/tmp")) - folders


def orphans() -> set[str]:
    """Sandboxes that nobody waits for."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, parent = (folder / "comm").read_text(), (folder / "stat").read_text().rsplit(")", 1)[1]
        except OSError:
            continue  # gone meanwhile
        if name == "bwrap\n" and parent.split()[1] == "1" and parent.split()[0] != "Z":
            found.add(folder.name)
    return found


async def test_given_up_while_it_is_set_up_it_leaves_nothing_behind() -> None:
    before = orphans()
    for n in range(12):
        starting = asyncio.ensure_future(Sandbox().__aenter__())
        await asyncio.sleep(0.001 * n)  # at another moment each time
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await (await starting).close()
    for _ in range(1000):  # the kernel takes a moment to end one; one left behind stays for ever
        if not (left := orphans() - before):
            break
        await asyncio.sleep(0.01)
    assert not left


def test_without_bubblewrap_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="apt-get install bubblewrap"):
        check_sandbox()
