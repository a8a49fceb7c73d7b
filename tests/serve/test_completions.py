"""Bare text in, more text out."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine

URL = "/v1/completions"


def ask(prompt: Any = "Once upon", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": prompt, "max_tokens": 50, **more}


@pytest.mark.parametrize("prompt", ["Once <|im_end|> upon", ["Once <|im_end|> upon"]])
async def test_the_prompt_goes_in_as_it_is(
    client: httpx.AsyncClient, system: ServingSystem, prompt: Any
) -> None:
    engine = system.engine
    assert isinstance(engine, ScriptedEngine)
    engine.say(" a <think> time")
    reply = (await client.post(URL, json=ask(prompt))).json()
    assert reply["id"].startswith("cmpl-")
    (choice,) = reply["choices"]
    assert (reply["object"], choice["text"]) == ("text_completion", " a <think> time")
    assert choice["finish_reason"] == "stop"
    ids = engine.requests[-1].prompt_ids
    renderer = system.gateway.renderer
    assert renderer is not None
    assert b"".join(renderer.token_bytes(i) for i in ids) == b"Once <|im_end|> upon"
    assert not set(ids) & renderer.stop_ids, "text never becomes a control token"


async def test_token_ids_go_in_as_they_are(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    assert (await client.post(URL, json=ask([1, 2, 3]))).status_code == 200
    assert engine.requests[-1].prompt_ids == [1, 2, 3]


async def test_streamed(client: httpx.AsyncClient, chunks: Any) -> None:
    body = ask(stream=True, stream_options={"include_usage": True})
    *pieces, last, done = chunks((await client.post(URL, json=body)).text)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == "Hello!"
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
    assert (last["usage"]["completion_tokens"], done) == (7, "[DONE]")


async def test_several_choices_and_logprobs(client: httpx.AsyncClient) -> None:
    reply = (await client.post(URL, json=ask(n=2, logprobs=2))).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    logprobs = reply["choices"][1]["logprobs"]
    assert "".join(logprobs["tokens"]) == "Hello!"
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2] * 6


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"prompt": ["a", "b"]}, 400, "prompt"), ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"), ({"prompt": [[]]}, 400, "prompt"), ({"prompt": [""]}, 400, "prompt"),
        ({"prompt": [10**9]}, 400, "prompt"), ({"prompt": [-1]}, 400, None), ({"echo": True}, 400, "echo"),
        ({"suffix": "x"}, 400, "suffix"), ({"best_of": 3}, 400, "best_of"), ({"model": "x"}, 404, "model"),
        ({"prompt": "x" * 5000}, 400, "prompt"),
    ],
)  # fmt: skip
async def test_errors(client: httpx.AsyncClient, change: Any, status: int, param: str | None) -> None:
    answer = await client.post(URL, json={**ask(), **change})
    assert answer.status_code == status, answer.text
    if param:
        assert answer.json()["error"]["param"] == param
