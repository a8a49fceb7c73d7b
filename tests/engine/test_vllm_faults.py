"""What becomes of replies when vLLM's answers fail, from a server that speaks like one and fails on order.

``make test-vllm`` does the same to a real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import EngineConfig
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.errors import EngineAway
from openclaw_rl.types import Engine, GenerateRequest, SamplingParams, ScoreRequest, Token, Weights

PROMPT, VOCAB = [5, 6, 7], 40


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[tuple[str, int]] = []
        """For the next requests: what happens, and after how many tokens or with which status."""
        self.bodies: list[dict[str, Any]] = []
        self.adapters = {"base"}
        self.key = ""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def say(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self.say(200, {"data": [{"id": "base", "max_model_len": 64}]})
        return self.say(200, {"paths": {"/v1/load_lora_adapter": {}}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.key and self.headers.get("authorization") != f"Bearer {self.server.key}":
            return self.say(401, {"error": {"message": "no"}})
        if self.path == "/v1/unload_lora_adapter":
            self.server.adapters.discard(body["lora_name"])
            return self.say(200, {})
        if "lora_name" in body:
            if self.server.faults and self.server.faults[0][0] == "load":
                return self.say(self.server.faults[0][1], {"error": {"message": "no"}})
            self.server.adapters.add(body["lora_name"])
            return self.say(200, {})
        self.server.bodies.append(body)
        fault, number = self.server.faults.pop(0) if self.server.faults else ("", 0)
        if fault == "status":
            return self.say(number, {"error": {"message": "no"}})
        if body["model"] not in self.server.adapters:
            return self.say(404, {"error": {"message": "no such model"}})
        return self.stream(body, fault, number) if body.get("stream") else self.whole(body)

    def whole(self, body: dict[str, Any]) -> None:
        row = {str(token_id): {"logprob": -1.0} for token_id in range(VOCAB)}
        choice = {"prompt_logprobs": [None, *[row] * (len(body["prompt"]) - 1)],
                  "logprobs": {"top_logprobs": [{"token_id:1": -1.0}]}}  # fmt: skip
        self.say(200, {"choices": [choice]})

    def stream(self, body: dict[str, Any], fault: str, number: int) -> None:
        self.send_response(200)
        self.end_headers()
        ids = list(body["prompt"])
        for said in range(body["max_tokens"]):
            if fault and said == number:
                if fault == "error":
                    self.wfile.write(b'data: {"error": {"type": "InternalServerError"}}\n\n')
                return
            ids.append(sum(ids) % VOCAB)
            last = said + 1 == body["max_tokens"]
            shares = {f"token_id:{each}": -4.0 + (each == ids[-1]) for each in range(VOCAB)}
            told = {"token_logprobs": [-3.0], "top_logprobs": [shares]}
            choice = {"token_ids": ids[-1:], "logprobs": told, "finish_reason": "length" if last else None}
            self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def connect(server: Server, folder: Path) -> Engine:
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCAB}))
    options = {"url": f"http://127.0.0.1:{server.server_address[1]}", "patience_s": 5, "pause_s": 0.001}
    return create_engine(EngineParts(folder, EngineConfig(engine="vllm", engine_options=options)))


@pytest.fixture
async def engine(server: Server, tmp_path: Path) -> AsyncIterator[Engine]:
    engine = connect(server, tmp_path)
    server.bodies.clear()
    yield engine
    await engine.close()


async def reply(engine: Engine, **more: Any) -> list[Token]:
    request = GenerateRequest(PROMPT, SamplingParams(6, **more))
    return [token async for token in engine.generate(request)]


def expected() -> list[int]:
    ids = list(PROMPT)
    for _ in range(6):
        ids.append(sum(ids) % VOCAB)
    return ids[3:]


@pytest.mark.parametrize(
    "faults",
    [
        [("status", 500)],
        [("status", 503), ("status", 429)],
        [("error", 2)],
        [("break", 3)],
        [("break", 0), ("status", 500), ("error", 1), ("break", 2)],
    ],
    ids=str,
)
@pytest.mark.parametrize("penalty", [0.0, 0.5])
async def test_a_reply_goes_on_where_it_was(
    engine: Engine, server: Server, faults: list[tuple[str, int]], penalty: float
) -> None:
    server.faults = list(faults)
    tokens = await reply(engine, presence_penalty=penalty)
    assert [token.id for token in tokens] == expected()
    assert [token.finish_reason for token in tokens] == [None] * 5 + ["length"]
    assert not server.faults


async def test_after_a_break_penalties_are_still_what_they_were(engine: Engine, server: Server) -> None:
    """vLLM counts only what it said in the request at hand."""
    server.faults = [("break", 4)]
    whole = await reply(engine, presence_penalty=0.5, frequency_penalty=0.25)
    first, *others = server.bodies
    assert (first["presence_penalty"], first["frequency_penalty"], first["max_tokens"]) == (0.5, 0.25, 6)
    assert [body["max_tokens"] for body in others] == [1, 1]
    ids = [token.id for token in whole]
    for body in others:
        before = ids[: len(body["prompt"]) - len(PROMPT)]
        assert body["logit_bias"] == {str(each): -0.5 - 0.25 * before.count(each) for each in set(before)}
        assert body["presence_penalty"] == body["frequency_penalty"] == 0
    undisturbed = await reply(engine, presence_penalty=0.5, frequency_penalty=0.25)
    assert [token.sampled_logprob for token in whole] == [token.sampled_logprob for token in undisturbed]


async def test_what_never_works_is_a_503(engine: Engine, server: Server) -> None:
    server.faults = [("status", 500)] * 9
    with pytest.raises(EngineAway, match=r"vLLM failed 6 times \(it answered 500\)"):
        await reply(engine)
    server.faults = [("status", 502)] * 9
    with pytest.raises(EngineAway, match=r"it answered 502"):
        await engine.score(ScoreRequest(PROMPT, 1))
    assert engine.status().num_running == 0


async def test_a_key_that_is_refused_later_is_named(engine: Engine, server: Server) -> None:
    server.key = "another"
    with pytest.raises(EngineAway, match="refuses the key in OPENCLAW_RL_VLLM_API_KEY"):
        await reply(engine)


async def test_a_quota_that_is_used_up_is_not_asked_again(engine: Engine, server: Server) -> None:
    server.faults = [("status", 402)] * 2
    with pytest.raises(EngineAway, match="vLLM answered 402"):
        await reply(engine)
    assert len(server.faults) == 1


@pytest.mark.parametrize("status", [401, 402, 403, 429, 503])
async def test_a_version_that_is_refused_for_a_key_or_a_quota_is_not_damaged(
    engine: Engine, server: Server, tmp_path: Path, status: int
) -> None:
    """A ValueError would be the version's fault: its step fails, and is given up after three."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    server.faults = [("load", status)]
    with pytest.raises(ConnectionError, match=str(status)):
        await engine.load(Weights.in_folder(4, tmp_path))


async def test_a_version_that_the_server_forgot_is_loaded_again(
    engine: Engine, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    await engine.load(Weights.in_folder(3, tmp_path))
    await engine.serve_version(3)
    server.adapters = {"base"}
    assert {token.policy_version for token in await reply(engine)} == {3}
    server.adapters = {"another model"}
    with pytest.raises(EngineAway, match="no longer has the model base"):
        [
            token
            async for token in engine.generate(GenerateRequest(PROMPT, SamplingParams(6), policy_version=0))
        ]


async def test_a_restarted_engine_never_uses_an_adapter_of_the_one_before(
    server: Server, tmp_path: Path
) -> None:
    """A killed one leaves it there, and in a container even the process id is the same after a restart."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    names = []
    for _ in range(2):
        engine = connect(server, tmp_path)
        await engine.load(Weights.in_folder(1, tmp_path))
        await engine.serve_version(1)
        await reply(engine)
        names.append(server.bodies[-1]["model"])
        await engine.close()
    assert names[0] != names[1]


async def test_a_server_at_a_url_keeps_no_adapter_when_we_stop(server: Server, tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    engine = connect(server, tmp_path)
    for version in (1, 2):
        await engine.load(Weights.in_folder(version, tmp_path))
    assert len(server.adapters) == 3
    await engine.close()
    assert server.adapters == {"base"}
