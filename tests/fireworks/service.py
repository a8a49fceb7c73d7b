"""A stand-in for Fireworks' serverless service: a real SkyRL 0.3.0 behind the service's names and routes.

Training requests reach SkyRL as Fireworks' client sent them, but for the names of sessions and checkpoints.
Sampling, keys and accounts are imitated, from what the client expects of the service.

python service.py PORT --base-model … (as ``skyrl.tinker.api`` takes it)
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx

PREFIX = "/training/v1/serverless"
KEY = "fw-test"
_ID = rb"([0-9a-f]{8})"
_NAME = rb"([a-z0-9-]+)"
_ZEROS = b"0" * 24
#: The service's name of a session, a trainer's state and sampler weights, and SkyRL's.
_NAMES = [
    (rb'"ts-%s"', rb'"session_%s"', 1),
    (rb'"test/run-' + _ZEROS + rb'%s/weights/%s"', rb'"tinker://model_%s/weights/%s"', 2),
    (rb'"test/run-' + _ZEROS + rb'%s/sampler/%s"', rb'"tinker://model_%s/%s"', 2),
]
_SAMPLER = re.compile(r"accounts/test/trainingSamplers/(checkpoints/)?(.*)")


def renamed(body: bytes, to_skyrl: bool) -> bytes:
    for service, skyrl, number in _NAMES:
        given, made = (service, skyrl) if to_skyrl else (skyrl, service)
        body = re.sub(given % (_ID, _NAME)[:number], made % (rb"\1", rb"\2")[:number], body)
    return body


class Service:
    """An ASGI application in front of SkyRL's."""

    def __init__(self, skyrl: Any) -> None:
        self._skyrl = skyrl
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(skyrl), base_url="http://skyrl", timeout=300
        )
        self._sampled: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._skyrl(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, kind, answer = await self._answer(scope["method"], scope["path"], headers, body)
        start = [(b"content-type", kind.encode()), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, str, bytes]:
        json_kind, path = "application/json", path.removeprefix(PREFIX)
        if path == "/api/v1/healthz":
            return 200, json_kind, b'{"status": "ok"}'
        if headers.get("x-api-key") != KEY:
            return 401, json_kind, b'{"detail": "no such key"}'
        if path == "/v1/accounts":
            return 200, json_kind, b'{"accounts": [{"name": "accounts/test"}]}'
        if path == "/api/v1/create_sampling_route":
            return 200, json_kind, b"{}"
        if path == "/inference/v1/completions":
            return 200, "text/event-stream", await self._complete(json.loads(body))
        if path == "/api/v1/save_weights_for_sampler":
            self._sampled.add(json.loads(body)["model_id"])
        if path == "/api/v1/unload_model" and json.loads(body)["model_id"] in self._sampled:
            # SkyRL's JAX backend samples from loaded models only; the service from what was saved.
            return 400, json_kind, b'{"detail": "kept for sampling"}'
        sent = renamed(body, to_skyrl=True)
        answer = await self._client.request(method, path, content=sent, headers={"content-type": json_kind})
        return answer.status_code, json_kind, renamed(answer.content, to_skyrl=False)

    async def _complete(self, request: dict[str, Any]) -> bytes:
        ids, echo, temperature = request["prompt"], request.get("echo", False), request["temperature"]
        named = _SAMPLER.fullmatch(request["model"])
        assert named is not None, request["model"]
        model = {"model_path": named[2]} if named[1] else {"base_model": named[2]}
        params = {name: request.get(name) for name in ("max_tokens", "temperature", "top_p", "seed")}
        params["top_k"] = request["top_k"] or -1
        prompt = {"chunks": [{"type": "encoded_text", "tokens": ids}]}
        asked = {"prompt": prompt, "sampling_params": params, "prompt_logprobs": echo, **model}
        sent = json.loads(renamed(json.dumps(asked).encode(), to_skyrl=True))
        future = (await self._client.post("/api/v1/asample", json=sent)).raise_for_status().json()
        body = {"request_id": future["request_id"]}
        answer = (await self._client.post("/api/v1/retrieve_future", json=body)).raise_for_status().json()
        [reply] = answer["sequences"]
        rows = [(each, _drawn(each, temperature)) for each in reply["logprobs"]]
        if echo:
            rows = [(each, None) for each in (0.0, *answer["prompt_logprobs"])] + rows
        content = [{"logprob": raw, "sampling_logprob": drawn} for raw, drawn in rows]
        tokens = {"completion_token_ids": (ids if echo else []) + reply["tokens"]}
        choice = {"text": "", "finish_reason": reply["stop_reason"], "raw_output": tokens}
        choice["logprobs"] = {"content": content}
        chunk = {"choices": [choice]}
        return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()


def _drawn(raw: float, temperature: float) -> float | None:
    """SkyRL tells raw log-probs only; at temperature 0 the likeliest token is certain."""
    return {0.0: 0.0, 1.0: raw}.get(temperature)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "tinker"))
    from skyrl_server import serve  # type: ignore[import-not-found]

    serve(Service)
