"""vLLM, in a process of its own that we start and keep alive, or at a URL.

Every version is an adapter under a name of its own, so nothing that was cached for one version answers for
another, and a reply keeps the version it began with. A version of all weights is a server of its own.
When the server dies, requests wait until it is back; a reply that had begun goes on where it was.

What it does not do: grammars and hidden states.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.engine.loaded import LoadedVersions
from openclaw_rl.engine.remote_server import RemoteServerEngine
from openclaw_rl.engine.sampled_from import SampledFrom, bounded
from openclaw_rl.engine.vllm_server import VllmServer, server_flags
from openclaw_rl.engine.vllm_wire import (
    API_KEY,
    PASSING,
    RetryPolicy,
    TransientError,
    Unloaded,
    check_raw,
    completion_body,
    id_of,
    message,
    read_chunk,
    read_tokens,
    refusal,
)
from openclaw_rl.errors import EngineAway
from openclaw_rl.settings import EngineConfig
from openclaw_rl.types import (
    Capabilities,
    GenerateRequest,
    Json,
    Priority,
    Token,
    Weights,
)
from openclaw_rl.types.lora import ADAPTER_FILE

_UNIX = "unix://"
_POLL_S = 0.5
_CONNECT_S = 10.0
#: The first request makes it compile what it needs.
_FIRST_ANSWER_S = 300.0


#: A line that is cut without a word is noticed after half a minute, also while an answer is waited for.
_NOTICE_SILENCE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}.items()
        if hasattr(socket, name)
    ),
]


@dataclass(frozen=True)
class VllmOptions(EngineConfig):
    """The engine's section of the settings, and what only vLLM has: ``[engine.vllm]``."""

    url: str = ""
    """A server that runs, such as http://10.0.0.5:8000 or unix:///run/vllm.sock, instead of one of ours."""
    python: str = ""
    """The interpreter that has vLLM, where it is not ours."""
    flags: str = ""
    """More flags of the server that is started, such as --tensor-parallel-size 2."""
    max_lora_rank: int = 64
    """Largest rank of an adapter; 8, 16, 32, 64, 128, 256 or 512."""
    max_adapters: int = 8
    """Adapters in memory at once; more are read again when they are asked for."""
    patience_s: float = 180.0
    """How long requests wait for a server that is away."""
    pause_s: float = 0.25
    """How long a request that failed there waits before it is sent again; doubles each time."""


@dataclass(slots=True)
class _Server:
    """Where requests go: a client, and the process behind it if it is ours."""

    client: httpx.AsyncClient
    model: str
    context_length: int
    process: VllmServer | None = None

    async def close(self) -> None:
        await self.client.aclose()
        if self.process is not None:
            await asyncio.to_thread(self.process.close)


@dataclass(frozen=True, slots=True)
class _Version:
    """A name at a server; ``folder`` where it is an adapter that has to be loaded there."""

    server: _Server
    name: str
    folder: Path | None = None
    source: str = ""
    owns_server: bool = field(default=False)


class VllmEngine(RemoteServerEngine[_Version]):
    """Engine protocol over vLLM's HTTP API."""

    title = "vLLM"
    capabilities = Capabilities(full_weights=True)

    def __init__(self, model: Path, options: VllmOptions) -> None:
        self._options, self._model = options, model
        self.capabilities = replace(self.capabilities, full_weights=not options.url)
        server = self._reach(options.url) if options.url else self._start(model)
        self.context_length = server.context_length
        config = json.loads((model / "config.json").read_text())
        self._vocab = int(config.get("vocab_size") or config["text_config"]["vocab_size"])
        self._versions: LoadedVersions[_Version] = LoadedVersions(_Version(server, server.model))
        self._num_loads = 0
        self._loading = asyncio.Lock()

    # --- servers -----------------------------------------------------------------------------

    def _start(self, model: Path) -> _Server:
        o = self._options
        flags = server_flags(o.max_lora_rank, o.max_adapters, o.max_running, o.flags)
        process = VllmServer(model, flags, o.python)
        return self._reach(f"{_UNIX}{process.socket}", process)

    def _reach(self, url: str, process: VllmServer | None = None) -> _Server:
        """A server, asked what it is; one of ours that will not do is stopped."""
        try:
            with httpx.Client(**_address(url, httpx.HTTPTransport), timeout=_FIRST_ANSWER_S) as client:
                model, context_length = _facts(client, url)
        except BaseException:
            if process is not None:
                process.close()
            raise
        timeout = httpx.Timeout(self._options.patience_s, connect=_CONNECT_S, pool=None)
        client_here = httpx.AsyncClient(**_address(url, httpx.AsyncHTTPTransport), timeout=timeout)
        return _Server(client_here, model, context_length, process)

    async def _until_back(self, server: _Server, deadline: float) -> None:
        while True:
            problem = server.process.problem if server.process else None
            if problem is None:
                try:
                    if (await server.client.get("/health", timeout=5)).status_code == 200:
                        return
                except httpx.HTTPError as error:
                    problem = f"vLLM does not answer ({type(error).__name__})"
            if time.monotonic() > deadline:
                raise EngineAway(problem or "vLLM is not well")
            await asyncio.sleep(_POLL_S)

    # --- Engine protocol ---------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        version, room = self._accept(request)
        drawn = SampledFrom(bounded(request.sampling), self._vocab)
        told: list[int] = []
        tries = self._tries()
        with self._versions.using(version) as held:
            while True:
                try:
                    body = completion_body(request, held.name, drawn, told, room)
                    is_whole = body["max_tokens"] == room - len(told)
                    async with aclosing(self._stream(held, body)) as chunks:  # type: ignore[type-var]
                        async for chunk in chunks:
                            for token in read_tokens(chunk, request, version, drawn, is_whole):
                                told.append(token.id)
                                yield token
                                if token.finish_reason:
                                    return
                                tries.went_on()
                    if is_whole:
                        raise TransientError("it ended a reply without saying why")
                except PASSING as error:
                    await self._wait_until_ready(held, error, tries)

    def _tries(self) -> RetryPolicy:
        return RetryPolicy(self._options.patience_s, self._options.pause_s)

    async def _wait_until_ready(self, held: _Version, error: Exception, tries: RetryPolicy) -> None:
        """Until it may be asked again; EngineAway if that takes too long."""
        await asyncio.sleep(tries.failed(error))
        await self._until_back(held.server, tries.deadline)
        if isinstance(error, Unloaded):
            if held.folder is None:
                raise EngineAway(f"vLLM no longer has the model {held.name}") from error
            with suppress(httpx.TransportError):  # then the next try says so
                await self._put(held)

    async def _stream(self, held: _Version, body: Json) -> AsyncIterator[Json]:
        async with held.server.client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise refusal(answer)
            async for line in answer.aiter_lines():
                if (chunk := read_chunk(line)) is not None:
                    yield chunk

    async def _rows(
        self, held: _Version, ids: list[int], top_k: int, priority: Priority
    ) -> list[dict[int, float]]:
        answer = await self._ask(held, {"prompt": ids, "prompt_logprobs": top_k}, priority)
        return [
            {int(token_id): float(each["logprob"]) for token_id, each in (row or {}).items()}
            for row in answer["choices"][0]["prompt_logprobs"]
        ]

    async def _score_next(
        self, held: _Version, ids: list[int], candidates: list[int], priority: Priority
    ) -> dict[int, float]:
        named = {"logprobs": len(candidates), "logprob_token_ids": candidates}
        body = {"prompt": ids, **named, "return_tokens_as_token_ids": True}
        answer = await self._ask(held, body, priority)
        [row] = answer["choices"][0]["logprobs"]["top_logprobs"]
        return {id_of(name): value for name, value in row.items() if id_of(name) in candidates}

    async def load(self, weights: Weights) -> None:
        folder = weights.folder
        source = _identity(folder)
        async with self._loading:
            held = self._versions.get(weights.version)
            if held is not None and held.source == source:
                return
            if (folder / ADAPTER_FILE).exists():
                self._num_loads += 1
                name = f"openclaw-rl-{weights.version}-{os.getpid()}-{self._num_loads}"
                made = _Version(self._versions.base.server, name, folder, source)
                try:
                    await self._put(made)
                except httpx.TransportError as error:
                    raise EngineAway(f"vLLM does not answer ({type(error).__name__})") from None
            else:
                made = await self._load_full(weights.version, folder, source)
            self._versions.put(weights.version, made)
            if held is not None:
                await self._let_go(weights.version, held)

    async def _load_full(self, version: int, folder: Path, source: str) -> _Version:
        if not self.capabilities.full_weights:
            raise ValueError("a vLLM at a URL loads adapters only; use --finetune lora, or leave out url")
        server = await asyncio.to_thread(self._start, folder)
        return _Version(server, server.model, None, source, owns_server=True)

    async def _put(self, held: _Version) -> None:
        body = {"lora_name": held.name, "lora_path": str(held.folder)}
        answer = await held.server.client.post("/v1/load_lora_adapter", json=body, timeout=120)
        if answer.status_code > 500 or answer.status_code in (401, 403, 429):
            raise EngineAway(f"vLLM answered {answer.status_code} to a new version")
        if answer.status_code != 200 and "already been loaded" not in answer.text:
            where = " (it must be at the same path on the server)" if self._options.url else ""
            raise ValueError(f"vLLM cannot load {held.folder}{where}: {message(answer)}")

    async def unload(self, version: int) -> None:
        if (held := self._versions.remove(version)) is not None:
            await self._let_go(version, held)

    async def _let_go(self, version: int, held: _Version) -> None:
        """Once nobody is being answered with it."""
        while self._versions.is_used(version) and held.owns_server:
            await asyncio.sleep(_POLL_S)
        if held.owns_server:
            await held.server.close()
        elif held.folder is not None:
            try:
                await held.server.client.post(
                    "/v1/unload_lora_adapter", json={"lora_name": held.name}, timeout=30
                )
            except httpx.TransportError:
                return  # a server that is gone holds nothing

    async def close(self) -> None:
        for held in self._versions.all():
            if held.owns_server or held is self._versions.base:
                await held.server.close()

    async def _ask(self, held: _Version, body: Json, priority: Priority) -> Json:
        """One whole answer; what fails on the way is asked again, since asking changes nothing."""
        body = {**body, "model": held.name, "max_tokens": 1, "add_special_tokens": False}
        tries = self._tries()
        while True:
            try:
                answer = await held.server.client.post("/v1/completions", json={**body, "priority": priority})
                if answer.status_code == 200:
                    found: Json = answer.json()
                    return found
                raise refusal(answer)
            except PASSING as error:
                await self._wait_until_ready(held, error, tries)


def _identity(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no weights")
    return str([(str(file), (stat := file.stat()).st_mtime_ns, stat.st_size, stat.st_ino) for file in files])


def _address(url: str, transport: Any) -> dict[str, Any]:
    """A client's arguments: a URL, or a socket on this machine."""
    key = os.environ.get(API_KEY)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if url.startswith(_UNIX):
        return {"base_url": "http://vllm", "transport": transport(uds=url.removeprefix(_UNIX))}
    base = url.rstrip("/").removesuffix("/v1")
    return {"base_url": base, "headers": headers, "transport": transport(socket_options=_NOTICE_SILENCE)}


def _facts(client: httpx.Client, url: str) -> tuple[str, int]:
    """The model's name there and its context; ValueError if it is not a server that we can use."""
    try:
        listed, described = client.get("/v1/models"), client.get("/openapi.json")
    except httpx.HTTPError as error:
        raise ValueError(f"there is no vLLM at {url} ({error}); start it first") from None
    if listed.status_code == 401:
        raise ValueError(f"vLLM at {url} wants its key, and another than this one; set {API_KEY}")
    if listed.status_code != 200:
        raise ValueError(f"vLLM at {url} answered {listed.status_code} to /v1/models")
    if "/v1/load_lora_adapter" not in described.json().get("paths", {}):
        raise ValueError(
            f"vLLM at {url} loads no adapters while it runs; start it with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        )
    model = next(each for each in listed.json()["data"] if not each.get("parent"))
    check_raw(client, model["id"])
    return model["id"], int(model["max_model_len"])
