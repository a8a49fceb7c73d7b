"""The whole loop with its model on a real SkyRL server: complaints become a version, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from openclaw_rl.engine.tinker import TinkerEngine
from openclaw_rl.testing.waiting import until
from tests.faulty import FaultyLine, faulty_line
from tests.learn.test_training import Stack, run, talk

pytestmark = [pytest.mark.tinker, pytest.mark.filterwarnings("default")]
HELLO = {"model": "default", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}


class TinkerStack(Stack):
    @property
    def engine(self) -> Any:
        return cast(TinkerEngine, self.system.engine)


@pytest.fixture
def line(skyrl: Any) -> Any:
    with faulty_line(("127.0.0.1", int(skyrl.url.rpartition(":")[2]))) as line:
        yield line


@pytest.fixture
async def stack(skyrl: Any, line: FaultyLine, tmp_path: Path) -> AsyncIterator[TinkerStack]:
    place = {"url": line.url, "base_model": str(skyrl.model)}
    settings = {"engine": "tinker", "engine_options": {**place, "assume_temperature_1": True},
                "trainer": "tinker", "trainer_options": {**place, "patience_s": 60},
                "algo": "binary", "batch_size": 2, "lora_rank": 4}  # fmt: skip
    stack = await asyncio.to_thread(TinkerStack, tmp_path / "home", skyrl.model, **settings)
    yield stack
    await stack.close()


async def step_of(stack: TinkerStack, turns: list[str]) -> set[int]:
    return {(await stack.get(f"/v1/turns/{turn}"))["step"] for turn in turns}


async def test_complaints_become_a_version_that_serves_and_nothing_is_trained_twice(
    stack: TinkerStack, skyrl: Any, line: FaultyLine
) -> None:
    turns = await talk(stack, 2)
    await stack.judge()
    work = asyncio.create_task(run(stack.worker()))
    begun = "training version 1 "
    await until(lambda: any(said.startswith(begun) for said in stack.said), "the step has begun", 300)
    skyrl.kill()  # in the middle of it
    with pytest.raises(ConnectionError):
        await work
    skyrl.start()
    line.cut()  # and now the network, while a new process takes the step up
    work = asyncio.create_task(run(stack.worker()))
    await asyncio.sleep(30)
    line.mend()
    with suppress(ConnectionError):  # given up meanwhile: the learn process tries again
        await work
    await run(stack.worker())
    assert await step_of(stack, turns) == {1}
    versions = (await stack.get("/v1/policies"))["data"]
    assert [(v["version"], v["status"], v["num_samples"]) for v in versions if v["version"]] == [
        (1, "serving", 2)
    ]
    assert versions[0]["metrics"]["mismatch"] == pytest.approx(0, abs=1e-3)
    answer = await stack.http.post("/v1/chat/completions", json=HELLO)
    assert (answer.status_code, answer.headers["x-policy-version"]) == (200, "1")

    skyrl.kill()
    waiting = asyncio.create_task(stack.http.post("/v1/chat/completions", json=HELLO))
    await asyncio.to_thread(skyrl.start)
    answer = await waiting
    assert (answer.status_code, answer.headers["x-policy-version"]) == (200, "1"), answer.text

    more = await talk(stack, 2)
    await stack.judge()
    await run(stack.worker())
    assert await step_of(stack, turns) == {1}
    assert await step_of(stack, more) == {2}


@pytest.mark.parametrize("trouble", ["500", "429", "cut"])
async def test_what_passes_is_waited_for_and_what_does_not_is_a_503(
    stack: TinkerStack, line: FaultyLine, trouble: str
) -> None:
    def fail(times: int = 1_000_000) -> None:
        if trouble == "cut":
            line.cut()
        else:
            line.answer(int(trouble), times)

    fail(times=2)
    waiting = asyncio.create_task(stack.http.post("/v1/chat/completions", json={**HELLO, "stream": True}))
    await asyncio.sleep(1)
    if trouble == "cut":
        line.mend()
    answer = await waiting
    assert answer.status_code == 200, answer.text
    fail()
    stack.engine._options = replace(stack.engine._options, patience_s=5.0)
    answer = await stack.http.post("/v1/chat/completions", json={**HELLO, "stream": True})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "The model cannot answer now" in answer.json()["error"]["message"]
    stack.engine._options = replace(stack.engine._options, patience_s=300.0)
    line.mend()
    assert (await stack.http.post("/v1/chat/completions", json=HELLO)).status_code == 200


async def test_a_key_that_is_refused_is_named(stack: TinkerStack, line: FaultyLine) -> None:
    line.answer(401)
    answer = await stack.http.post("/v1/chat/completions", json={**HELLO, "stream": True})
    assert answer.status_code == 503
    assert "refuses the key in TINKER_API_KEY" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("status", "said"), [(401, "refuses the key"), (402, "quota of the Tinker service")])
async def test_a_key_or_a_quota_that_fails_while_training_loses_no_sample(
    stack: TinkerStack, line: FaultyLine, status: int, said: str
) -> None:
    """Before the trainer is made, and in a step; however often, the step is taken once it works again."""
    turns = await talk(stack, 2)
    await stack.judge()
    line.answer(status)
    for _ in range(4):
        with pytest.raises(ConnectionError, match=said):
            await run(stack.worker())
    line.mend()
    await run(stack.worker())
    assert await step_of(stack, turns) == {1}
    worker, more = stack.worker(), await talk(stack, 2)
    await stack.judge()
    for _ in range(4):
        line.answer(status)
        with pytest.raises(ConnectionError, match=said):
            await run(worker)
    line.mend()
    await run(worker)
    assert await step_of(stack, more) == {2}
