"""vLLM, in a process that we start and keep alive, or at a URL.

Every version is an adapter with a unique name, so nothing cached for one version is used for another, and a
reply keeps the version it began with. A version with full weights has a server of its own. When the server
dies, requests wait until it is back; a reply that had begun continues where it stopped.

Not supported: grammars and hidden states.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
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
#: Long, because the first request triggers compilation.
_FIRST_ANSWER_S = 300.0


#: Detects a silently dropped connection after half a minute, even while waiting for a response.
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
    """The engine settings, plus those of vLLM only: ``[engine.vllm]``."""

    url: str = ""
    """A running server, such as http://10.0.0.5:8000 or unix:///run/vllm.sock, instead of starting one."""
    python: str = ""
    """The Python interpreter that has vLLM, if not this one."""
    flags: str = ""
    """More flags for the server that is started, such as --tensor-parallel-size 2."""
    max_lora_rank: int = 64
    """Largest rank of an adapter; 8, 16, 32, 64, 128, 256 or 512."""
    max_adapters: int = 8
    """Adapters in memory at once; others are read again when they are requested."""
    patience_s: float = 180.0
    """Seconds that requests wait for an unavailable server."""
    pause_s: float = 0.25
    """Seconds before a failed request is sent again; doubles each time."""


@dataclass(slots=True)
class _Server:
    """A server's HTTP client, and its process if we started it."""

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
    """A model name on a server; ``folder`` is set for an adapter, which has to be loaded there."""

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
        self._loading = asyncio.Lock()

    # --- servers -----------------------------------------------------------------------------

    def _start(self, model: Path) -> _Server:
        o = self._options
        flags = server_flags(o.max_lora_rank, o.max_adapters, o.max_running, o.flags)
        process = VllmServer(model, flags, o.python)
        return self._reach(f"{_UNIX}{process.socket}", process)

    def _reach(self, url: str, process: VllmServer | None = None) -> _Server:
        """Connect to a server and check it; one that we started is stopped if it is unusable."""
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
        """Wait until the request may be sent again; EngineAway if that takes too long."""
        await asyncio.sleep(tries.failed(error))
        await self._until_back(held.server, tries.deadline)
        if isinstance(error, Unloaded):
            if held.folder is None:
                raise EngineAway(f"vLLM no longer has the model {held.name}") from error
            with suppress(httpx.TransportError):  # the next try reports it
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
                # Random, because a server at a URL may still hold the adapters of an earlier process.
                name = f"openclaw-rl-{weights.version}-{secrets.token_hex(8)}"
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
        if answer.status_code > 500 or answer.status_code in (401, 402, 403, 429):
            raise EngineAway(f"vLLM answered {answer.status_code} to a new version")
        if answer.status_code != 200 and "already been loaded" not in answer.text:
            where = " (it must be at the same path on the server)" if self._options.url else ""
            raise ValueError(f"vLLM cannot load {held.folder}{where}: {message(answer)}")

    async def unload(self, version: int) -> None:
        if (held := self._versions.remove(version)) is not None:
            await self._let_go(version, held)

    async def _let_go(self, version: int, held: _Version) -> None:
        """Unload a version; a server of its own is stopped only after its last reply."""
        while self._versions.is_used(version) and held.owns_server:
            await asyncio.sleep(_POLL_S)
        if held.owns_server:
            await held.server.close()
        else:
            await self._unload_adapter(held)

    async def _unload_adapter(self, held: _Version) -> None:
        if held.folder is not None:
            with suppress(httpx.TransportError):  # a dead server holds nothing
                body = {"lora_name": held.name}
                await held.server.client.post("/v1/unload_lora_adapter", json=body, timeout=30)

    async def close(self) -> None:
        """A server at a URL lives on, and need not keep our adapters."""
        if self._versions.base.server.process is None:
            await asyncio.gather(*map(self._unload_adapter, self._versions.all()))
        for held in self._versions.all():
            if held.owns_server or held is self._versions.base:
                await held.server.close()

    async def _ask(self, held: _Version, body: Json, priority: Priority) -> Json:
        """One complete response. Failed requests are retried, since they change nothing on the server."""
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
    """Arguments of an HTTP client for a URL or a Unix socket."""
    key = os.environ.get(API_KEY)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if url.startswith(_UNIX):
        return {"base_url": "http://vllm", "transport": transport(uds=url.removeprefix(_UNIX))}
    base = url.rstrip("/").removesuffix("/v1")
    return {"base_url": base, "headers": headers, "transport": transport(socket_options=_NOTICE_SILENCE)}


def _facts(client: httpx.Client, url: str) -> tuple[str, int]:
    """The server's model name and context length; ValueError if we cannot use the server."""
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
