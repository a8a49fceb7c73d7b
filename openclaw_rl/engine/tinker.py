"""Sampling through the Tinker protocol: the cloud, or your own server such as SkyRL.

The service does not stream: a reply arrives complete and is yielded token by token. It returns raw log-probs
of the sampled tokens. If it also scores the likeliest tokens, which is probed at start-up, a second call
fetches those.

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
from typing import Any, TypeVar

from openclaw_rl.engine.loaded import LoadedVersions
from openclaw_rl.engine.remote_server import MAX_TOP, RemoteServerEngine
from openclaw_rl.engine.sampled_from import SampledFrom
from openclaw_rl.errors import EngineAway, RequestError
from openclaw_rl.settings import EngineConfig
from openclaw_rl.tinker_service import connect, facts_of, let_go, offered_models, raised, sampler_of
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
class TinkerEngineOptions(EngineConfig):
    """The engine settings, plus those of Tinker only: ``[engine.tinker]``."""

    url: str = ""
    """Your own server, such as http://10.0.0.5:8000; by default the cloud, with TINKER_API_KEY."""
    base_model: str = ""
    """The model's name on the server, if it differs from --model."""
    patience_s: float = 300.0
    """Seconds that a request waits for the service."""
    assume_temperature_1: bool = False
    """Where the server does not tell the likeliest tokens: learn as if replies were sampled at 1."""


@dataclass(slots=True)
class _Sampler:
    """A version's sampling client, and the session that holds a copy of its weights, if there is one."""

    client: Any
    uri: str = ""
    """Set after a test request succeeded."""
    service: Any = None
    model: Any = None


class TinkerEngine(RemoteServerEngine[_Sampler]):
    """Engine protocol over the Tinker client."""

    title = "Tinker"
    capabilities = Capabilities(loads=("tinker",), reads_model=False)

    def __init__(self, model: Path, options: TinkerEngineOptions) -> None:
        self._options = options
        config = json.loads((model / "config.json").read_text())
        config = config.get("text_config", config)
        self.context_length, self._vocab = int(config["max_position_embeddings"]), int(config["vocab_size"])
        self._service, name = connect(options), options.base_model or options.model
        offered = offered_models(self._service, options)
        if offered and name not in offered:
            raise ValueError(
                f"the Tinker server has no model {name}; it has: {', '.join(offered)}. "
                "Name one with --model, or with --engine-options base_model=…"
            )
        try:
            base = self._service.create_sampling_client(base_model=name)
            self._has_top = self._scores_likeliest(base)
        except Exception as error:
            raise ValueError(f"the Tinker server cannot sample from {name}: {raised(error)}") from None
        self.capabilities = replace(
            self.capabilities,
            scores_candidates=self._has_top,
            top_logprobs=self._has_top,
            sampled_logprobs=self._has_top or options.assume_temperature_1,
        )
        if not self._has_top and options.assume_temperature_1:
            log.warning(
                "the Tinker server does not tell the likeliest tokens: replies are learned from as if "
                "sampled at temperature 1, without top-k and top-p"
            )
        self._versions: LoadedVersions[_Sampler] = LoadedVersions(_Sampler(base))
        self._making = asyncio.Lock()

    def _scores_likeliest(self, client: Any) -> bool:
        """Found out with a test request: some servers refuse it."""
        import tinker

        try:
            answer = client.sample(
                _prompt(_PROBE), 1, tinker.SamplingParams(max_tokens=1), True, topk_prompt_logprobs=1
            ).result(self._options.patience_s)
        except Exception as error:
            if isinstance(raised(error), ValueError | RuntimeError):
                return False
            raise
        return answer.topk_prompt_logprobs is not None

    # --- Engine protocol ---------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        version, room = self._accept(request)
        sampling, prompt = request.sampling, request.prompt_ids
        _check(sampling)
        import tinker

        params = tinker.SamplingParams(
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            seed=None if sampling.seed is None else sampling.seed & (2**31 - 1),
            stop=sorted(request.stop_ids) or None,
        )
        with self._versions.using(version) as held:
            answer = await self._sample(held, prompt, params)
            [reply] = answer.sequences
            ids = _until_stop(reply.tokens, request.stop_ids)
            drawn = SampledFrom(sampling, self._vocab)
            told = await self._told(held, prompt, ids, max(request.top_logprobs, drawn.num_needed))
        for index, token_id in enumerate(ids):
            raw, last = float(reply.logprobs[index]), index == len(ids) - 1
            top = told[index] if told else {}
            best = sorted(top, key=top.__getitem__, reverse=True)[: request.top_logprobs]
            yield Token(
                token_id,
                raw,
                drawn.logprob(token_id, raw, top) if top or not drawn.num_needed else raw,
                tuple(best),
                tuple(top[each] for each in best),
                version,
                finish_reason=("stop" if token_id in request.stop_ids else "length") if last else None,
            )

    async def _told(
        self, held: _Sampler, prompt: list[int], ids: list[int], number: int
    ) -> list[dict[int, float]]:
        """Log-probs of the likeliest tokens at each reply position; empty if the server has none."""
        if not self._has_top or not number or not ids:
            return []
        return (await self._prompt_logprobs(held, [*prompt, *ids], number))[len(prompt) :]

    async def _prompt_logprobs(self, held: _Sampler, ids: list[int], top_k: int) -> list[dict[int, float]]:
        """Row i: log-probs of token i and, if requested, of the likeliest there. The first row is empty."""
        import tinker

        number = min(MAX_TOP, top_k) if self._has_top else 0
        params = tinker.SamplingParams(max_tokens=1)
        more = {"include_prompt_logprobs": True, "topk_prompt_logprobs": number}
        answer = await self._sample(held, ids, params, **more)
        own = list(answer.prompt_logprobs)
        # Some servers start with the first token, which has no log-prob; others with the second.
        own = own if len(own) == len(ids) else [None, *own]
        if len(own) != len(ids):
            raise EngineAway(f"the Tinker server scored {len(own) - 1} of {len(ids) - 1} tokens")
        tops = answer.topk_prompt_logprobs if number else None
        if number and tops is None:
            raise EngineAway("the Tinker server left out the likeliest tokens, which it told at the start")
        tops = [None] * len(ids) if tops is None else ([None, *tops] if len(tops) < len(ids) else tops)
        return [
            {} if value is None else {**dict(tops[i] or ()), ids[i]: float(value)}
            for i, value in enumerate(own)
        ]

    async def _rows(
        self, held: _Sampler, ids: list[int], top_k: int, priority: Priority
    ) -> list[dict[int, float]]:
        return await self._prompt_logprobs(held, ids, top_k)

    async def _score_next(
        self, held: _Sampler, ids: list[int], candidates: list[int], priority: Priority
    ) -> dict[int, float]:
        """One call per candidate, as the token after ``ids``."""
        texts = [self._prompt_logprobs(held, [*ids, each], 0) for each in candidates]
        rows = await asyncio.gather(*texts)
        return {each: row[-1][each] for each, row in zip(candidates, rows, strict=True)}

    async def load(self, weights: Weights) -> None:
        sampler_of(weights.uri)
        async with self._making:
            held = self._versions.get(weights.version)
            if held is not None and held.uri == weights.uri:
                return
            made = await self._in_time(asyncio.to_thread(self._sampler, weights.uri, not self._has_top))
            # The server reads the weights at the first request, which shows whether they exist.
            await self._prompt_logprobs(made, _PROBE, 0)
            made.uri = weights.uri
            self._versions.put(weights.version, made)
        await self._let_go(held)

    def _sampler(self, uri: str, copy: bool) -> _Sampler:
        """SkyRL's JAX backend samples with the weights in training, which it overwrites with those of each
        requested version. There, each version gets a copy of its own that is never trained."""
        if not copy:
            return _Sampler(self._service.create_sampling_client(model_path=sampler_of(uri)))
        service = connect(self._options)
        model = service.create_training_client_from_state(facts_of(uri)["state"])
        path = model.save_weights_for_sampler(f"openclaw-rl-{uuid.uuid4().hex}").result().path
        return _Sampler(service.create_sampling_client(model_path=path), "", service, model)

    async def unload(self, version: int) -> None:
        await self._let_go(self._versions.remove(version))

    async def _let_go(self, held: _Sampler | None) -> None:
        if held is not None and held.service is not None:
            await asyncio.to_thread(let_go, self._options, held.service, held.model)

    async def close(self) -> None:
        for held in self._versions.all():
            await self._let_go(held)
        await asyncio.to_thread(self._service.holder.close)

    async def _sample(self, held: _Sampler, ids: list[int], params: Any, **more: Any) -> Any:
        """The client retries by itself; EngineAway when it gives up or takes too long."""
        for is_last in (False, True):
            client = held.client
            try:
                future = client.sample(_prompt(ids), 1, params, **more)
                return await self._in_time(asyncio.wrap_future(future))
            except (ValueError, EngineAway) as error:
                if is_last or not held.uri or _FORGOTTEN not in str(error):
                    raise
                await self._make_again(held, client)
        raise AssertionError("one of the two was the last")

    async def _make_again(self, held: _Sampler, failed: Any) -> None:
        """After a restart the server has the checkpoints, but not the samplers made from them."""
        async with self._making:
            if held.client is failed:
                made = await self._in_time(asyncio.to_thread(self._sampler, held.uri, True))
                held.client, held.service, held.model = made.client, made.service, made.model

    async def _in_time(self, work: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(work, self._options.patience_s)
        except TimeoutError:
            raise EngineAway("the Tinker service does not answer") from None
        except Exception as error:
            raise _said(error) from None


def _until_stop(ids: Sequence[int], stop_ids: frozenset[int]) -> list[int]:
    """Cut after the first stop token: some servers do not know all of them."""
    end = next((index for index, token_id in enumerate(ids) if token_id in stop_ids), len(ids) - 1)
    return list(ids[: end + 1])


def _said(error: Exception) -> Exception:
    made = raised(error)
    return EngineAway(str(made)) if isinstance(made, RuntimeError) else made


def _prompt(ids: list[int]) -> Any:
    import tinker

    return tinker.ModelInput.from_ints(list(ids))


def _check(sampling: SamplingParams) -> None:
    neutral = SamplingParams(1)
    for name in ("min_p", "presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(sampling, name) != getattr(neutral, name):
            raise RequestError(f"This engine cannot do {name}; leave it out.", param=name)
