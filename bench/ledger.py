"""Cost of a turn in the ledger, in time and bytes, as the ledger grows.

    python bench/ledger.py [--sizes 1000,100000] [--runs 3] [--url postgresql://…] [--folder DISK] [--fill]

Turns are those of an agent that resends the whole conversation: sessions of 8 turns, prompts that grow from
2,000 to 3,500 tokens (1,900 of them a system prompt shared by all sessions), replies of 60 tokens with their
top 8. Each size has its own ledger, filled in bulk. The ledgers are then measured in rotation, ``--runs``
times, so that other load on the machine affects all sizes alike. Measured through the classes that serve use:
turns of 1 client and of 8 at once, look-ups of random old sessions as after a restart, and the counts in
``/v1/status``. With ``--folder`` or ``--url`` the filled ledgers are kept and reused; filling a million turns
takes 15 minutes, and ``--fill`` does only that.

It measures the ledger alone: no engine and no gateway compete for the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import sqlalchemy as sa
from tqdm import tqdm

from openclaw_rl.capture.normalise import fold_instructions, reply_keys
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.capture.serve_ledger import Delivery, ServeLedger, sqlite_url
from openclaw_rl.capture.sessions import SessionFinder
from openclaw_rl.types import Message, SamplingParams, Token, TurnRecord

TURNS = 8
SYSTEM_TOKENS, PROMPT_TOKENS, REPLY_TOKENS, TOP = 1900, 3500, 60, 8
#: Tokens that a turn adds to the prompt before its reply.
USER_TOKENS = (PROMPT_TOKENS - SYSTEM_TOKENS - (TURNS - 1) * REPLY_TOKENS) // TURNS
LETTERS_PER_TOKEN = 4
BATCH = 400
COLUMNS = (
    "turns", "append, 1 client ms (p50 / p99)", "append, 8 clients ms per turn", "CPU ms per turn",
    "look-up ms (p50 / p99)", "status ms", "kB per turn", "file GB",
)  # fmt: skip

_random = random.Random(0)
_POOL = "".join(_random.choices("abcdefghijklmnopqrstuvwxyz ", k=1_000_000))
_SYSTEM: Message = {"role": "system", "content": _POOL[: SYSTEM_TOKENS * LETTERS_PER_TOKEN]}
_TOOLS = [{"name": f"tool{i}", "description": _POOL[i * 500 : (i + 1) * 500]} for i in range(8)]
_IDS = _random.choices(range(49152), k=1_000_000)
_SYSTEM_IDS = _IDS[:SYSTEM_TOKENS]


def _token() -> Token:
    ids = tuple(_random.choices(range(49152), k=TOP))
    values = tuple(-_random.random() * k for k in range(1, TOP + 1))
    return Token(ids[0], values[0], values[0], ids, values, policy_version=0)


#: Text, ids and tokens of all turns are slices of these pools, at random offsets.
_TOKENS = [_token() for _ in range(20_000)]


def session(number: int, now: float) -> list[TurnRecord]:
    """Session ``number``; deterministic."""
    source = random.Random(number)
    messages: list[Message] = [_SYSTEM]
    prompt_ids = list(_SYSTEM_IDS)
    turns: list[TurnRecord] = []
    for i in range(TURNS):
        messages = [*messages, {"role": "user", "content": _text(source, USER_TOKENS, f"{number}.{i}")}]
        start = source.randrange(len(_IDS) - USER_TOKENS)
        prompt_ids = prompt_ids + _IDS[start : start + USER_TOKENS]
        start = source.randrange(len(_TOKENS) - REPLY_TOKENS)
        tokens = _TOKENS[start : start + REPLY_TOKENS]
        reply: Message = {"role": "assistant", "content": _text(source, REPLY_TOKENS, f"{number}.{i}")}
        turns.append(
            TurnRecord(
                id=f"chatcmpl-{source.getrandbits(96):024x}", session_id=f"sess-{number:016x}",
                user="default",
                dialect="chat", kind="unknown", messages=messages, tools=_TOOLS,
                params={"model": "m", "stream": True, "max_completion_tokens": 1024}, reply=reply,
                prompt_ids=prompt_ids, tokens=tokens, sampling=SamplingParams(1024), policy_version=0,
                finish_reason="stop", created_at=now, timings={"first_token_s": 0.1, "total_s": 1.0},
                continues=turns[-1].id if turns else None, keys=reply_keys("default", messages, reply),
            )
        )  # fmt: skip
        messages = [*messages, reply]
        prompt_ids = prompt_ids + [token.id for token in tokens]
    return turns


def _text(source: random.Random, num_tokens: int, unique: str) -> str:
    start = source.randrange(len(_POOL) - 10_000)
    return f"{unique} {_POOL[start : start + num_tokens * LETTERS_PER_TOKEN]}"


def fill(ledger: ServeLedger, size: int, now: float) -> None:
    """Add sessions in bulk until there are ``size`` turns; existing ones are kept."""
    start, stop = ledger.counts()["turns"] // TURNS, size // TURNS
    if ledger.counts()["turns"] % TURNS:
        raise SystemExit(f"{ledger.url.database}: a run was broken off in the middle of a session; delete it")
    batch: list[TurnRecord] = []
    with tqdm(total=size, initial=start * TURNS, desc=f"filling to {size}", unit=" turns") as bar:
        for number in range(start, stop):
            batch += session(number, now)
            if len(batch) >= BATCH or number == stop - 1:
                ledger.append([*batch, *(Delivery(turn.id, True, now) for turn in batch)])
                ledger.checkpoint()
                bar.update(len(batch))
                batch = []


async def record(
    ledger: ServeLedger, sessions: Sequence[list[TurnRecord]], clients: int
) -> tuple[list[float], float]:
    """Record turns as the gateway does; returns each turn's latency and the total time, in seconds."""
    recorder = Recorder(ledger)
    latencies: list[float] = []
    waiting: Iterator[list[TurnRecord]] = iter(sessions)

    async def client() -> None:
        for turns in waiting:
            for turn in turns:
                began = time.perf_counter()
                if not await recorder.record(turn):
                    raise RuntimeError(recorder.health().error)
                latencies.append(time.perf_counter() - began)
                await recorder.record(Delivery(turn.id, True, turn.created_at))

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - began
    await recorder.close()
    return latencies, took


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def look_up(ledger: ServeLedger, stored: int, samples: int) -> list[float]:
    """Place the next request of random old sessions, each time with a fresh finder, as after a restart."""
    source = random.Random(stored)
    times = []
    for _ in range(samples):
        turn = session(source.randrange(stored), 0)[-1]
        request = [*turn.messages, turn.reply, {"role": "user", "content": "and then?"}]
        finder = SessionFinder(ledger)
        fold_instructions.cache_clear()
        began = time.perf_counter()
        placement = finder.place("default", request, {}, {})
        times.append(time.perf_counter() - began)
        if placement.continues != turn.id:
            raise RuntimeError(f"{turn.id} was not found")
    return times


def measure(ledger: ServeLedger, size: int, samples: int, now: float) -> tuple[str, ...]:
    stored = ledger.counts()["turns"] // TURNS
    new = [session(stored + i, now) for i in range(samples * 2 // TURNS)]
    latencies, _ = asyncio.run(record(ledger, new[: len(new) // 2], clients=1))
    cpu = time.process_time()
    _, took = asyncio.run(record(ledger, new[len(new) // 2 :], clients=8))
    cpu = time.process_time() - cpu
    num_turns = len(new) // 2 * TURNS
    found = look_up(ledger, stored, samples)
    status = statistics.median(timed(ledger.counts) for _ in range(20))
    ledger.checkpoint()
    total, turns = file_bytes(ledger), ledger.counts()["turns"]
    return (
        f"{size:,}", _spread(latencies), f"{took / num_turns * 1e3:.2f}", f"{cpu / num_turns * 1e3:.2f}",
        _spread(found), f"{status * 1e3:.2f}", f"{total / turns / 1e3:.1f}", f"{total / 1e9:.2f}",
    )  # fmt: skip


def _spread(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{ordered[len(ordered) // 2] * 1e3:.2f} / {ordered[int(len(ordered) * 0.99)] * 1e3:.2f}"


def file_bytes(ledger: ServeLedger) -> int:
    if ledger.db.dialect.name == "sqlite":
        return os.path.getsize(str(ledger.url.database))
    with ledger.db.connect() as connection:
        return int(connection.scalar(sa.select(sa.func.pg_database_size(sa.func.current_database()))) or 0)


def describe_machine(ledger: ServeLedger) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )
    if ledger.db.dialect.name == "sqlite":
        database = f"SQLite {sqlite3.sqlite_version}"
    else:
        with ledger.db.connect() as connection:
            database = f"PostgreSQL {connection.scalar(sa.text('SHOW server_version'))}"
    python = f"Python {platform.python_version()}, SQLAlchemy {sa.__version__}"
    return f"{database}, {python}, {os.cpu_count()} × {cpu}, {platform.system()} {platform.release()}"


def open_ledger(size: int, url: str | None, folder: Path) -> ServeLedger:
    """The ledger of that size: a file in the folder, or a database next to the one in the URL."""
    if url is None:
        return ServeLedger(sqlite_url(folder / f"ledger-{size}.db"))
    server = sa.make_url(url)
    name = f"{server.database}_{size}"
    engine = sa.create_engine(server.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        known = sa.text("SELECT 1 FROM pg_database WHERE datname = :name")
        if connection.scalar(known, {"name": name}) is None:
            connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
    engine.dispose()
    return ServeLedger(server.set(database=name).render_as_string(hide_password=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", default="1000,100000,1000000", help="turns already stored")
    parser.add_argument("--runs", type=int, default=3, help="how often every size is measured")
    parser.add_argument("--url", help="PostgreSQL, where databases for the sizes are made; by default SQLite")
    parser.add_argument("--folder", type=Path, help="the disk to measure; the ledgers stay in it")
    parser.add_argument("--samples", type=int, default=800, help="turns measured per size and way")
    parser.add_argument("--fill", action="store_true", help="fill the ledgers and stop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        sizes = [int(size) for size in options.sizes.split(",")]
        ledgers = {size: open_ledger(size, options.url, folder) for size in sizes}
        now = time.time()
        for size, ledger in ledgers.items():
            fill(ledger, size, now)
        if not options.fill:
            run(ledgers, options.runs, options.samples, now)
        for ledger in ledgers.values():
            ledger.close()


def run(ledgers: dict[int, ServeLedger], runs: int, samples: int, now: float) -> None:
    print(describe_machine(next(iter(ledgers.values()))))
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for _ in range(runs):
        for size, ledger in ledgers.items():
            print(f"| {' | '.join(measure(ledger, size, samples, now))} |", flush=True)


if __name__ == "__main__":
    main()
