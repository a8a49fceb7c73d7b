"""Samples one token per row of logits, with the log-probs that training needs.

Kept apart on purpose: the *raw* log-prob and top-k (temperature 1, nothing cut, no grammar) and
the log-prob under the distribution actually sampled from. Each request has its own random
generator, so a seed gives the same reply whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from openclaw_rl.types import SamplingParams

#: Nucleus sampling tries this many candidates first; only a flatter distribution needs a full sort.
_NUCLEUS_FIRST = 256
_UNIFORMS = 32
#: A GPU finds this many of the likeliest tokens at most.
_SMALL_TOP_K = 64
#: Below this temperature the likeliest token is taken: dividing would overflow and fail the whole pass.
COLDEST = 1e-6


@dataclass(frozen=True, slots=True)
class Sampled:
    id: int
    logprob: float
    sampled_logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    forced: bool


class Sampler:
    """One request's sampling: its parameters and its random state."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed & (2**63 - 1))
        self._counts: Counter[int] = Counter()
        self._bias = {int(token_id): value for token_id, value in params.logit_bias.items()}
        self._penalised = bool(params.presence_penalty or params.frequency_penalty)
        self._uniforms: list[float] = []

    def sample(
        self,
        raw_V: torch.Tensor,
        top_ids: list[int],
        top_logprobs: list[float],
        allowed_V: torch.Tensor | None,
    ) -> Sampled:
        """Draw from one row of raw log-probs (on the CPU); ``allowed_V`` is a grammar's mask."""
        changed_V = self._changed(raw_V)
        logprobs_V = changed_V if allowed_V is None else changed_V.masked_fill(~allowed_V, float("-inf"))
        forced = allowed_V is not None and int(allowed_V.sum()) == 1
        token, sampled_logprob = self._draw(logprobs_V, top_ids if logprobs_V is raw_V else None)
        self._counts[token] += self._penalised
        return Sampled(
            id=token,
            logprob=float(raw_V[token]),
            sampled_logprob=sampled_logprob,
            top_ids=tuple(top_ids),
            top_logprobs=tuple(top_logprobs),
            forced=forced,
        )

    def _changed(self, raw_V: torch.Tensor) -> torch.Tensor:
        """Apply the request's biases, and its penalties on tokens that the reply already has."""
        added = {token_id: value for token_id, value in self._bias.items() if token_id < len(raw_V)}
        for token_id, count in self._counts.items():
            penalty = self.params.presence_penalty + self.params.frequency_penalty * count
            added[token_id] = added.get(token_id, 0.0) - penalty
        if not added:
            return raw_V
        return raw_V.index_add(0, torch.tensor(list(added)), torch.tensor(list(added.values())).to(raw_V))

    def _draw(self, logprobs_V: torch.Tensor, top_ids: list[int] | None) -> tuple[int, float]:
        if self.params.temperature < COLDEST:
            return top_ids[0] if top_ids else int(logprobs_V.argmax()), 0.0
        scaled_V = logprobs_V / self.params.temperature if self.params.temperature != 1 else logprobs_V
        candidates, kept_logprobs = self._truncate(torch.log_softmax(scaled_V, dim=-1))
        choice = self._choose(kept_logprobs)
        token = choice if candidates is None else int(candidates[choice])
        return token, float(kept_logprobs[choice])

    def _choose(self, logprobs: torch.Tensor) -> int:
        return _invert(logprobs.unsqueeze(0), [self])[0]

    @property
    def is_whole(self) -> bool:
        """Whether it samples the full distribution: a temperature, but no truncation, bias or penalty."""
        params = self.params
        cut = params.top_k or params.top_p < 1 or params.min_p
        return params.temperature >= COLDEST and not (cut or self._bias or self._penalised)

    @property
    def is_simple(self) -> bool:
        """Whether a temperature and truncation are all that changes its distribution."""
        return self.params.top_k <= _SMALL_TOP_K and not (self._bias or self._penalised)

    def next_uniform(self) -> float:
        """The number that ``uniform`` would give next; a sampler uses only one of the two."""
        if not self._uniforms:
            several = 1 - torch.rand(_UNIFORMS, dtype=torch.float64, generator=self._generator)
            self._uniforms = several.flip(0).tolist()
        return self._uniforms.pop()

    def uniform(self) -> torch.Tensor:
        """In (0, 1], so that inversion stays between the first and the last possible token."""
        return 1 - torch.rand(1, dtype=torch.float64, generator=self._generator)

    def _truncate(self, logprobs_V: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The ids left by min-p, top-k and top-p (None: all) and their renormalised log-probs."""
        top_k, top_p = self.params.top_k, self.params.top_p
        if self.params.min_p:
            least = logprobs_V.max() + math.log(self.params.min_p)
            logprobs_V = torch.log_softmax(logprobs_V.masked_fill(logprobs_V < least, float("-inf")), dim=-1)
        if not top_k and top_p >= 1:
            return None, logprobs_V
        vocab = logprobs_V.shape[-1]
        values, ids = logprobs_V.topk(min(top_k or (_NUCLEUS_FIRST if top_p < 1 else vocab), vocab))
        if top_p < 1:
            if not top_k and float(values.exp().sum()) < top_p:
                values, ids = logprobs_V.sort(descending=True)
            total = values.logsumexp(0) if top_k else torch.zeros(())
            before = (values - total).exp().cumsum(0) - (values - total).exp()
            keep = max(1, int((before < top_p).sum()))
            values, ids = values[:keep], ids[:keep]
        return ids, torch.log_softmax(values, dim=-1)


def draw_whole(
    raw_RV: torch.Tensor, samplers: Sequence[Sampler | None]
) -> list[tuple[int, float, float] | None]:
    """Sample one token of each row that has a sampler, all at once, on the log-probs' device.

    Each comes with its raw log-prob and that under the distribution it was sampled from.
    """
    rows = [row for row, sampler in enumerate(samplers) if sampler]
    drawn: list[tuple[int, float, float] | None] = [None] * len(samplers)
    if not rows:
        return drawn
    present = [sampler for sampler in samplers if sampler]
    raw_RV = raw_RV if len(rows) == len(samplers) else raw_RV[rows]
    from_RV = raw_RV
    if any(sampler.params.temperature != 1 for sampler in present):
        temperatures = torch.tensor([[sampler.params.temperature] for sampler in present])
        from_RV = torch.log_softmax(raw_RV / temperatures.to(raw_RV), dim=-1)
    tokens = _invert(from_RV, present)
    index_R1 = torch.tensor(tokens, device=raw_RV.device).unsqueeze(1)
    logprobs = torch.cat([raw_RV.gather(1, index_R1), from_RV.gather(1, index_R1)], dim=1).tolist()
    for row, token, (raw, own) in zip(rows, tokens, logprobs, strict=True):
        drawn[row] = (token, raw, own)
    return drawn


def _invert(logprobs_RV: torch.Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """Sample by inverting the cumulative distribution: a tenth of the cost of torch.multinomial."""
    cumulative_RV = logprobs_RV.exp().cumsum(-1, dtype=torch.float64)
    uniform_R1 = torch.stack([sampler.uniform() for sampler in samplers]).to(cumulative_RV.device)
    points_R1 = uniform_R1 * cumulative_RV[:, -1:]
    tokens: list[int] = torch.searchsorted(cumulative_RV, points_R1)[:, 0].tolist()
    return tokens


def raw_logprobs(logits_RV: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Raw log-probs of each row on the logits' device, and its top-k ids and log-probs on the CPU."""
    logprobs_RV = torch.log_softmax(logits_RV.float(), dim=-1)
    values, ids = logprobs_RV.topk(top_k, dim=-1)
    return logprobs_RV, ids.cpu(), values.cpu()
