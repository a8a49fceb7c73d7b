"""The embedded engine: one thread owns the model, behind an asyncio interface.

Requests enter the thread through a queue and tokens come back in one call per step, so the
event loop never waits for a forward pass and the pass never waits for the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from openclaw_rl.engine import LOCAL
from openclaw_rl.engine.adapter_cache import AdapterCache
from openclaw_rl.engine.choose import choose_kernel, kernel_off_the_grid
from openclaw_rl.engine.first_layers import FirstLayers
from openclaw_rl.engine.graphs import sampler_on
from openclaw_rl.engine.job import Job
from openclaw_rl.engine.kernels import kernel_set
from openclaw_rl.engine.kv import CachePool, Reader
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.lora import Adapter
from openclaw_rl.engine.model import Decoder, Network
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.engine.scheduler import Scheduler
from openclaw_rl.engine.sharing import SharesGpu, cache_bytes
from openclaw_rl.engine.threads import ThreadTuner
from openclaw_rl.engine.warm_up import warm_up
from openclaw_rl.engine.weights import Checkpoint, read_checkpoint
from openclaw_rl.models import pick_device
from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    EngineStatus,
    GenerateRequest,
    Scope,
    ScoreRequest,
    Scores,
    Token,
    Weights,
)
from openclaw_rl.types.lora import ADAPTER_FILE

if TYPE_CHECKING:
    from openclaw_rl.engine.grammar import Grammars, GrammarState

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Seconds after a switch during which conversations may stay with the previous version.
_SWITCH_S = 60.0
#: Prompt tokens that can be recomputed without a noticeable delay.
_COLD_TOKENS = 96
#: A GPU's prompt chunks are this many times a CPU's, and still take less time.
_GPU_PIECES = 8
_CLOSED = "the engine was closed"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class LocalEngine(SharesGpu):
    """Engine protocol over our own decoder, on a CPU or one GPU."""

    capabilities = LOCAL

    def __init__(self, model: Path, options: LocalEngineOptions | None = None) -> None:
        self._options = options or LocalEngineOptions()
        self._checkpoint = checkpoint = read_checkpoint(model)
        self.context_length = checkpoint.shape.context_length
        self.device = torch.device(pick_device(self._options.device))
        self._dtype = _pick_dtype(self._options.dtype, self.device)
        self._adapter_cache = AdapterCache(self._options.max_adapters, self._read_adapter, self._let_go)
        self._decoders: dict[int, Network] = {}
        self._sources: dict[int, tuple[str, int]] = {}
        self._serving: dict[Scope, int] = {}
        self._before: dict[Scope, tuple[int, float]] = {}
        """Per scope, the previous version and when it was replaced, on the monotonic clock."""
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outbox: list[tuple[asyncio.AbstractEventLoop, asyncio.Queue[object], object]] = []
        self._closed = False
        built: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(built,), name="engine", daemon=True)
        self._thread.start()
        if (problem := built.get()) is not None:
            raise problem

    def _build(self) -> None:
        """Runs in the engine's thread, like every large product after it.

        OpenMP keeps a team of workers for each thread that ever used one. As soon as there are more
        workers than cores, they stop spinning between products and decoding takes twice as long. So
        one thread does all the arithmetic, loading included.
        """
        options, shape = self._options, self._checkpoint.shape
        if options.num_threads:
            torch.set_num_threads(options.num_threads)
        choice = choose_kernel(self._checkpoint, self.device, self._dtype, options.kernel)
        self.kernel = choice.name
        log.info("kernel %s; %s", choice.name, "; ".join(choice.reasons))
        self._decoder = self._new_decoder(self._checkpoint, choice.name)
        self._first_layers = FirstLayers(self._decoder)
        token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * self._dtype.itemsize
        pieces = _GPU_PIECES if self.device.type == "cuda" else 1
        room = cache_bytes(self.device, options.gpu_memory)
        budget = options.cache_tokens or max(self.context_length, room // token_bytes)
        self._token_bytes = token_bytes
        gpu_sampler = sampler_on(self.device)
        if self.device.type == "cuda":
            warm_up(self._decoder, gpu_sampler)
        self._scheduler = Scheduler(
            self._decoder,
            CachePool(self._decoder.new_cache, budget, max(2 * self.context_length, budget // 4)),
            max_running=options.max_running,
            chunk_tokens=options.chunk_tokens * pieces,
            idle_chunk_tokens=options.idle_chunk_tokens * pieces,
            max_step_s=options.max_step_s,
            tuner=ThreadTuner(
                torch.get_num_threads() if self.device.type == "cpu" else 1, torch.set_num_threads
            ),
            gpu_sampler=gpu_sampler,
            flush=self._flush_outbox,
        )

    def _new_decoder(self, checkpoint: Checkpoint, kernel: str) -> Network:
        if not checkpoint.is_fast:
            # Imported late: a model with a fast path does not need transformers' modules.
            from openclaw_rl.engine.general import GeneralDecoder

            return GeneralDecoder(checkpoint, self.device, self._dtype)
        graphs = self._options.graphs and self.device.type == "cuda"
        return Decoder(checkpoint, self.device, self._dtype, kernel_set(kernel), graphs)

    # --- Engine protocol ---------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        stated = request.policy_version
        version = self.pick_version(request.prompt_ids, request.scope) if stated is None else stated
        max_length = min(self.context_length, len(request.prompt_ids) + request.sampling.max_tokens)
        self._check(request.prompt_ids, version)
        if len(request.prompt_ids) >= max_length:
            raise ValueError(f"a prompt of {len(request.prompt_ids)} tokens leaves no room for a reply")
        results: asyncio.Queue[object] = asyncio.Queue()
        async with self._adapter_cache.using(version) as adapter:
            job = Job(
                ids=list(request.prompt_ids),
                version=version,
                adapter=adapter,
                decoder=self._decoders.get(version),
                priority=request.priority,
                max_length=max_length,
                emit=partial(self._emit, asyncio.get_running_loop(), results),
                reader=Reader(request.owner, request.num_public),
                request=request,
                sampler=Sampler(request.sampling),
                grammar=await self._start_grammar(request),
                top_k=request.top_logprobs,
            )
            self._start(job)
            try:
                while True:
                    token = _unwrap(await results.get(), Token)
                    yield token
                    if token.finish_reason:
                        return
            finally:
                job.cancelled = True

    async def score(self, request: ScoreRequest) -> Scores:
        token_ids, version, candidates = request.token_ids, request.policy_version, request.candidates
        self._check(token_ids, version)
        results: asyncio.Queue[object] = asyncio.Queue()
        network, caches = self._first_layers.pick(request) or (self._decoders.get(version), version)
        async with self._adapter_cache.using(version) as adapter:
            job = Job(
                ids=list(token_ids[:-1]),
                version=caches,
                adapter=adapter,
                decoder=network,
                priority=request.priority,
                max_length=len(token_ids),
                emit=partial(self._emit, asyncio.get_running_loop(), results),
                targets=list(token_ids[1:]),
                score_start=len(token_ids) - 1 if request.hidden_only else request.start - 1,
                top_k=request.top_k,
                hidden_layer=request.hidden_layer,
                candidates_NK=None if candidates is None else torch.tensor(candidates, dtype=torch.long),
            )
            self._start(job)
            try:
                return _unwrap(await results.get(), Scores)
            finally:
                job.cancelled = True

    def _start(self, job: Job) -> None:
        if self._closed:
            raise RuntimeError(_CLOSED)
        self._inbox.put(partial(self._scheduler.add, job))

    async def load(self, weights: Weights) -> None:
        """Load a version beside the others. The same files again do nothing; other files replace it."""
        version, path = weights.version, weights.folder
        source = _identity(path)
        if self._sources.get(version) == source:
            return
        decoder = None
        if not (path / ADAPTER_FILE).exists():
            decoder = await self._build_beside(read_checkpoint(path))
        was_loaded = self._is_loaded(version)
        if decoder is None:
            await self._adapter_cache.put(version, path)
            self._decoders.pop(version, None)
        else:
            self._adapter_cache.drop(version)
            self._decoders[version] = decoder
        self._sources[version] = source
        if was_loaded:
            self._inbox.put(partial(self._scheduler.pool.drop_version, version))

    def _is_loaded(self, version: int) -> bool:
        """Whether requests may use it; its adapter need not be in memory."""
        return version == BASE_VERSION or version in self._adapter_cache or version in self._decoders

    def _versions(self) -> list[int]:
        return sorted({BASE_VERSION, *self._adapter_cache.versions, *self._decoders})

    def _read_adapter(self, path: Path) -> Adapter:
        return self._decoder.read_adapter(path)

    def _let_go(self, adapter: Adapter) -> None:
        self._inbox.put(partial(self._decoder.forget, adapter))

    async def _build_beside(self, checkpoint: Checkpoint) -> Network:
        """Load a version with full weights while the others keep serving."""
        if checkpoint.shape != self._checkpoint.shape:
            raise ValueError(f"{checkpoint.path} is another model than the one being served")
        # Trained weights no longer lie on a 4-bit grid.
        name = kernel_off_the_grid(self.kernel)
        built: asyncio.Future[Network] = asyncio.get_running_loop().create_future()

        def build() -> None:
            try:
                decoder = self._new_decoder(checkpoint, name)
                built.get_loop().call_soon_threadsafe(built.set_result, decoder)
            except Exception as error:
                built.get_loop().call_soon_threadsafe(built.set_exception, error)

        # A thread of its own: its OpenMP workers end with it; see ``_build``.
        threading.Thread(target=build, name="loader", daemon=True).start()
        return await built

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        self._check((), version)
        before = self._serving.get(scope, BASE_VERSION)
        if version != before:
            self._before[scope], self._serving[scope] = (before, time.monotonic()), version
            weights = (self._adapter_cache.loaded(version), self._decoders.get(version))
            if any(weights) or version == BASE_VERSION:
                self._inbox.put(partial(self._scheduler.warm, before, version, *weights))

    def pick_version(
        self, prompt_ids: Sequence[int], scope: Scope = EVERYONE, owner: str | None = None
    ) -> int:
        """A conversation switches once the new version has cached its history, or after a minute, so that
        publishing weights makes nobody wait for a long prompt to be recomputed."""
        serving = self._serving.get(scope, BASE_VERSION)
        before, switched_at = self._before.get(scope, (serving, 0.0))
        if not self._is_loaded(before) or time.monotonic() - switched_at > _SWITCH_S:
            return serving
        pool, ids, reader = self._scheduler.pool, np.asarray(prompt_ids), Reader(owner)
        known = pool.best_prefix(ids, serving, reader)[1]
        return before if pool.best_prefix(ids, before, reader)[1] > known + _COLD_TOKENS else serving

    async def unload(self, version: int) -> None:
        if version in (BASE_VERSION, *self._serving.values()):
            raise ValueError(f"policy version {version} is in use and cannot be unloaded")
        self._adapter_cache.drop(version)
        self._decoders.pop(version, None)
        self._sources.pop(version, None)
        self._inbox.put(partial(self._scheduler.pool.drop_version, version))

    @cached_property
    def _grammars(self) -> Grammars:
        # Imported on first use: without grammars the library is not needed.
        from openclaw_rl.engine.grammar import Grammars

        checkpoint = self._checkpoint
        return Grammars(checkpoint.path, checkpoint.shape.vocab, checkpoint.eos_ids)

    def check_grammar(self, grammar: str) -> None:
        self._grammars.check(grammar)

    async def _start_grammar(self, request: GenerateRequest) -> GrammarState | None:
        if request.grammar is None:
            return None
        return await asyncio.to_thread(self._grammars.start, request.grammar, request.sampling.max_tokens)

    def status(self) -> EngineStatus:
        scheduler = self._scheduler
        return EngineStatus(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + self._inbox.qsize(),
            cached_tokens=scheduler.pool.cached_tokens,
            versions=tuple(self._versions()),
            serving=dict(self._serving),
        )

    async def close(self) -> None:
        self._closed = True
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _check(self, token_ids: Sequence[int], version: int) -> None:
        if not self._is_loaded(version):
            raise ValueError(f"policy version {version} is not loaded; loaded: {self._versions()}")
        if len(token_ids) > self.context_length:
            raise ValueError(f"{len(token_ids)} tokens exceed the context length of {self.context_length}")

    # --- the thread --------------------------------------------------------------------------

    def _run(self, built: SimpleQueue[BaseException | None]) -> None:
        try:
            self._build()
        except BaseException as problem:
            built.put(problem)
            return
        built.put(None)
        while not self._closed:
            self._take_inbox(block=not self._scheduler.has_work())
            try:
                self._scheduler.step()
            except Exception as error:  # one broken pass must not end serving
                log.exception("a forward pass failed")
                self._scheduler.fail(RuntimeError(f"the engine failed: {error}"))
            self._flush_outbox()
        self._take_inbox(block=False)
        self._scheduler.fail(RuntimeError(_CLOSED))
        for job in self._scheduler.waiting:
            job.emit(RuntimeError(_CLOSED))
        self._flush_outbox()

    def _take_inbox(self, block: bool) -> None:
        with suppress(Empty):
            while (command := self._inbox.get(block=block)) is not None:
                block = False
                try:
                    command()
                except Exception:  # without this thread, every request would wait for ever
                    log.exception("the engine could not do what it was told")

    def _emit(self, loop: asyncio.AbstractEventLoop, results: asyncio.Queue[object], item: object) -> None:
        self._outbox.append((loop, results, item))

    def _flush_outbox(self) -> None:
        """Wake each event loop once per step, however many streams got a token."""
        outbox, self._outbox = self._outbox, []
        for loop in {id(entry[0]): entry[0] for entry in outbox}.values():
            mine = [(results, item) for owner, results, item in outbox if owner is loop]
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_put_all, mine)


def _put_all(items: Sequence[tuple[asyncio.Queue[object], object]]) -> None:
    for results, item in items:
        results.put_nowait(item)


def _unwrap(item: object, kind: type[T]) -> T:
    if isinstance(item, Exception):
        raise item
    assert isinstance(item, kind)
    return item


def _pick_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ValueError(f"unknown dtype {name!r}; known: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _identity(path: Path) -> tuple[str, int]:
    files = [path / ADAPTER_FILE, *sorted(path.glob("model*.safetensors"))]
    if not (found := [file for file in files if file.exists()]):
        raise ValueError(f"{path} holds neither an adapter nor a checkpoint")
    return str(path), found[0].stat().st_mtime_ns
