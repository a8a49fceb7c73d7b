"""Client for the engine of another process on this machine, over its private socket.

The learn process judges and probes with the serving engine, so there is one model in memory and
one queue with priorities. Calls raise EngineGone while the server is unavailable; the caller
decides whether to wait.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    GpuOffer,
    Scope,
    ScoreRequest,
    Scores,
    Token,
    Weights,
)
from openclaw_rl.types.wire import facts_from_json, generate_to_json, score_to_json, token_from_json


class EngineGone(ConnectionError):
    """The serving process does not answer."""


class RemoteEngine:
    """Engine protocol over a Unix socket."""

    capabilities = Capabilities()
    context_length = 0

    def __init__(self, socket: Path, timeout_s: float = 300) -> None:
        # A connection pool: many turns are judged at once.
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://engine", timeout=timeout_s
        )
        # For the trainer's thread, which has no event loop.
        self._from_thread = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://engine", timeout=timeout_s
        )
        self._status = EngineStatus(0, 0, 0, (BASE_VERSION,))

    async def connect(self) -> None:
        """Fetch the engine's capabilities; raises EngineGone if it does not answer."""
        try:
            answer = await self._client.get("/status")
        except httpx.HTTPError as error:
            raise EngineGone(str(error)) from None
        stated, self.context_length, self._status = facts_from_json(answer.json())
        # Warm switching matters to live requests only, which do not come this way.
        self.capabilities = replace(stated, warm_switching=False)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        try:
            async with self._client.stream("POST", "/generate", json=generate_to_json(request)) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise _refusal(answer)
                async for line in answer.aiter_lines():
                    yield _token(json.loads(line))
        except httpx.HTTPError as error:
            raise EngineGone(str(error)) from None

    async def score(self, request: ScoreRequest) -> Scores:
        return Scores(**await self._post("/score", score_to_json(request)))

    async def load(self, weights: Weights) -> None:
        await self._post("/load", asdict(weights))
        self._note(versions=tuple({*self._status.versions, weights.version}))

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        await self._post("/serve_version", {"version": version, "scope": scope})
        self._note(serving={**self._status.serving, scope: version})

    async def unload(self, version: int) -> None:
        await self._post("/unload", {"version": version})
        self._note(versions=tuple({*self._status.versions} - {version}))

    def _note(self, **changes: Any) -> None:
        self._status = replace(self._status, **changes)

    def check_grammar(self, grammar: str) -> None:
        """Nothing to do: the engine checks the grammar when it gets the request."""

    def status(self) -> EngineStatus:
        """As of the last ``connect``, plus what was loaded and switched from here since."""
        return self._status

    def on_gpu(self) -> GpuOffer | None:
        """The GPU that the engine shares; None if it has none. Blocks: for the trainer's thread."""
        try:
            data = self._from_thread.get("/gpu").raise_for_status().json()
        except httpx.HTTPError as error:
            raise EngineGone(str(error)) from None
        if data is None:
            return None
        # Imported late: judging needs no torch.
        from openclaw_rl.engine.sharing import offer_from_json

        return offer_from_json(data)

    def num_live(self) -> int:
        """Users' requests that run or wait; 0 while the engine does not answer. Blocks."""
        try:
            return int(self._from_thread.get("/live").raise_for_status().json())
        except httpx.HTTPError:
            return 0

    async def close(self) -> None:
        self._from_thread.close()
        await self._client.aclose()

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise EngineGone(str(error)) from None
        if answer.status_code != 200:
            raise _refusal(answer)
        result: dict[str, Any] = answer.json()
        return result


def _refusal(answer: httpx.Response) -> Exception:
    if answer.status_code == 400:
        return ValueError(answer.json()["error"])
    return EngineGone(f"the engine answered {answer.status_code}")


def _token(data: dict[str, Any]) -> Token:
    if "error" in data:
        raise (ValueError if data.get("refused") else EngineGone)(data["error"])
    return token_from_json(data)
