"""Who has a key and what they may: no change is lost, whoever makes them, and however many at once."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.users import Users

NUM = 24


def add_keys(home: Path, prefix: str) -> None:
    ring = KeyRing.in_home(home)
    for number in range(NUM):
        ring.add(f"{prefix}{number}")


def test_keys_added_by_several_processes_at_once_all_stay(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    KeyRing.in_home(tmp_path)
    processes = [context.Process(target=add_keys, args=(tmp_path, prefix)) for prefix in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert len(KeyRing.in_home(tmp_path).users) == 3 * NUM + 1


def test_changes_to_people_by_several_threads_at_once_all_stay(tmp_path: Path) -> None:
    def change(number: int) -> None:
        Users.in_home(tmp_path).change(f"user{number}", group="us")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(NUM)))
    people = Users.in_home(tmp_path)
    assert [number for number in range(NUM) if people.of(f"user{number}").group != "us"] == []


async def test_people_added_over_http_at_once_all_have_a_key(
    system: ServingSystem, connect: Callable[..., httpx.AsyncClient]
) -> None:
    owner = connect(system)
    names = [f"user{number}" for number in range(NUM)]
    answers = await asyncio.gather(*(owner.post("/v1/users", json={"name": name}) for name in names))
    assert {answer.status_code for answer in answers} == {200}
    for answer in answers:
        one = connect(system, answer.json()["key"])
        assert (await one.get("/v1/models")).status_code == 200
