"""Secrets never leave the machine: no byte of one reaches a judge's server or a metrics sink."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.judge.llm import EndpointJudge
from openclaw_rl.testing import tiny_model

from ..judge.test_endpoint import Endpoint, asked
from ..listening import receiving
from ..test_forgetting import close
from ..test_scopes import ANN, Stack

SECRETS = (
    "sk-proj-Zk3v9Qw7Lm2Xp8Tr5Yb1Nc6D",
    "ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8",
    "4539 5787 6362 1486",
    "DE89 3704 0044 0532 0130 00",
    "AKIAZ7QW3RTY5UPL9MNB",
)


class Posting:
    """A sink that sends each step's metrics to a server, as those of other systems do."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._client.post("/", json={"step": step, **metrics}).raise_for_status()

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    endpoint.answer = lambda body: (
        '{"reasoning": "no", "verdict": -1, "correction": true, "hints": ["Be short."]}'
    )
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


async def converse(stack: Stack, secret: str) -> None:
    """The secret in the request, in what a tool returned, in the reaction, and in the system prompt."""
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    plain, complaint = "tell me about snow", "bad, say less"
    for system, request, result, reaction in (
        ("", f"use {secret} for it", "", complaint),
        ("", plain, f"password file: {secret}", complaint),
        ("", plain, "", f"bad, you forgot {secret}"),
        (f"You log in with {secret}.", plain, "", complaint),
    ):
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": request})
        if result:
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": result},
            ]
        reply = (await stack.ask("ann", messages)).json()["choices"][0]["message"]
        answer = await stack.ask("ann", [*messages, reply, {"role": "user", "content": reaction}])
        await stack.http["ann"].post(
            "/v1/feedback", json={"id": answer.json()["id"], "text": f"no, {secret}"}
        )


@pytest.mark.parametrize("redact", ["mask", "off"])
async def test_no_byte_of_a_secret_is_sent(
    redact: str, tmp_path: Path, model: Path, endpoint: Endpoint
) -> None:
    stack = Stack(tmp_path / "home", model, redact=redact)
    try:
        for secret in SECRETS:
            await converse(stack, secret)
        await stack.complain("ann", 2)
        with receiving() as (url, posted):
            await stack.learn(EndpointJudge(asked(endpoint, majority_vote_n=1)), Posting(url))
        assert stack.policies.serving(ANN) > 0, "the other turns were learned from"
        judged, metrics = json.dumps(endpoint.bodies), b" ".join(posted).decode()
        assert "say less" in judged
        assert '"loss"' in metrics
        reached = [secret for secret in SECRETS if secret in judged]
        assert reached == ([] if redact == "mask" else list(SECRETS)), "as sent only where masking is off"
        if redact == "mask":
            assert not any(part in judged for secret in SECRETS for part in (secret[4:16], secret[-8:]))
        assert not any(secret in metrics for secret in SECRETS)
        assert all(isinstance(value, int | float) for body in posted for value in json.loads(body).values())
    finally:
        await close(stack)
