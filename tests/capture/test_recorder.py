"""Turns are durable when ``record`` says so, and no trouble of the ledger delays or breaks a reply."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from openclaw_rl.capture.capture import LedgerCapture
from openclaw_rl.capture.recorder import Recorder, RecorderHealth
from openclaw_rl.capture.serve_ledger import Delivery, ServeLedger, sqlite_url
from openclaw_rl.testing import until
from openclaw_rl.types import ChatRequest, Message

from .conftest import Postgres, make_turn

OpenLedger = Callable[[str], ServeLedger]
T = TypeVar("T")


@asynccontextmanager
async def recording(serve_ledger: ServeLedger, **options: float) -> AsyncIterator[Recorder]:
    recorder = Recorder(serve_ledger, **{"retry_s": 0.05, **options})  # type: ignore[arg-type]
    try:
        yield recorder
    finally:
        await recorder.close()


async def recovered(recorder: Recorder, num_recorded: int = 0) -> RecorderHealth:
    """The recorder's health once the ledger can be written again and so many turns are in it."""

    def check() -> RecorderHealth | None:
        health = recorder.health()
        return health if health.ok and health.num_recorded >= num_recorded else None

    return await until(check, "the ledger is written again")


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call that waits for nothing: it must end before it suspends even once."""
    try:
        call.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    call.close()
    raise AssertionError("the call waits for something")


# --- the normal case -------------------------------------------------------------------------


async def test_what_is_recorded_is_durable(
    serve_ledger: ServeLedger, url: str, open_ledger: OpenLedger
) -> None:
    elsewhere = open_ledger(url)
    async with recording(serve_ledger) as recorder:
        for i in range(5):
            assert await recorder.record(make_turn(f"t{i}"))
            assert elsewhere.load_turn(f"t{i}") == make_turn(f"t{i}")
        assert await recorder.record(Delivery("t0", True, 1.0))
        assert recorder.health() == RecorderHealth(True, None, 5, 0, 0)


async def test_those_who_wait_together_share_a_commit(serve_ledger: ServeLedger) -> None:
    commits: list[object] = []
    sa.event.listen(serve_ledger.db, "commit", commits.append)
    async with recording(serve_ledger) as recorder:
        assert all(await asyncio.gather(*(recorder.record(make_turn(f"t{i}")) for i in range(400))))
    assert serve_ledger.counts()["turns"] == 400
    assert len(commits) <= 10


async def test_closing_writes_what_is_pending(url: str, open_ledger: OpenLedger) -> None:
    recorder = Recorder(open_ledger(url))
    waiting = [asyncio.create_task(recorder.record(make_turn(f"t{i}"))) for i in range(50)]
    await asyncio.sleep(0)
    await recorder.close()
    assert all(await asyncio.gather(*waiting))
    assert open_ledger(url).counts()["turns"] == 50
    assert not await recorder.record(make_turn("late"))
    assert recorder.health().num_lost == 1


async def test_a_malformed_turn_alone_is_refused(
    serve_ledger: ServeLedger, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [make_turn(f"t{i}") for i in range(20)]
    turns[7].params = {"x": object()}
    turns[13].user = "a\0b"
    async with recording(serve_ledger) as recorder:
        outcomes = await asyncio.gather(*(recorder.record(turn) for turn in turns))
        assert outcomes == [i not in (7, 13) for i in range(20)]
        assert recorder.health() == RecorderHealth(True, None, 18, 0, 2)
    assert serve_ledger.counts()["turns"] == 18
    assert [r.levelno for r in caplog.records] == [logging.ERROR] * 2


async def test_a_client_that_left_does_not_disturb_the_recorder(serve_ledger: ServeLedger) -> None:
    async with recording(serve_ledger) as recorder:
        gone = [asyncio.create_task(recorder.record(make_turn(f"gone{i}"))) for i in range(20)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        assert await recorder.record(make_turn("here"))
    assert serve_ledger.counts()["turns"] == 21


def test_a_loop_that_ended_does_not_disturb_the_recorder(serve_ledger: ServeLedger) -> None:
    async def hurry() -> Recorder:
        recorder = Recorder(serve_ledger)
        task = asyncio.create_task(recorder.record(make_turn("t1")))
        await asyncio.sleep(0)
        task.cancel()
        return recorder

    recorder = asyncio.run(hurry())

    async def go_on() -> bool:
        saved = await recorder.record(make_turn("t2"))
        await recorder.close()
        return saved

    assert asyncio.run(go_on())
    assert serve_ledger.counts()["turns"] == 2


async def test_sqlites_log_does_not_grow_for_ever(tmp_path: Path, open_ledger: OpenLedger) -> None:
    serve_ledger = open_ledger(sqlite_url(tmp_path / "x.db"))
    log = tmp_path / "x.db-wal"
    async with recording(serve_ledger) as recorder:
        sizes = []
        for i in range(30):
            assert await recorder.record(make_turn(f"t{i}", text="x" * 100_000 + str(i)))
            serve_ledger.checkpoint()
            sizes.append(log.stat().st_size)
    assert sizes[-1] == sizes[5]


# --- disk full -------------------------------------------------------------------------------


class Disk:
    """A place where files fit until ``fill`` is called, and again after ``clear``."""

    def __init__(self, folder: Path, fill: Callable[[], None], clear: Callable[[], None]) -> None:
        self.folder, self.fill, self.clear = folder, fill, clear


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A real small disk where root may mount one; else a limit on file sizes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        ballast = folder / "ballast"

        def fill() -> None:
            with open(ballast, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    pass

        yield Disk(folder, fill, ballast.unlink)
        subprocess.run(["umount", "-l", str(folder)], check=True)
    else:
        _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield Disk(
            folder,
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard)),
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before),
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_costs_no_reply_and_no_turn(disk: Disk, open_ledger: OpenLedger) -> None:
    serve_ledger = open_ledger(sqlite_url(disk.folder / "x.db"))
    async with recording(serve_ledger) as recorder:
        assert await recorder.record(make_turn("before"))
        disk.fill()
        assert not await recorder.record(make_turn("t0", text="x" * 10_000))
        for i in range(1, 20):
            assert not at_once(recorder.record(make_turn(f"t{i}", text="x" * 10_000)))
        health = recorder.health()
        assert not health.ok
        assert health.error is not None
        assert "disk" in health.error
        assert (health.num_unsaved, health.num_lost) == (20, 0)
        # What is there can still be read.
        assert serve_ledger.load_turn("before") == make_turn("before")
        disk.clear()
        health = await recovered(recorder)
        assert (health.num_recorded, health.num_unsaved, health.num_lost) == (21, 0, 0)
        assert await recorder.record(make_turn("after"))
    assert serve_ledger.counts()["turns"] == 22
    assert serve_ledger.check_integrity() == []


async def test_what_does_not_fit_into_the_backlog_is_counted_as_lost(
    disk: Disk, open_ledger: OpenLedger, caplog: pytest.LogCaptureFixture
) -> None:
    serve_ledger = open_ledger(sqlite_url(disk.folder / "x.db"))
    async with recording(serve_ledger, backlog=10) as recorder:
        disk.fill()
        for i in range(25):
            assert not await recorder.record(make_turn(f"t{i}", text="x" * 10_000))
            assert not await recorder.record(Delivery(f"t{i}", True, 1.0))
        health = recorder.health()
        assert (health.num_unsaved, health.num_lost) == (5, 20)
        disk.clear()
        await recovered(recorder)
    assert [t["id"] for t in serve_ledger.turn_summaries("s1")] == [f"t{i}" for i in range(5)]
    # Said once when it broke and once when it worked again, not for every turn.
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "xxxx" not in caplog.text


async def test_turns_that_cannot_be_saved_at_the_end_are_counted(disk: Disk, open_ledger: OpenLedger) -> None:
    serve_ledger = open_ledger(sqlite_url(disk.folder / "x.db"))
    others = set(threading.enumerate())
    recorder = Recorder(serve_ledger)
    threads = set(threading.enumerate()) - others
    disk.fill()
    for i in range(3):
        assert not await recorder.record(make_turn(f"t{i}", text="x" * 10_000))
    await recorder.close()
    assert [thread.name for thread in threads if thread.is_alive()] == [], "closing waited for them in vain"
    assert recorder.health().num_lost == 3


# --- database down or stuck ------------------------------------------------------------------


@pytest.mark.postgres
async def test_postgresql_goes_away_and_comes_back(own_postgres: Postgres, open_ledger: OpenLedger) -> None:
    serve_ledger = open_ledger(own_postgres.new_database())
    async with recording(serve_ledger) as recorder:
        assert await recorder.record(make_turn("before"))
        await asyncio.to_thread(own_postgres.stop)
        assert not await recorder.record(make_turn("t0"))
        for i in range(1, 10):
            assert not at_once(recorder.record(make_turn(f"t{i}")))
        assert (recorder.health().ok, recorder.health().num_unsaved) == (False, 10)
        await asyncio.to_thread(own_postgres.start)
        await recovered(recorder)
        assert await recorder.record(make_turn("after"))
        assert recorder.health() == RecorderHealth(True, None, 12, 0, 0)
    assert serve_ledger.counts()["turns"] == 12
    assert serve_ledger.check_integrity() == []


@pytest.mark.postgres
async def test_a_stuck_postgresql_delays_one_reply_not_all(
    own_postgres: Postgres, open_ledger: OpenLedger, caplog: pytest.LogCaptureFixture
) -> None:
    serve_ledger = open_ledger(own_postgres.new_database())
    async with recording(serve_ledger, max_wait_s=0.5) as recorder:
        capture = LedgerCapture(serve_ledger, recorder, max_wait_s=0.5, pause_s=3600)
        await asyncio.to_thread(serve_ledger.append, [make_turn("before")])
        thaw = own_postgres.freeze()
        try:
            assert not await recorder.record(make_turn("t0"))
            assert recorder.health().error == "the ledger did not answer within 0.5 s"
            for i in range(1, 10):
                assert not at_once(recorder.record(make_turn(f"t{i}")))
            asked = request("alice", [user("a"), reply("b")])
            placements = [await capture.place(asked), *(at_once(capture.place(asked)) for _ in range(9))]
            assert caplog.text.count("could not be placed into its session: TimeoutError") == 1
            assert len({placement.session_id for placement in placements}) == 10
        finally:
            thaw()
        await recovered(recorder)
        await recorder.record(make_turn("after"))  # within the half second or not
        await recovered(recorder, 11)
    assert serve_ledger.counts()["turns"] == 12


@pytest.mark.postgres
async def test_once_a_slow_postgresql_has_answered_sessions_are_looked_up_again(
    own_postgres: Postgres, open_ledger: OpenLedger
) -> None:
    """Another gateway may have answered meanwhile, so what this one remembers is not enough."""
    url = own_postgres.new_database()
    here, there = open_ledger(url), open_ledger(url)
    async with recording(here) as recorder, recording(there) as other:
        capture = LedgerCapture(here, recorder, max_wait_s=0.5, pause_s=3600)
        await capture.place(request("alice", [user("Hi")]))
        thaw = own_postgres.freeze()
        try:
            alone = await capture.place(request("alice", [user("Hi"), reply("Yes?"), user("Go on.")]))
            assert alone.continues is None
        finally:
            thaw()
        elsewhere = LedgerCapture(there, other)
        asked = request("alice", [user("What now?")])
        placed = await elsewhere.place(asked)
        assert await elsewhere.record(make_turn("t1", placed.session_id, text="Wait."), asked)
        continued = request("alice", [user("What now?"), reply("Wait."), user("How long?")])
        async with asyncio.timeout(60):
            while (await capture.place(continued)).continues != "t1":
                await asyncio.sleep(0.01)


@pytest.mark.postgres
async def test_once_postgresql_is_written_again_sessions_are_looked_up_again(
    own_postgres: Postgres, open_ledger: OpenLedger
) -> None:
    url = own_postgres.new_database()
    here, there = open_ledger(url), open_ledger(url)
    async with recording(here) as recorder, recording(there) as other:
        capture, elsewhere = LedgerCapture(here, recorder, pause_s=3600), LedgerCapture(there, other)
        await asyncio.to_thread(own_postgres.stop)
        assert not await recorder.record(make_turn("t0"))
        assert (await capture.place(request("alice", [user("Hi")]))).continues is None
        await asyncio.to_thread(own_postgres.start)
        await recovered(recorder)
        asked = request("alice", [user("What now?")])
        assert await elsewhere.record(make_turn("t1", text="Wait."), asked)
        continued = request("alice", [user("What now?"), reply("Wait."), user("How long?")])
        async with asyncio.timeout(60):
            while (await capture.place(continued)).continues != "t1":
                await asyncio.sleep(0.01)


async def test_a_locked_sqlite_delays_one_reply_not_all(tmp_path: Path, open_ledger: OpenLedger) -> None:
    url = sqlite_url(tmp_path / "x.db")
    serve_ledger, other = open_ledger(url), open_ledger(url)
    async with recording(serve_ledger, max_wait_s=0.3) as recorder:
        with other.writing():
            assert not await recorder.record(make_turn("t0"))
            for i in range(1, 10):
                assert not at_once(recorder.record(make_turn(f"t{i}")))
        await recovered(recorder, 10)
        await recorder.record(make_turn("after"))  # within 0.3 s or not
        await recovered(recorder, 11)
        assert recorder.health() == RecorderHealth(True, None, 11, 0, 0)


# --- capture ---------------------------------------------------------------------------------


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def reply(text: str) -> Message:
    return {"role": "assistant", "content": text}


def request(user: str, messages: list[Message], **headers: str) -> ChatRequest:
    used = {"user": user, "messages": messages, "headers": headers, "body": {"messages": messages}}
    return ChatRequest(**{**dict.fromkeys(field.name for field in fields(ChatRequest)), **used})


async def test_a_conversation_through_capture(
    serve_ledger: ServeLedger, url: str, open_ledger: OpenLedger
) -> None:
    async with recording(serve_ledger) as recorder:
        capture = LedgerCapture(serve_ledger, recorder)
        first = await capture.place(request("alice", [user("Hi")]))
        turn = make_turn("t1", first.session_id, text="Hello!")
        assert await capture.record(turn, request("alice", [user("Hi")]))
        await capture.delivered("t1", True)
        history = [user("Hi"), reply("Hello!"), user("How are you?")]
        second = await capture.place(request("alice", history))
        assert (second.session_id, second.continues) == (first.session_id, "t1")
        # A server that starts later finds the same by asking the ledger.
        async with recording(open_ledger(url)) as later:
            third = await LedgerCapture(open_ledger(url), later).place(request("alice", history))
        assert third == second
    summary = serve_ledger.turn_summary("t1")
    assert summary is not None
    assert summary["delivered"] is True


async def test_capture_never_raises(serve_ledger: ServeLedger) -> None:
    deep = "[" * 100_000
    strange: list[Message] = [
        user("\ud800"),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "name": "f", "arguments": deep}]},
    ]
    async with recording(serve_ledger) as recorder:
        capture = LedgerCapture(serve_ledger, recorder)
        placement = await capture.place(request("alice", [*strange, user("go on")]))
        turn = make_turn("t1", placement.session_id, messages=strange)
        turn.reply = {"role": "assistant", "tool_calls": [{"no": "name"}]}
        assert await capture.record(turn, request("alice", strange))
        broken = await capture.place(request("alice", [{"no": "role"}]))
        assert broken.continues is None
    assert serve_ledger.load_turn("t1") == turn
