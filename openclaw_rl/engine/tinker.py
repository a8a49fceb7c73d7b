"""Sampling through the Tinker protocol: the cloud, or your own server such as SkyRL.

The service does not stream: a reply arrives complete and is yielded token by token. It returns raw log-probs
of the sampled tokens. If it also scores the likeliest tokens, which is probed at start-up, a second call
fetches those, and replies at other temperatures than 1 are sampled from them only: then the log-prob in the
distribution sampled from is exact.

Not supported: grammars, hidden states, penalties, biases and min-p.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from openclaw_rl.engine.loaded import LoadedVersions
from openclaw_rl.engine.remote_server import MAX_TOP, RemoteServerEngine
from openclaw_rl.engine.sampled_from import SampledFrom, bounded
from openclaw_rl.errors import EngineAway, RequestError
from openclaw_rl.settings import EngineConfig
from openclaw_rl.tinker_service import TinkerService
from openclaw_rl.types import (
    Capabilities,
    GenerateRequest,
    Priority,
    SamplingParams,
    Token,
    Weights,
)

log = logging.getLogger(__name__)
_PROBE = [1, 2, 3]
#: In SkyRL's error for a version that was loaded before the server restarted.
_FORGOTTEN = "not loaded"
T = TypeVar("T")


@dataclass(frozen=True)
class ServiceOptions(EngineConfig):
    """The engine settings, plus where the service is."""

    url: str = ""
    """Your own server, such as http://10.0.0.5:8000; by default the cloud, with TINKER_API_KEY."""
    base_model: str = ""
    """The model's name on the server, if it differs from --model."""
    patience_s: float = 300.0
    """Seconds that a request waits for the service."""


@dataclass(frozen=True)
class TinkerEngineOptions(ServiceOptions):
    """The engine settings, plus those of Tinker only: ``[engine.tinker]``."""

    assume_temperature_1: bool = False
    """Where the server does not tell the likeliest tokens: learn as if replies were sampled at 1."""


@dataclass(slots=True)
class Sampler:
    """A version's sampling client, and the session that holds a copy of its weights, if there is one."""

    client: Any
    uri: str = ""
    """Set after a test request succeeded."""
    service: Any = None
    model: Any = None


class Sampled(NamedTuple):
    """A reply's token as the server reports it."""

    id: int
    raw: float
    """Its log-prob, untruncated and at temperature 1."""
    drawn: float
    """Its log-prob in the distribution sampled from."""
    top: dict[int, float]
    """Log-probs of the likeliest tokens there; empty if the server has none."""


class TinkerEngine(RemoteServerEngine[Sampler]):
    """Engine protocol over the Tinker client."""

    title = "Tinker"
    kind: ClassVar = TinkerService()
    capabilities = Capabilities(loads=("tinker",), reads_model=False)

    def __init__(self, model: Path, options: ServiceOptions) -> None:
        self._options = options
        config = json.loads((model / "config.json").read_text())
        config = config.get("text_config", config)
        self.context_length, self._vocab = int(config["max_position_embeddings"]), int(config["vocab_size"])
        self._service, name = self.kind.connect(options), options.base_model or options.model
        offered = self.kind.offered_models(self._service, options)
        if offered and name not in offered:
            raise ValueError(
                f"the {self.title} server has no model {name}; it has: {', '.join(offered)}. "
                "Name one with --model, or with --engine-options base_model=…"
            )
        try:
            base = self._service.create_sampling_client(base_model=name)
            self.capabilities = self._able(base)
        except Exception as error:
            raise ValueError(
                f"the {self.title} server cannot sample from {name}: {self.kind.raised(error)}"
            ) from None
        self._versions: LoadedVersions[Sampler] = LoadedVersions(Sampler(base))
        self._making = asyncio.Lock()

    def _able(self, base: Any) -> Capabilities:
        """What this server can do, found out with a test request."""
        has_top = self._scores_likeliest(base)
        assumes = isinstance(self._options, TinkerEngineOptions) and self._options.assume_temperature_1
        if not has_top and assumes:
            log.warning(
                "the Tinker server does not tell the likeliest tokens: replies are learned from as if "
                "sampled at temperature 1, without top-k and top-p"
            )
        return replace(
            self.capabilities,
            scores_candidates=has_top,
            top_logprobs=has_top,
            sampled_logprobs=has_top or assumes,
        )

    def _scores_likeliest(self, client: Any) -> bool:
        """Some servers refuse it."""
        params = self.kind.sdk.SamplingParams(max_tokens=1)
        try:
            answer = client.sample(self._prompt(_PROBE), 1, params, True, topk_prompt_logprobs=1).result(
                self._options.patience_s
            )
        except Exception as error:
            if isinstance(self.kind.raised(error), ValueError | RuntimeError):
                return False
            raise
        return answer.topk_prompt_logprobs is not None

    @property
    def _has_top(self) -> bool:
        return self.capabilities.top_logprobs

    # --- Engine protocol ---------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        version, room = self._accept(request)
        _check(request.sampling)
        with self._versions.using(version) as held:
            reply = await self._reply(held, request, room)
        for number, token in enumerate(reply, start=1):
            best = sorted(token.top, key=token.top.__getitem__, reverse=True)[: request.top_logprobs]
            yield Token(
                token.id,
                token.raw,
                token.drawn,
                tuple(best),
                tuple(token.top[each] for each in best),
                version,
                finish_reason=_why_ended(token.id, request) if number == len(reply) else None,
            )

    async def _reply(self, held: Sampler, request: GenerateRequest, room: int) -> list[Sampled]:
        """A complete reply of at most ``room`` tokens; its stop token is the last, if it has one."""
        sampling = bounded(request.sampling, MAX_TOP) if self._has_top else request.sampling
        params = self._params(sampling, room, request.stop_ids)
        [reply] = (await self._sample(held, request.prompt_ids, params)).sequences
        ids, drawn = until_stop(reply.tokens, request.stop_ids), SampledFrom(sampling, self._vocab)
        told = await self._told(held, request.prompt_ids, ids, max(request.top_logprobs, drawn.num_needed))
        raw_of = map(float, reply.logprobs[: len(ids)])
        rows = zip(ids, raw_of, told or [{}] * len(ids), strict=True)
        return [
            Sampled(each, raw, drawn.logprob(each, raw, top) if top or not drawn.num_needed else raw, top)
            for each, raw, top in rows
        ]

    def _params(self, sampling: SamplingParams, room: int, stop_ids: frozenset[int]) -> Any:
        return self.kind.sdk.SamplingParams(
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            seed=None if sampling.seed is None else sampling.seed & (2**31 - 1),
            stop=sorted(stop_ids) or None,
        )

    async def _told(
        self, held: Sampler, prompt: list[int], ids: list[int], number: int
    ) -> list[dict[int, float]]:
        """Log-probs of the likeliest tokens at each reply position; empty if the server has none."""
        if not self._has_top or not number or not ids:
            return []
        return (await self._prompt_logprobs(held, [*prompt, *ids], number))[len(prompt) :]

    async def _prompt_logprobs(self, held: Sampler, ids: list[int], top_k: int) -> list[dict[int, float]]:
        """Row i: log-probs of token i and, if requested, of the likeliest there. The first row is empty."""
        number = min(MAX_TOP, top_k) if self._has_top else 0
        params = self.kind.sdk.SamplingParams(max_tokens=1)
        more = {"include_prompt_logprobs": True, "topk_prompt_logprobs": number}
        answer = await self._sample(held, ids, params, **more)
        own = list(answer.prompt_logprobs)
        # Some servers start with the first token, which has no log-prob; others with the second.
        own = own if len(own) == len(ids) else [None, *own]
        if len(own) != len(ids):
            raise EngineAway(f"the {self.title} server scored {len(own) - 1} of {len(ids) - 1} tokens")
        tops = answer.topk_prompt_logprobs if number else None
        if number and tops is None:
            raise EngineAway(
                f"the {self.title} server left out the likeliest tokens, which it told at the start"
            )
        tops = [None] * len(ids) if tops is None else ([None, *tops] if len(tops) < len(ids) else tops)
        return [
            {} if value is None else {**dict(tops[i] or ()), ids[i]: float(value)}
            for i, value in enumerate(own)
        ]

    async def _rows(
        self, held: Sampler, ids: list[int], top_k: int, priority: Priority
    ) -> list[dict[int, float]]:
        return await self._prompt_logprobs(held, ids, top_k)

    async def _score_next(
        self, held: Sampler, ids: list[int], candidates: list[int], priority: Priority
    ) -> dict[int, float]:
        """One call per candidate, as the token after ``ids``."""
        texts = [self._prompt_logprobs(held, [*ids, each], 0) for each in candidates]
        rows = await asyncio.gather(*texts)
        return {each: row[-1][each] for each, row in zip(candidates, rows, strict=True)}

    async def load(self, weights: Weights) -> None:
        self.kind.sampler_of(weights.uri)
        async with self._making:
            held = self._versions.get(weights.version)
            if held is not None and held.uri == weights.uri:
                return
            made = await self._in_time(asyncio.to_thread(self._sampler, weights.uri))
            # The server reads the weights at the first request, which shows whether they exist.
            await self._prompt_logprobs(made, _PROBE, 0)
            made.uri = weights.uri
            self._versions.put(weights.version, made)
        await self._let_go(held)

    def _sampler(self, uri: str) -> Sampler:
        """SkyRL's JAX backend, known by its lack of likeliest tokens, samples with the weights in training,
        and overwrites them with those of each requested version. There, each version gets its own copy."""
        if self._has_top:
            return Sampler(self._service.create_sampling_client(model_path=self.kind.sampler_of(uri)))
        service = self.kind.connect(self._options)
        model = service.create_training_client_from_state(self.kind.facts_of(uri)["state"])
        path = model.save_weights_for_sampler(f"openclaw-rl-{uuid.uuid4().hex}").result().path
        return Sampler(service.create_sampling_client(model_path=path), "", service, model)

    async def unload(self, version: int) -> None:
        await self._let_go(self._versions.remove(version))

    async def _let_go(self, held: Sampler | None) -> None:
        if held is not None and held.service is not None:
            await asyncio.to_thread(self.kind.let_go, self._options, held.service, held.model)

    async def close(self) -> None:
        for held in self._versions.all():
            await self._let_go(held)
        await asyncio.to_thread(self._service.holder.close)

    async def _sample(self, held: Sampler, ids: list[int], params: Any, **more: Any) -> Any:
        """The client retries by itself; EngineAway when it gives up or takes too long."""
        for is_last in (False, True):
            client = held.client
            try:
                future = client.sample(self._prompt(ids), 1, params, **more)
                return await self._in_time(asyncio.wrap_future(future))
            except (ValueError, EngineAway) as error:
                if is_last or not held.uri or _FORGOTTEN not in str(error):
                    raise
                await self._make_again(held, client)
        raise AssertionError("one of the two was the last")

    def _prompt(self, ids: Sequence[int]) -> Any:
        return self.kind.sdk.ModelInput.from_ints(list(ids))

    async def _make_again(self, held: Sampler, failed: Any) -> None:
        """After a restart the server has the checkpoints, but not the samplers made from them."""
        async with self._making:
            if held.client is failed:
                made = await self._in_time(asyncio.to_thread(self._sampler, held.uri))
                held.client, held.service, held.model = made.client, made.service, made.model

    async def _in_time(self, work: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(work, self._options.patience_s)
        except TimeoutError:
            raise EngineAway(f"the {self.title} service does not answer") from None
        except EngineAway:
            raise
        except Exception as error:
            made = self.kind.raised(error)
            raise (EngineAway(str(made)) if isinstance(made, RuntimeError) else made) from None


def _why_ended(token_id: int, request: GenerateRequest) -> Literal["stop", "length"]:
    return "stop" if token_id in request.stop_ids else "length"


def until_stop(ids: Sequence[int], stop_ids: frozenset[int]) -> list[int]:
    """Cut after the first stop token: some servers do not know all of them."""
    ends = (number for number, token_id in enumerate(ids, start=1) if token_id in stop_ids)
    return list(ids[: next(ends, len(ids))])


def _check(sampling: SamplingParams) -> None:
    neutral = SamplingParams(1)
    for name in ("min_p", "presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(sampling, name) != getattr(neutral, name):
            raise RequestError(f"This engine cannot do {name}; leave it out.", param=name)
