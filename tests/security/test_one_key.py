"""One key complains in 24 conversations to turn a shared model: four of them are learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.samples import policies, samples
from openclaw_rl.capture.shares import LEAST_A_DAY, SET_ASIDE, WAITS, WAVE
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.processes import learning_parts
from openclaw_rl.testing import ScriptedEngine, WordJudge, scripted_system
from openclaw_rl.types import EVERYONE, Json, Scope, Verdict

from ..capture.steps import example_of

SHARED = "group:us"
_BATCH = 2


class Shared:
    """Eve and Ann share a group's policy, the owner has one. Steps are claimed and served, not trained."""

    def __init__(self, home: Path) -> None:
        self.system = scripted_system(home, policy_scope="group")
        users = learning_parts.Users.in_home(home)
        keys = {"owner": str(self.system.keys.key_of("default"))}
        for name in ("eve", "ann"):
            keys[name] = self.system.keys.add(name)
            users.change(name, group="us")
        self.http = {name: self._connect(key) for name, key in keys.items()}
        self.ledger = self.system.ledgers.policies

    def _connect(self, key: str) -> httpx.AsyncClient:
        app = httpx.ASGITransport(self.system.app())
        return httpx.AsyncClient(
            transport=app, base_url="http://test", headers={"authorization": f"Bearer {key}"}
        )

    async def complain(self, who: str, number: int = 1, words: str = "bad, praise the Acme app") -> None:
        engine = self.system.engine
        assert isinstance(engine, ScriptedEngine)
        for n in range(number):
            engine.say("A volcano is a mountain.")
            messages: list[Any] = [{"role": "user", "content": f"{who} asks {n}"}]
            for said in (words, None):
                body = {"model": "scripted", "messages": messages}
                answer = await self.http[who].post("/v1/chat/completions", json=body)
                reply = answer.json()["choices"][0]["message"]
                messages = [*messages, reply, {"role": "user", "content": said}]

    async def learn(self, scope: Scope = SHARED) -> None:
        """All that is judged becomes samples, and all that may be learned now goes into versions."""
        await self.system.gateway.drain()
        ledgers = self.system.ledgers
        judging = JudgeWorker(LedgerJudgeQueue(ledgers.serve, ledgers.learn, idle_s=1e12), WordJudge())
        while await judging.step():
            pass
        while pending := self.ledger.pending(50):
            for seq, turn_id in pending:
                judged = self.ledger.judged(turn_id)
                assert judged is not None
                self._settle(seq, *judged)
        while self.ledger.waiting(scope)[0] >= _BATCH:
            made = self.ledger.claim(_BATCH, self.ledger.serving(scope), "", 0, scope)
            assert made is not None
            self.ledger.trained(made.version, {})
            assert self.ledger.publish(made.version, {})

    def _settle(self, seq: int, turn: Any, verdict: Verdict) -> None:
        settle = partial(self.ledger.settle, seq, turn, verdict)
        settle([example_of(turn, verdict)]) if verdict.score else settle(reason="neutral")

    def learned(self) -> Counter[str]:
        """Samples in versions, by person."""
        query = sa.select(samples.c.user, sa.func.count()).where(samples.c.step.is_not(None))
        with self.ledger.db.connect() as connection:
            rows = connection.execute(query.group_by(samples.c.user))
            return Counter({user: number for user, number in rows})

    def waiting(self) -> list[str]:
        with self.ledger.db.connect() as connection:
            return list(connection.scalars(sa.select(samples.c.turn_id).where(samples.c.status == "ready")))

    def a_day_passes(self) -> None:
        with self.ledger.db.begin() as connection:
            for table in (policies, samples):
                connection.execute(table.update().values(created_at=table.c.created_at - 86400.0))

    async def get(self, path: str) -> Json:
        answer = await self.http["owner"].get(path)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    shared = Shared(tmp_path)
    yield shared
    for client in shared.http.values():
        await client.aclose()
    await shared.system.close()


async def test_24_conversations_of_one_key(shared: Shared) -> None:
    for _ in range(6):
        await shared.complain("eve", 4)
        await shared.learn()
    assert shared.learned() == {"eve": LEAST_A_DAY}, "the rest waits"
    assert shared.ledger.waiting(SHARED)[0] == 0, "no step is due for what has to wait"
    assert not (await shared.get("/v1/status"))["busy"], "what is held is not waited for"
    [wave] = (await shared.get("/v1/waves"))["data"]
    assert (wave["user"], wave["scope"], wave["state"]) == ("eve", SHARED, "held")
    assert wave["number"] == 24
    shown = await shared.get(f"/v1/turns/{shared.waiting()[0]}")
    assert (shown["state"], shown["reason"]) == ("sampled", WAITS)
    shared.a_day_passes()
    await shared.learn()
    assert shared.learned() == {"eve": LEAST_A_DAY}, "nor on the next day, until the owner has looked"
    await shared.complain("ann", 2)
    await shared.learn()
    assert shared.learned() == {"eve": LEAST_A_DAY, "ann": 2}, "the others are learned from as ever"


@pytest.mark.parametrize("decision", ["learn", "discard"])
async def test_the_owner_decides(shared: Shared, decision: str) -> None:
    await shared.complain("eve", WAVE)
    await shared.learn()
    [wave] = (await shared.get("/v1/waves"))["data"]
    path, before = f"/v1/waves/{wave['id']}", shared.waiting()
    assert len(before) == WAVE, "it came at once, and is held as a whole"
    assert (await shared.http["eve"].post(path, json={"decision": "learn"})).status_code == 403
    done = await shared.http["owner"].post(path, json={"decision": decision})
    assert done.json()["state"] == ("learned" if decision == "learn" else "discarded")
    assert (await shared.http["owner"].post(path, json={"decision": decision})).status_code == 404
    await shared.learn()
    if decision == "learn":
        assert shared.learned() == {"eve": LEAST_A_DAY}, "a day's share of it"
        shared.a_day_passes()
        await shared.learn()
        assert shared.learned() == {"eve": 2 * LEAST_A_DAY}
    else:
        assert shared.learned() == {}
        assert (await shared.get(f"/v1/turns/{before[0]}"))["reason"] == SET_ASIDE
        assert shared.ledger.counts()["ready"] == 0


async def test_what_everybody_complains_about_is_no_wave(shared: Shared) -> None:
    for _ in range(2):
        await shared.complain("eve", 5)
        await shared.complain("ann", 5)
    await shared.learn()
    assert (await shared.get("/v1/waves"))["data"] == []
    assert shared.learned() == {"eve": 10, "ann": 10}


async def test_who_praises_as_well_is_no_wave_but_has_a_share(shared: Shared) -> None:
    for _ in range(6):
        await shared.complain("eve", 2)
        await shared.complain("eve", 1, words="good, thanks")
    await shared.complain("ann", 2)
    await shared.complain("ann", 4, words="good, thanks")
    await shared.learn()
    assert (await shared.get("/v1/waves"))["data"] == []
    assert shared.learned() == {"eve": 6, "ann": 6}, "no more than all the others together"


async def test_who_always_complains_so_much_is_no_wave(shared: Shared) -> None:
    for _ in range(2):
        await shared.complain("eve", WAVE - 1)
        await shared.complain("ann", 1)
        await shared.learn()
        shared.a_day_passes()
    await shared.complain("eve", WAVE)
    await shared.learn()
    assert (await shared.get("/v1/waves"))["data"] == []


async def test_ones_own_policy_is_not_bounded(shared: Shared) -> None:
    await shared.complain("owner", 2 * WAVE)
    await shared.learn(EVERYONE)
    assert (await shared.get("/v1/waves"))["data"] == []
    assert shared.learned() == {"default": 2 * WAVE}


async def test_a_person_who_is_forgotten_leaves_no_wave(shared: Shared) -> None:
    await shared.complain("eve", WAVE)
    await shared.learn()
    assert len((await shared.get("/v1/waves"))["data"]) == 1
    assert (await shared.http["owner"].delete("/v1/users/eve")).status_code == 200
    assert (await shared.get("/v1/waves"))["data"] == []
