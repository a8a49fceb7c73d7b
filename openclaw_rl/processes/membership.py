"""Membership of a learn process: alone on SQLite, one of several hosts on PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from openclaw_rl.capture import database
from openclaw_rl.capture.leases import TTL_S, LeaseLost, Leases
from openclaw_rl.capture.ledgers import Ledgers

#: Exit code for the supervisor: nothing is wrong with this host, restart it.
EXIT_LOST = 75
_TIMES = 3


@asynccontextmanager
async def membership(home: Path, ledgers: Ledgers, ttl_s: float = TTL_S) -> AsyncIterator[Leases | None]:
    """The leases of this process, kept alive; None with SQLite, where it is the only one.

    ValueError if another learn process runs here. A process that loses its lease exits at once: its step may
    be in the middle of something that cannot be cancelled, and another host takes over.
    """
    shared = ledgers.learn.db.dialect.name == "postgresql"
    lock = home / "learn.lock" if shared else Path(f"{ledgers.learn.db.url.database}.lock")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with database.only_one(lock) as alone:
        if not alone:
            raise ValueError("another learn process works on this ledger; one at a time")
        if not shared:
            yield None
            return
        leases = Leases(ledgers.learn, host_name(home), ttl_s)
        await asyncio.to_thread(leases.join)
        ledgers.policies.leads, ledgers.policies.is_sampling = leases.leads, leases.judges
        ledgers.policies.holds_scope = leases.holds_scope
        keeping = asyncio.create_task(_keep(leases))
        try:
            yield leases
        finally:
            keeping.cancel()
            with suppress(Exception):  # the database is unavailable, or the lease was lost anyway
                await asyncio.wait_for(asyncio.to_thread(leases.leave), leases.ttl_s)


def host_name(home: Path) -> str:
    """A name that is unique to this data folder and never changes."""
    file = home / "host-id"
    if not file.exists():
        part = file.with_suffix(".part")
        part.write_text(f"{socket.gethostname()}-{secrets.token_hex(4)}")
        part.rename(file)
    return file.read_text().strip()


async def _keep(leases: Leases) -> None:
    good_until = time.monotonic() + leases.ttl_s
    while True:
        await asyncio.sleep(leases.ttl_s / _TIMES)
        began = time.monotonic()
        try:
            await asyncio.wait_for(asyncio.to_thread(leases.renew), leases.ttl_s / _TIMES)
            good_until = began + leases.ttl_s
        except LeaseLost:
            _end()
        except Exception:  # the database is unavailable: no problem until the lease expires
            if time.monotonic() > good_until:
                _end()


def _end() -> None:
    """Exit without waiting for the training thread: what it writes would be refused."""
    print("learn: this host's lease ran out; another may go on. Ending, to be started again", file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_LOST)


async def until_judging(leases: Leases | None, pause_s: float = 1.0) -> None:
    """Wait until this host is the one that judges."""
    while leases is not None:
        with suppress(Exception):  # also wait while the database is unavailable
            if await asyncio.to_thread(leases.judges):
                return
        await asyncio.sleep(pause_s)
