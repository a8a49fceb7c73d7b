"""A tiny network learns what a model elsewhere says, word for word, and begins to take over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from openclaw_rl.capture.takeovers import TakeOvers
from openclaw_rl.testing import tiny_model
from openclaw_rl.train.takeover import FIRST, TakeOver
from openclaw_rl.types import EVERYONE, NOT_RECORDED, UPSTREAM_VERSION, ScoreRequest
from tests.serve.test_upstream import listening

from .test_training import Stack, run, talk

SAID = "a fine day"


async def _answer(_: object) -> JSONResponse:
    message = {"role": "assistant", "content": SAID}
    return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(tmp_path: Path, tiny: Path) -> AsyncIterator[Stack]:
    routes = [
        Route("/v1/models", lambda _: JSONResponse({"data": [{"id": "big"}]})),
        Route("/v1/chat/completions", _answer, methods=["POST"]),
    ]
    async with listening(Starlette(routes=routes)) as url:
        stack = Stack(
            tmp_path / "home", tiny, algo="hinted", batch_size=2, upstream=url,
            take_over=True, upstream_terms="allow-learning", algo_options={"anchors": 0},
        )  # fmt: skip
        yield stack
        await stack.close()


async def _likelihood(stack: Stack, version: int, prompt: list[int], reply: list[int]) -> float:
    request = ScoreRequest([*prompt, *reply], len(prompt), policy_version=version)
    return float(np.mean((await stack.engine.score(request)).logprobs))


async def test_replies_elsewhere_are_learned_as_text(stack: Stack) -> None:
    turns = await talk(stack, 8, then="good")
    await stack.judge()
    worker = stack.worker()
    takeovers = TakeOvers(stack.system.ledgers.learn)
    take_over = TakeOver(takeovers, stack.policy_ledger, (0.5, 1.0))
    take_over.look()
    assert takeovers.history(EVERYONE) == [], "nothing is learned yet"
    await run(worker)
    assert [(await stack.get(f"/v1/turns/{turn}"))["state"] for turn in turns] == ["trained"] * 8
    [example] = stack.policy_ledger.examples_of(turns[0])
    assert (example.source.kind, example.source.policy_version) == ("upstream", None)
    assert (example.old_NK == NOT_RECORDED).all(), "nobody's log-probs are made up"
    assert (example.signal_NK == 0).all()
    assert stack.system.gateway.renderer is not None
    assert example.reply_ids[-1] in stack.system.gateway.renderer.stop_ids, "it learns to stop, too"
    before, after = [
        await _likelihood(stack, version, example.prompt_ids, example.reply_ids) for version in (0, 1)
    ]
    assert after > before
    take_over.look()
    [rung] = takeovers.history(EVERYONE)
    assert (rung.share, rung.why) == (0.5, FIRST)
    await stack.system.follow()
    status = (await stack.get("/v1/status"))["take_over"]
    assert status["share"] == 0.5
    found = {version for version, _, _ in takeovers.reactions(EVERYONE)}
    assert found == {UPSTREAM_VERSION}


async def test_a_complaint_about_the_other_model_is_no_example_of_what_to_say(stack: Stack) -> None:
    [turn] = await talk(stack, 1, then="bad, wrong")
    await stack.judge()
    await run(stack.worker())
    made = stack.policy_ledger.examples_of(turn)
    assert all(example.source.kind != "upstream" for example in made)
