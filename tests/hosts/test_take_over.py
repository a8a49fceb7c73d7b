"""The whole way: a model elsewhere answers, a tiny network learns to, takes over, and goes on alone.

The person is content with what the other model says and with nothing else. Nobody is told who answered.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from openclaw_rl.capture.takeovers import TakeOvers
from openclaw_rl.testing import tiny_model
from openclaw_rl.train.takeover import TakeOver
from openclaw_rl.types import EVERYONE, UPSTREAM_VERSION
from tests.learn.test_training import Stack, run
from tests.serve.test_upstream import listening

pytestmark = pytest.mark.hosts
SAID = "a fine day"


async def _answer(_: object) -> JSONResponse:
    message = {"role": "assistant", "content": SAID}
    return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


ROUTES = [
    Route("/v1/models", lambda _: JSONResponse({"data": [{"id": "big"}]})),
    Route("/v1/chat/completions", _answer, methods=["POST"]),
]


class Person:
    """Asks, and says what they think of the reply."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.number = stack, 0
        self.liked: list[tuple[int, bool]] = []
        """Who answered, and whether that pleased."""
        self.failed = 0

    async def talk(self, times: int, stream: bool = False) -> None:
        for _ in range(times):
            self.number += 1
            asked = {"role": "user", "content": f"question {self.number}"}
            body = {
                "model": "default",
                "max_tokens": 16,
                "temperature": 0,
                "stream": stream,
                "messages": [asked],
            }
            answer = await self.stack.http.post("/v1/chat/completions", json=body)
            self.failed += answer.status_code != 200 or '"error":{' in answer.text.replace(" ", "")
            text = _text(answer.text) if stream else answer.json()["choices"][0]["message"]["content"]
            good = text.strip() == SAID
            self.liked.append((int(answer.headers["x-policy-version"]), good))
            reply = {"role": "assistant", "content": text}
            said = {"role": "user", "content": "good, thanks" if good else "bad"}
            await self.stack.http.post(
                "/v1/chat/completions", json={**body, "stream": False, "messages": [asked, reply, said]}
            )
        await self.stack.system.gateway.drain()


def _text(stream: str) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


async def test_the_share_rises_while_people_stay_content(tmp_path: Path) -> None:
    async with listening(Starlette(routes=ROUTES)) as url:
        stack = Stack(
            tmp_path / "home", tiny_model(tmp_path / "model"), algo="hinted", batch_size=8, upstream=url,
            take_over=True, upstream_terms="allow-learning", lora_rank=8, learning_rate=1e-2,
            algo_options={"anchors": 0}, canary_share=0.0,
        )  # fmt: skip
        worker, person = stack.worker(), Person(stack)
        takeovers = TakeOvers(stack.system.ledgers.learn)
        take_over = TakeOver(takeovers, stack.policy_ledger, (0.5, 1.0))
        for _ in range(40):
            await person.talk(12)
            await stack.judge()
            await run(worker)
            take_over.look()
            await stack.system.follow()
            now, last = takeovers.current(EVERYONE), person.liked[-12:]
            serving = stack.policy_ledger.serving()
            print(
                f"\n{person.number} conversations: {now.share:.0%} here, version {serving}: {last}",
                flush=True,
            )
            if now.share == 1.0:
                break
        history = [(rung.share, rung.why) for rung in reversed(takeovers.history(EVERYONE))]
        print(f"\n{person.number} conversations: {history}")
        assert history[-1][0] == 1.0
        begun = len(person.liked)
        await person.talk(30)
        here = [good for version, good in person.liked[begun:] if version != UPSTREAM_VERSION]
        print(f"{len(here)} of 30 answered here, {sum(here)} to the person's content")
        assert len(here) == 30
        assert sum(here) >= 27
    # The other model is gone now, and the share goes back to where everything would be asked of it.
    takeovers.go(EVERYONE, 0.0, "a test")
    await stack.system.follow()
    begun = len(person.liked)
    await person.talk(10)
    await person.talk(10, stream=True)
    assert person.failed == 0
    assert all(version != UPSTREAM_VERSION for version, _ in person.liked[begun:])
    await stack.close()
