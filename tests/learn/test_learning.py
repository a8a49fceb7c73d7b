"""The learn process: judging with a judge that works, fails, hangs, or comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.config import JudgeConfig
from openclaw_rl.engine.remote import EngineGone, RemoteEngine
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.serve.private import create_private_app
from openclaw_rl.testing import ScriptedEngine, byte_tokenizer, until
from openclaw_rl.types import (
    GenerateRequest,
    JudgeCase,
    JudgeError,
    Priority,
    SamplingParams,
    ScoreRequest,
    Verdict,
    Weights,
)
from tests.learn.conftest import Speaker


class MoodyJudge:
    """Judges by the length of what followed, unless it is told to misbehave."""

    def __init__(self) -> None:
        self.mood = "well"
        self.cases: list[JudgeCase] = []

    async def evaluate(self, case: JudgeCase) -> Verdict:
        if self.mood == "down":
            raise JudgeError("the endpoint refused the connection")
        if self.mood == "slow":
            await asyncio.Event().wait()
        if self.mood == "broken":
            raise KeyError("nonsense")
        self.cases.append(case)
        text = case.next_state[-1]["content"] if case.next_state else ""
        return Verdict(-1 if "shorter" in text else 1, 0.8, "votes", votes=(1, 1, 1), hints=(text,))

    async def close(self) -> None:
        """Holds nothing."""


@pytest.fixture
def judge() -> MoodyJudge:
    return MoodyJudge()


@pytest.fixture
def timeout_s() -> float:
    """Long, unless a test is about a judge that never answers."""
    return 120.0


@pytest.fixture
async def worker(system: ServingSystem, judge: MoodyJudge, timeout_s: float) -> AsyncIterator[JudgeWorker]:
    judge_queue = LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, idle_s=1e12)
    worker = JudgeWorker(judge_queue, judge, JudgeConfig(judge_timeout_s=timeout_s), poll_s=0.01)
    running = asyncio.create_task(worker.run())
    yield worker
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def converse(speaker: Speaker, *texts: str) -> list[str]:
    """One conversation; returns the ids of its replies."""
    messages: list[dict[str, Any]] = []
    ids = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        reply = await speaker.ask(messages)
        messages.append({"role": "assistant", "content": reply["content"]})
        ids.append(reply["id"])
    return ids


async def state_of(speaker: Speaker, turn_id: str, expected: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (turn := await speaker.turn(turn_id))["state"] != expected:
            await asyncio.sleep(0.01)
    return turn


async def test_turns_are_judged_from_what_came_next(
    system: ServingSystem, judge: MoodyJudge, worker: JudgeWorker
) -> None:
    speaker = Speaker(system)
    ids = await converse(speaker, "Tell me about Rome.", "shorter please", "thanks")
    first = await state_of(speaker, ids[0], "judged")
    assert (first["verdict"]["score"], first["verdict"]["hints"]) == (-1, ["shorter please"])
    assert (await state_of(speaker, ids[1], "judged"))["verdict"]["score"] == 1
    last = await speaker.turn(ids[2])
    assert (last["state"], last["reason"]) == ("waiting", "nothing has followed the reply yet")
    await speaker.http.post(f"/v1/sessions/{last['session_id']}/close")
    await state_of(speaker, ids[2], "judged")
    assert judge.cases[-1].next_state is None
    # The first two may have been judged at the same time.
    assert "Tell me about Rome." in [case.messages[-1]["content"] for case in judge.cases[:2]]


@pytest.mark.parametrize(
    ("mood", "reason", "timeout_s"),
    [("down", "refused", 120.0), ("slow", "no answer within", 1.0), ("broken", "KeyError", 120.0)],
)
async def test_a_failing_judge_leaves_turns_unjudged_and_serving_alone(
    mood: str, reason: str, timeout_s: float, system: ServingSystem, judge: MoodyJudge, worker: JudgeWorker
) -> None:
    judge.mood = mood
    speaker = Speaker(system)
    ids = await converse(speaker, "One", "Two")
    failed = await state_of(speaker, ids[0], "unjudged")
    assert failed["verdict"] is None
    assert reason in failed["reason"]
    assert (await speaker.http.get("/readyz")).json()["status"] == "ok"
    assert len(await converse(speaker, "Still", "there")) == 2
    judge.mood = "well"
    await speaker.http.post("/v1/flush")
    await state_of(speaker, ids[0], "judged")


async def test_feedback_outranks_the_judge(system: ServingSystem, worker: JudgeWorker) -> None:
    speaker = Speaker(system)
    ids = await converse(speaker, "A question", "thanks")
    await state_of(speaker, ids[0], "judged")
    answer = await speaker.http.post(
        "/v1/feedback", json={"id": ids[0], "rating": "down", "text": "It was wrong."}
    )
    assert answer.json() == {"id": ids[0], "score": -1}

    async with asyncio.timeout(60):
        while (verdict := (await speaker.turn(ids[0]))["verdict"])["source"] != "feedback":
            await asyncio.sleep(0.01)
    assert (verdict["score"], verdict["confidence"], verdict["hints"]) == (-1, 1.0, ["It was wrong."])
    assert (await speaker.http.post("/v1/feedback", json={"id": "nobody", "rating": "up"})).status_code == 404
    assert (await speaker.http.post("/v1/feedback", json={"id": ids[0]})).status_code == 400


async def test_the_status_counts_every_turn_once(system: ServingSystem, worker: JudgeWorker) -> None:
    speaker = Speaker(system)
    ids = await converse(speaker, "One", "Two", "Three")
    await speaker.ask([{"role": "user", "content": "Generate a title for this conversation"}])
    for reply in ids[:2]:  # judged at the same time, in no order
        await state_of(speaker, reply, "judged")
    funnel = (await speaker.http.get("/v1/status")).json()["funnel"]
    assert {s: n for s, n in funnel["by_state"].items() if n} == {"waiting": 1, "judged": 2, "excluded": 1}
    assert sum(funnel["by_state"].values()) == funnel["turns"] == 4


async def test_the_private_socket_is_an_engine(tmp_path: Path) -> None:
    """What goes through the socket is what the engine produced."""
    engine = ScriptedEngine(byte_tokenizer())
    remote = RemoteEngine(tmp_path / "engine.sock")
    with pytest.raises(EngineGone):
        await remote.connect()
    remote._client = httpx.AsyncClient(
        transport=httpx.ASGITransport(create_private_app(engine)), base_url="http://engine"
    )
    await remote.connect()
    assert remote.context_length == engine.context_length
    request = GenerateRequest([1, 2, 3], SamplingParams(5), priority=Priority.LIVE)
    direct = [token async for token in engine.generate(request)]
    through = [token async for token in remote.generate(request)]
    assert direct == through
    assert engine.requests[-1].priority is Priority.JUDGE
    asked = ScoreRequest([1, 2, 3, 4], 2, top_k=3)
    assert await remote.score(asked) == await engine.score(asked)
    with pytest.raises(ValueError, match="start"):
        await remote.score(ScoreRequest([1, 2, 3], 0))
    await remote.load(Weights.in_folder(4, tmp_path))
    await remote.serve_version(4)
    await remote.connect()
    assert remote.status().version_for() == 4
    await remote.close()
    await until(lambda: engine.status().num_running == 0, "the engine is idle")
