"""Sampling through the Tinker protocol: the cloud, or a server of one's own such as SkyRL.

The service does not stream: a reply arrives whole, and is passed on token by token. It gives raw log-probs
of the sampled tokens; where it also scores the likeliest tokens, those are asked for with a second call.
Whether it can is found out at the start.

What it does not do: grammars, hidden states, penalties, biases and min-p.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_rl.engine.loaded import LoadedVersions
from openclaw_rl.engine.sampled_from import SampledFrom
from openclaw_rl.errors import EngineAway, RequestError
from openclaw_rl.settings import EngineConfig
from openclaw_rl.tinker_service import connect, offered_models, raised, sampler_of
from openclaw_rl.types import (
    EVERYONE,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    SamplingParams,
    Scope,
    ScoreRequest,
    Scores,
    Token,
    Weights,
)

#: Likeliest tokens that the protocol scores at most.
_MAX_TOP = 20
_PROBE = [1, 2, 3]


@dataclass(frozen=True)
class TinkerEngineOptions(EngineConfig):
    """The engine's section of the settings, and what only Tinker has: ``[engine.tinker]``."""

    url: str = ""
    """A server of your own, such as http://10.0.0.5:8000; by default the cloud, by TINKER_API_KEY."""
    base_model: str = ""
    """What the server calls the model, where that is not --model."""
    patience_s: float = 300.0
    """How long a request waits for the service."""


class TinkerEngine:
    """Engine protocol over the Tinker client."""

    capabilities = Capabilities(streams=False)

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
            self.capabilities, scores_candidates=self._has_top, top_logprobs=self._has_top
        )
        self._versions: LoadedVersions[Any] = LoadedVersions((base, ""))

    def _scores_likeliest(self, client: Any) -> bool:
        """Some servers do not; they say so when they are asked."""
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
        version = self._versions.resolve(request.policy_version, request.scope)
        _check(request)
        sampling, prompt = request.sampling, request.prompt_ids
        room = min(sampling.max_tokens, self.context_length - len(prompt))
        if room < 1:
            raise ValueError(f"a prompt of {len(prompt)} tokens leaves no room for a reply")
        import tinker

        params = tinker.SamplingParams(
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            seed=None if sampling.seed is None else sampling.seed & (2**31 - 1),
            stop=sorted(request.stop_ids) or None,
        )
        with self._versions.using(version) as (client, _):
            answer = await self._ask(client.sample, _prompt(prompt), 1, params)
            [reply] = answer.sequences
            ids = list(reply.tokens)
            drawn = SampledFrom(sampling, self._vocab)
            told = await self._told(client, prompt, ids, max(request.top_logprobs, drawn.num_needed))
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
        self, client: Any, prompt: list[int], ids: list[int], number: int
    ) -> list[dict[int, float]]:
        """Of the likeliest tokens at each position of a reply; empty where the server does not say."""
        if not self._has_top or not number or not ids:
            return []
        return (await self._prompt_logprobs(client, [*prompt, *ids], number))[len(prompt) :]

    async def _prompt_logprobs(self, client: Any, ids: list[int], top_k: int) -> list[dict[int, float]]:
        """Row i: the token there and, if asked for, the likeliest ones. The first row is empty."""
        import tinker

        number = min(_MAX_TOP, top_k) if self._has_top else 0
        params = tinker.SamplingParams(max_tokens=1)
        answer = await self._ask(
            client.sample, _prompt(ids), 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=number
        )
        own = list(answer.prompt_logprobs)
        # Some servers begin with the first token, which has none; others with the second.
        own = own if len(own) == len(ids) else [None, *own]
        if len(own) != len(ids):
            raise EngineAway(f"the Tinker server scored {len(own) - 1} of {len(ids) - 1} tokens")
        tops = answer.topk_prompt_logprobs if number else None
        tops = [None] * len(ids) if tops is None else ([None, *tops] if len(tops) < len(ids) else tops)
        return [
            {} if value is None else {**dict(tops[i] or ()), ids[i]: float(value)}
            for i, value in enumerate(own)
        ]

    async def score(self, request: ScoreRequest) -> Scores:
        if request.hidden_layer is not None:
            raise ValueError("the Tinker engine gives no hidden states")
        if (request.top_k or request.candidates) and not self._has_top:
            raise ValueError("this Tinker server does not score the likeliest tokens")
        version, ids = self._versions.resolve(request.policy_version), list(request.token_ids)
        wanted = request.candidates or []
        with self._versions.using(version) as (client, _):
            rows = await self._prompt_logprobs(client, ids, max([request.top_k, *map(len, wanted)]))
            told = rows[request.start :]
            await self._fill(client, ids, request, told)
        own = [row[token_id] for row, token_id in zip(told, ids[request.start :], strict=True)]
        best = [sorted(row, key=row.__getitem__, reverse=True)[: request.top_k] for row in told]
        return Scores(
            own,
            best,
            [[row[each] for each in ids_K] for row, ids_K in zip(told, best, strict=True)],
            None,
            [[row[each] for each in want] for row, want in zip(told, wanted, strict=True)]
            if wanted
            else None,
        )

    async def _fill(
        self, client: Any, ids: list[int], request: ScoreRequest, told: list[dict[int, float]]
    ) -> None:
        """Candidates that are not among the likeliest: each is scored as the token that follows."""

        async def ask(position: int, candidate: int) -> None:
            rows = await self._prompt_logprobs(client, [*ids[: request.start + position], candidate], 0)
            told[position][candidate] = rows[-1][candidate]

        missing = [
            (position, each)
            for position, (row, want) in enumerate(zip(told, request.candidates or [], strict=False))
            for each in dict.fromkeys(want)
            if each not in row
        ]
        await asyncio.gather(*(ask(position, each) for position, each in missing))

    async def load(self, weights: Weights) -> None:
        path = sampler_of(weights.uri)
        held = self._versions.get(weights.version)
        if held is not None and held[1] == path:
            return
        client = await self._ask_in_thread(self._service.create_sampling_client, model_path=path)
        # Whether the weights are there shows at the first request, and the server reads them then.
        await self._prompt_logprobs(client, _PROBE, 0)
        self._versions.put(weights.version, (client, path))

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        self._versions.serve(version, scope)

    async def unload(self, version: int) -> None:
        self._versions.remove(version)

    def status(self) -> EngineStatus:
        return self._versions.status()

    async def close(self) -> None:
        holder = self._service.holder
        await asyncio.to_thread(holder.close)

    async def _ask(self, call: Any, *arguments: Any, **more: Any) -> Any:
        """The client tries again by itself; what it gives up, or takes too long for, is away."""
        try:
            future = call(*arguments, **more)
            return await asyncio.wait_for(asyncio.wrap_future(future), self._options.patience_s)
        except TimeoutError:
            raise EngineAway("the Tinker service does not answer") from None
        except Exception as error:
            raise _said(error) from None

    async def _ask_in_thread(self, call: Any, **more: Any) -> Any:
        try:
            return await asyncio.wait_for(asyncio.to_thread(call, **more), self._options.patience_s)
        except TimeoutError:
            raise EngineAway("the Tinker service does not answer") from None
        except Exception as error:
            raise _said(error) from None


def _said(error: Exception) -> Exception:
    made = raised(error)
    return EngineAway(str(made)) if isinstance(made, RuntimeError) else made


def _prompt(ids: list[int]) -> Any:
    import tinker

    return tinker.ModelInput.from_ints(list(ids))


def _check(request: GenerateRequest) -> None:
    if request.grammar is not None:
        raise ValueError("the Tinker engine follows no grammar; leave the reply free")
    neutral, sampling = SamplingParams(1), request.sampling
    for name in ("min_p", "presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(sampling, name) != getattr(neutral, name):
            raise RequestError(f"This engine cannot do {name}; leave it out.", param=name)
