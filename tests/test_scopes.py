"""A user has a scope, a scope has a version: two scopes in one system never see each other's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl import loop
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.config import load_config
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.processes import parts
from openclaw_rl.processes.learning_system import ServedModel
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.scopes import Scopes, check_scope
from openclaw_rl.sinks import Fan
from openclaw_rl.testing import FiniteGate, WordJudge, tiny_model
from openclaw_rl.train.worker import LearnWorker
from openclaw_rl.types import EVERYONE, Judge, ScoreRequest, Sink
from openclaw_rl.types.lora import ADAPTER_FILE

ANN, BEN = "user:ann", "user:ben"


def test_without_entries_everybody_shares_one_policy() -> None:
    assert Scopes().of("ann") == EVERYONE
    assert Scopes({"ann": ANN}).of("ann") == ANN
    assert Scopes({"ann": ANN}).of("ben") == EVERYONE


@pytest.mark.parametrize("scope", ["", "ann", "user:", "user:a b", "team:x"])
def test_what_is_no_scope_is_said(scope: str) -> None:
    with pytest.raises(ValueError, match="user:NAME"):
        check_scope(scope)


class Stack:
    """The real engine, trainer and ledger on a tiny network, for two people with a policy each."""

    def __init__(self, home: Path, model: Path | None = None, **settings: Any) -> None:
        self.model = tiny_model(home / "model") if model is None else model
        self.config = load_config(
            {
                "home": home, "model": str(self.model), "renderer": "qwen3", "kernel": "float",
                "device": "cpu", "batch_size": 2, "held_out_share": 0.0, "num_threads": 1,
                "train_threads": 1, "lora_rank": 2, "algo": "binary", "canary_share": 0, **settings,
            },
            environment={},
        )  # fmt: skip
        engine = parts.build_engine(self.config, self.model)
        self.renderer = parts.build_renderer(self.config, self.model)
        answerer = parts.build_answerer(self.config, engine, self.renderer)
        ledgers = parts.open_ledgers(self.config)
        scopes = Scopes({"ann": ANN, "ben": BEN})
        self.system: ServingSystem = loop.wire_serving(self.config, ledgers, engine, answerer, scopes)
        self.policies = ledgers.policies
        app = httpx.ASGITransport(self.system.app())
        keys = {"owner": self.system.keys.key_of("default")}
        keys |= {user: self.system.keys.add(user) for user in ("ann", "ben")}
        self.http = {
            user: httpx.AsyncClient(
                transport=app, base_url="http://test", headers={"authorization": f"Bearer {key}"}
            )
            for user, key in keys.items()
        }

    async def ask(self, user: str, messages: list[Any]) -> httpx.Response:
        body = {"model": "default", "messages": messages, "max_tokens": 8}
        return await self.http[user].post("/v1/chat/completions", json=body)

    async def complain(self, user: str, number: int) -> None:
        for n in range(number):
            messages: list[Any] = [{"role": "user", "content": f"{user} asks {n}"}]
            reply = (await self.ask(user, messages)).json()["choices"][0]["message"]
            await self.ask(user, [*messages, reply, {"role": "user", "content": "bad, say less"}])
        await self.system.gateway.drain()

    async def judge(self, judge: Judge | None = None) -> None:
        ledgers = self.system.ledgers
        queue = LedgerJudgeQueue(ledgers.serve, ledgers.learn, idle_s=1e12)
        judging = JudgeWorker(queue, judge or WordJudge())
        while await judging.step():
            pass

    async def learner(self, judge: Judge | None = None, *sinks: Sink) -> LearnWorker:
        """After everything was judged."""
        await self.judge(judge)
        encode = parts.text_encoder(parts.load_tokenizer(self.model))
        served = ServedModel(self.system.engine, self.model, self.renderer, encode)
        return loop.build_learner(self.config, served, self.policies, Fan(sinks), FiniteGate())

    async def learn(self, judge: Judge | None = None, *sinks: Sink) -> None:
        worker = await self.learner(judge, *sinks)
        while await worker.step():
            pass

    async def versions(self) -> list[int]:
        """Who answers ann, ben and the owner, all at once."""
        answers = await asyncio.gather(
            *(self.ask(user, [{"role": "user", "content": "hello"}]) for user in ("ann", "ben", "owner"))
        )
        return [int(answer.headers["x-policy-version"]) for answer in answers]

    async def get(self, path: str, **query: str) -> Any:
        answer = await self.http["owner"].get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, **query: str) -> httpx.Response:
        return await self.http["owner"].post(path, params=query)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path)
    yield stack
    for client in stack.http.values():
        await client.aclose()
    await stack.system.close()


async def test_two_people_with_a_policy_each(stack: Stack) -> None:
    policies = stack.policies
    await stack.complain("ann", 2)
    await stack.learn()
    assert policies.serving_table() == {ANN: 1}
    assert await stack.versions() == [1, 0, 0], "only ann taught anything"
    await stack.complain("ben", 1)
    await stack.learn()
    assert policies.waiting(BEN)[0] == 1
    assert policies.waiting(ANN)[0] == policies.waiting()[0] == 0
    assert policies.serving(BEN) == 0, "one sample is not enough, whoever else was trained"
    await stack.complain("ben", 1)
    await stack.learn()
    assert policies.serving_table() == {ANN: 1, BEN: 2}
    assert await stack.versions() == [1, 2, 0], "in one batch"
    policy = policies.policy(2)
    assert policy is not None
    assert (policy.parent, policy.scope) == (0, BEN), "ben's line starts at the base, not at ann's version"
    assert {example.scope for example in policies.items(2)} == {BEN}
    assert {example.source.user for example in policies.items(2)} == {"ben"}
    assert stack.system.store.weights(2).scope == BEN
    assert policies.scores_of(0, BEN) == [-1, -1]

    listed = [(await stack.get("/v1/policies", scope=scope))["data"] for scope in (ANN, BEN, EVERYONE)]
    assert [[(row["version"], row["status"]) for row in rows] for rows in listed] == [
        [(1, "serving"), (0, "retired")],
        [(2, "serving"), (0, "retired")],
        [(0, "serving")],
    ]
    assert (await stack.get("/v1/status", scope=ANN))["policy_version"] == 1
    assert (await stack.get("/v1/status"))["policy_version"] == 0

    assert (await stack.post("/v1/policies/rollback", scope=ANN)).status_code == 200
    assert await stack.versions() == [0, 2, 0], "ben keeps his"
    assert "is for user:ben" in (await stack.post("/v1/policies/2/promote", scope=ANN)).text
    assert (await stack.post("/v1/policies/1/promote", scope="nobody")).status_code == 404
    reply = await stack.ask("ben", [{"role": "user", "content": "x"}])
    turn = stack.system.ledgers.serve.load_turn(reply.json()["id"])
    assert turn is not None
    assert (turn.scope, turn.policy_version) == (BEN, 2)


async def test_people_take_turns_however_much_one_of_them_says(stack: Stack) -> None:
    """Two samples a step: ann has enough for four steps, the others for one each."""
    await stack.complain("ann", 8)
    await stack.complain("ben", 2)
    await stack.complain("owner", 2)
    await stack.learn()
    made = [p for scope in (ANN, BEN, EVERYONE) for p in stack.policies.list_policies(scope=scope)]
    steps = sorted((p.version, p.scope) for p in made if p.version)
    assert [scope for _, scope in steps] == [EVERYONE, ANN, BEN, ANN, ANN, ANN]


async def test_whoever_speaks_while_a_long_backlog_is_learned_comes_next(stack: Stack) -> None:
    await stack.complain("ann", 8)
    worker = await stack.learner()
    while stack.policies.serving(ANN) == 0:
        await worker.step()
    await stack.complain("ben", 2)
    await stack.judge()
    while stack.policies.serving(BEN) == 0:
        assert await worker.step()
    assert stack.policies.waiting(ANN)[0] >= 2, "ann is not done"


async def test_a_server_that_starts_again_serves_everybody_their_own(stack: Stack) -> None:
    await stack.complain("ann", 2)
    await stack.complain("ben", 2)
    await stack.learn()
    before = await stack.versions()
    assert sorted(before) == [0, 1, 2]
    engine = parts.build_engine(stack.config, stack.model)
    await stack.system.engine.close()
    stack.system.engine = engine
    await stack.system.follow()
    assert dict(engine.status().serving) == {ANN: before[0], BEN: before[1]}


async def test_nobody_elses_step_changes_a_bit(stack: Stack) -> None:
    """Ben's log-probs before and after ann's steps, whatever else runs in the same batch."""
    await stack.complain("ben", 2)
    await stack.learn()
    prompt = stack.renderer.render([{"role": "user", "content": "hello ben"}])
    request = ScoreRequest([*prompt, *range(10, 20)], 1, policy_version=1)
    before, file = await stack.system.engine.score(request), stack.system.store.path(1) / ADAPTER_FILE
    bytes_before = file.read_bytes()
    await stack.complain("ann", 4)
    await stack.learn()
    assert set(stack.policies.serving_table()) == {ANN, BEN}
    assert stack.policies.serving(BEN) == 1
    assert await stack.system.engine.score(request) == before
    assert file.read_bytes() == bytes_before
