"""Sampling with Fireworks' serverless training service, from the weights that its trainer saves.

It reports both log-probs of each sampled token: the raw one, and that in the distribution sampled from, so
learning needs no likeliest tokens. Replies arrive whole. What needs an account is untested: the tests sample
from a stand-in for the service in front of a real SkyRL.

Not supported, beyond what the Tinker engine lacks: scores of other tokens than a text's own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

from openclaw_rl.engine.tinker import Sampled, Sampler, ServiceOptions, TinkerEngine, until_stop
from openclaw_rl.errors import EngineAway
from openclaw_rl.fireworks_service import FireworksService
from openclaw_rl.types import Capabilities, GenerateRequest

_PROBE = [1, 2, 3]


@dataclass(frozen=True)
class FireworksEngineOptions(ServiceOptions):
    """The engine settings, plus those of Fireworks only: ``[engine.fireworks]``."""

    url: str = ""
    """Another address of the serverless service."""
    base_model: str = ""
    """Fireworks' name of the model, such as accounts/fireworks/models/qwen3-8b."""


class FireworksEngine(TinkerEngine):
    """Engine protocol over Fireworks' client."""

    title = "Fireworks"
    kind: ClassVar = FireworksService()
    capabilities = Capabilities(
        loads=("fireworks",), reads_model=False, scores_candidates=False, top_logprobs=False
    )

    def _able(self, base: Any) -> Capabilities:
        params = self.kind.sdk.SamplingParams(max_tokens=1)
        base.sample(self._prompt(_PROBE), 1, params).result(self._options.patience_s)
        return self.capabilities

    async def _reply(self, held: Sampler, request: GenerateRequest, room: int) -> list[Sampled]:
        sampling = request.sampling
        more: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        more |= {"top_k": sampling.top_k} if sampling.top_k else {}
        more |= {"seed": sampling.seed & (2**31 - 1)} if sampling.seed is not None else {}
        answer = await self._complete(held, request.prompt_ids, room, **more)
        ids = answer.full_tokens[answer.prompt_len :]
        if not len(ids) == len(answer.inference_logprobs) == len(answer.sampling_logprobs):
            raise EngineAway("the Fireworks service left out log-probs")
        rows = zip(ids, answer.inference_logprobs, answer.sampling_logprobs, strict=True)
        kept = len(until_stop(ids, request.stop_ids))
        return [Sampled(each, float(raw), float(drawn), {}) for each, raw, drawn in rows][:kept]

    async def _prompt_logprobs(self, held: Sampler, ids: list[int], top_k: int) -> list[dict[int, float]]:
        answer = await self._complete(held, ids, 1, echo=True)
        own = answer.inference_logprobs[: len(ids) - 1]
        if len(own) != len(ids) - 1:
            raise EngineAway(f"the Fireworks service scored {len(own)} of {len(ids) - 1} tokens")
        return [{}, *({each: float(raw)} for each, raw in zip(ids[1:], own, strict=True))]

    async def _complete(self, held: Sampler, ids: list[int], max_tokens: int, **more: Any) -> Any:
        """One reply with both log-probs of each token, which the client's own ``sample`` does not pass on."""
        sampler = held.client.deployment_sampler
        work = sampler.sample_with_prompt_tokens(list(ids), max_tokens=max_tokens, logprobs=True, **more)
        [answer] = await self._in_time(work)
        if answer.inference_logprobs is None or answer.sampling_logprobs is None:
            raise EngineAway("the Fireworks service left out log-probs")
        return answer

    def _sampler(self, uri: str) -> Sampler:
        return Sampler(self._service.create_sampling_client(model_path=self.kind.sampler_of(uri)))

    async def close(self) -> None:
        await asyncio.to_thread(self.kind.let_go, self._options, self._service, None)
