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
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.engine.loaded import LoadedVersions
from openclaw_rl.engine.sampled_from import SampledFrom
from openclaw_rl.engine.vllm_server import VllmServer, server_flags
from openclaw_rl.engine.vllm_wire import (
    Unloaded,
    check_raw,
    completion_body,
    id_of,
    message,
    read_tokens,
    refusal,
)
from openclaw_rl.errors import EngineAway
from openclaw_rl.settings import EngineConfig
from openclaw_rl.types import (
    EVERYONE,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    Json,
    Scope,
    ScoreRequest,
    Scores,
    Token,
    Weights,
)
from openclaw_rl.types.lora import ADAPTER_FILE

_API_KEY = "OPENCLAW_RL_VLLM_API_KEY"
_UNIX = "unix://"
_POLL_S = 0.5
#: The first request makes it compile what it needs.
_FIRST_ANSWER_S = 300.0
#: Tokens that a server scores beside those of the text itself, at most.
_MAX_TOP = 20


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


class VllmEngine:
    """Engine protocol over vLLM's HTTP API."""

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
        client_here = httpx.AsyncClient(**_address(url, httpx.AsyncHTTPTransport), timeout=None)
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
        version = self._versions.resolve(request.policy_version, request.scope)
        if request.grammar is not None:
            raise ValueError("the vLLM engine follows no grammar; leave the reply free")
        room = min(request.sampling.max_tokens, self.context_length - len(request.prompt_ids))
        if room < 1:
            raise ValueError(f"a prompt of {len(request.prompt_ids)} tokens leaves no room for a reply")
        drawn = SampledFrom(request.sampling, self._vocab)
        told: list[int] = []
        with self._versions.using(version) as held:
            deadline = time.monotonic() + self._options.patience_s
            while True:
                try:
                    body = completion_body(request, held.name, drawn, told, room)
                    async with aclosing(self._stream(held, body)) as chunks:  # type: ignore[type-var]
                        async for chunk in chunks:
                            for token in read_tokens(chunk, request, version, drawn):
                                told.append(token.id)
                                yield token
                                if token.finish_reason:
                                    return
                                deadline = time.monotonic() + self._options.patience_s
                    raise EngineAway("vLLM ended a reply without saying why")
                except (httpx.TransportError, Unloaded) as error:
                    # Counts of tokens that penalties go by are the server's, and start anew.
                    if told and (request.sampling.presence_penalty or request.sampling.frequency_penalty):
                        raise EngineAway("vLLM went away in the middle of a reply") from error
                    await self._until_back(held.server, deadline)
                    if isinstance(error, Unloaded):
                        await self._put(held)

    async def _stream(self, held: _Version, body: Json) -> AsyncIterator[Json]:
        async with held.server.client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise refusal(answer)
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    chunk: Json = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise EngineAway(f"vLLM failed while answering ({chunk['error'].get('type')})")
                    yield chunk

    async def score(self, request: ScoreRequest) -> Scores:
        if request.hidden_layer is not None:
            raise ValueError("the vLLM engine gives no hidden states")
        version, ids = self._versions.resolve(request.policy_version), list(request.token_ids)
        wanted = request.candidates or []
        top_k = min(_MAX_TOP, max([request.top_k, *map(len, wanted)]))
        if request.top_k > _MAX_TOP:
            raise ValueError(f"the vLLM engine scores the {_MAX_TOP} likeliest tokens at most")
        body = {"prompt": ids, "max_tokens": 1, "prompt_logprobs": top_k, "add_special_tokens": False}
        with self._versions.using(version) as held:
            answer = await self._ask(held, {**body, "priority": int(request.priority)})
            told = [
                {int(token_id): float(each["logprob"]) for token_id, each in row.items()}
                for row in answer["choices"][0]["prompt_logprobs"][request.start :]
            ]
            await self._fill(held, ids, request, told)
        own = [row[token_id] for row, token_id in zip(told, ids[request.start :], strict=True)]
        best = [sorted(row, key=row.__getitem__, reverse=True)[: request.top_k] for row in told]
        return Scores(
            own,
            best,
            [[row[token_id] for token_id in ids_K] for row, ids_K in zip(told, best, strict=True)],
            None,
            None
            if not wanted
            else [[r[each] for each in want] for r, want in zip(told, wanted, strict=True)],
        )

    async def _fill(
        self, held: _Version, ids: list[int], request: ScoreRequest, told: list[dict[int, float]]
    ) -> None:
        """Candidates that are not among the likeliest are asked for by name, position by position."""

        async def ask(position: int, missing: list[int]) -> None:
            body = {
                "prompt": ids[: request.start + position],
                "max_tokens": 1,
                "logprobs": len(missing),
                "logprob_token_ids": missing,
                "return_tokens_as_token_ids": True,
                "add_special_tokens": False,
                "priority": int(request.priority),
            }
            answer = await self._ask(held, body)
            [row] = answer["choices"][0]["logprobs"]["top_logprobs"]
            told[position] |= {id_of(name): value for name, value in row.items() if id_of(name) in missing}

        lacking = [
            (position, [each for each in dict.fromkeys(want) if each not in row])
            for position, (row, want) in enumerate(zip(told, request.candidates or [], strict=False))
        ]
        await asyncio.gather(*(ask(position, missing) for position, missing in lacking if missing))

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
                await self._put(made)
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
        try:
            answer = await held.server.client.post("/v1/load_lora_adapter", json=body, timeout=120)
        except httpx.TransportError as error:
            raise EngineAway(f"vLLM does not answer ({type(error).__name__})") from None
        if answer.status_code != 200 and "already been loaded" not in answer.text:
            where = " (it must be at the same path on the server)" if self._options.url else ""
            raise ValueError(f"vLLM cannot load {held.folder}{where}: {message(answer)}")

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        self._versions.serve(version, scope)

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

    def status(self) -> EngineStatus:
        return self._versions.status()

    async def close(self) -> None:
        for held in self._versions.all():
            if held.owns_server or held is self._versions.base:
                await held.server.close()

    async def _ask(self, held: _Version, body: Json) -> Json:
        """One whole answer; what fails on the way is asked again, since asking changes nothing."""
        deadline = time.monotonic() + self._options.patience_s
        while True:
            try:
                answer = await held.server.client.post("/v1/completions", json={**body, "model": held.name})
                if answer.status_code == 200:
                    found: Json = answer.json()
                    return found
                raise refusal(answer)
            except httpx.TransportError:
                await self._until_back(held.server, deadline)
            except Unloaded:
                await self._put(held)


def _identity(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no weights")
    return str([(str(file), (stat := file.stat()).st_mtime_ns, stat.st_size, stat.st_ino) for file in files])


def _address(url: str, transport: Any) -> dict[str, Any]:
    """A client's arguments: a URL, or a socket on this machine."""
    key = os.environ.get(_API_KEY)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if url.startswith(_UNIX):
        return {"base_url": "http://vllm", "transport": transport(uds=url.removeprefix(_UNIX))}
    return {"base_url": url.rstrip("/").removesuffix("/v1"), "headers": headers}


def _facts(client: httpx.Client, url: str) -> tuple[str, int]:
    """The model's name there and its context; ValueError if it is not a server that we can use."""
    try:
        listed, described = client.get("/v1/models"), client.get("/openapi.json")
    except httpx.HTTPError as error:
        raise ValueError(f"there is no vLLM at {url} ({error}); start it first") from None
    if listed.status_code == 401:
        raise ValueError(f"vLLM at {url} wants its key, and another than this one; set {_API_KEY}")
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
