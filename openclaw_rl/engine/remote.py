"""The engine of another process on this machine, through its private socket.

The learn process judges and probes with the very engine that serves, so there is one model in
memory and one queue that knows who goes first. Calls fail with EngineGone while the server is
away; whoever calls decides whether to wait.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.types import (
    Capabilities,
    EngineStatus,
    GenerateRequest,
    ScoreRequest,
    Scores,
    Token,
)


class EngineGone(ConnectionError):
    """The serving process does not answer."""


class RemoteEngine:
    """Engine protocol over a Unix socket."""

    capabilities = Capabilities(grammars=True, hidden_states=True)

    def __init__(self, socket: Path, timeout_s: float = 300) -> None:
        # An asyncio connection pool; many turns are judged at once.
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://engine", timeout=timeout_s
        )
        self._status: dict[str, Any] = {}
        self.context_length = 0

    async def connect(self) -> None:
        """Learn the engine's facts; raises EngineGone if nobody is there."""
        try:
            answer = await self._client.get("/status")
        except httpx.HTTPError as error:
            raise EngineGone(str(error)) from None
        self._status = answer.json()
        self.context_length = int(self._status["context_length"])

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        body = {
            "prompt_ids": request.prompt_ids,
            "sampling": asdict(request.sampling),
            "stop_ids": sorted(request.stop_ids),
            "policy_version": request.policy_version,
            "priority": int(request.priority),
            "top_logprobs": request.top_logprobs,
            "grammar": request.grammar,
        }
        try:
            async with self._client.stream("POST", "/generate", json=body) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise _refusal(answer)
                async for line in answer.aiter_lines():
                    yield _token(json.loads(line))
        except httpx.HTTPError as error:
            raise EngineGone(str(error)) from None

    async def score(self, request: ScoreRequest) -> Scores:
        return Scores(**await self._post("/score", asdict(request)))

    async def load(self, version: int, path: Path) -> None:
        await self._post("/load", {"version": version, "path": str(path.resolve())})

    async def serve_version(self, version: int) -> None:
        await self._post("/serve_version", {"version": version})

    async def unload(self, version: int) -> None:
        await self._post("/unload", {"version": version})

    def pick_version(self, prompt_ids: Sequence[int]) -> int:
        return self.status().serving_version

    def check_grammar(self, grammar: str) -> None:
        """Checked by the engine itself when the request arrives there."""

    def status(self) -> EngineStatus:
        """As of the last ``connect``."""
        stated = {name: value for name, value in self._status.items() if name != "context_length"}
        return EngineStatus(**{**stated, "versions": tuple(stated["versions"])})

    async def close(self) -> None:
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
        raise EngineGone(data["error"])
    return Token(**{**data, "top_ids": tuple(data["top_ids"]), "top_logprobs": tuple(data["top_logprobs"])})
