"""Log-probs under the distribution that a reply was sampled from, for servers that return only raw ones.

Temperature, top-k, top-p, min-p, penalties and biases are known, so their effect on the likeliest tokens can
be computed. The result is exact if tokens that the server does not return cannot be sampled, which
``bounded`` ensures, or if the temperature is 1. Otherwise their share is extrapolated from how fast the
probabilities of the returned tokens fall off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from openclaw_rl.types import SamplingParams

#: Below this temperature servers take the likeliest token.
_COLDEST = 1e-5
#: Fewest of the likeliest tokens to request where the parameters change their probabilities.
NUM_NEEDED = 128
#: Default and largest top-k that ``bounded`` sets.
NUM_DRAWN, _MOST_DRAWN = 256, 512
_NOTHING = 1e-12


def bounded(params: SamplingParams, most: int = _MOST_DRAWN) -> SamplingParams:
    """Limit top-k to ``most`` where parameters change probabilities, so that a server that returns as many
    likeliest tokens returns all it may sample."""
    if params.temperature < _COLDEST or _is_raw(params):
        return params
    return replace(params, top_k=min(params.top_k or NUM_DRAWN, most))


def _is_raw(params: SamplingParams) -> bool:
    changed = params.presence_penalty or params.frequency_penalty or params.logit_bias
    return params.temperature == 1 and params.top_p >= 1 and not (params.top_k or params.min_p or changed)


class SampledFrom:
    """One reply's parameters and its tokens so far."""

    def __init__(self, params: SamplingParams, vocab: int) -> None:
        self.params = params
        self._vocab = vocab
        self._bias = {int(token_id): value for token_id, value in params.logit_bias.items()}
        self._counts: Counter[int] = Counter()

    @property
    def num_needed(self) -> int:
        """How many of the likeliest tokens ``logprob`` needs."""
        params = self.params
        if params.temperature < _COLDEST or _is_raw(params):
            return 0
        # A token demoted by a penalty or a bias makes room for a less likely one.
        penalised = params.presence_penalty or params.frequency_penalty
        spare = len(self._bias) + (params.top_k if penalised else 0)
        return min(self._vocab, max(NUM_NEEDED, params.top_k + spare))

    def logprob(self, token_id: int, raw: float, top: Mapping[int, float]) -> float:
        """Log-prob of the sampled token, given its raw log-prob and those of the likeliest."""
        if self.params.temperature < _COLDEST:
            return 0.0
        if _is_raw(self.params):
            return raw
        known = {**top, token_id: raw}
        scaled = {
            each: (value + self._added(each)) / self.params.temperature for each, value in known.items()
        }
        kept, rest = self._cut(sorted(scaled.values(), reverse=True), self._rest(known, sorted(top.values())))
        self._counts[token_id] += 1
        return min(0.0, scaled[token_id] - math.log(sum(map(math.exp, kept)) + rest))

    def _added(self, token_id: int) -> float:
        params, count = self.params, self._counts[token_id]
        penalty = params.frequency_penalty * count + (params.presence_penalty if count else 0.0)
        return self._bias.get(token_id, 0.0) - penalty

    def biases(self) -> dict[str, float]:
        """What is currently added to each token's logit, by token id as a string, for JSON."""
        changed = {*self._bias, *self._counts}
        return {str(token_id): value for token_id in changed if (value := self._added(token_id))}

    def _rest(self, known: Mapping[int, float], raw: list[float]) -> float:
        """Weight of the tokens that were not returned, assuming probability falls as a power of the rank."""
        temperature, number = self.params.temperature, len(raw)
        left = 1 - sum(map(math.exp, known.values()))
        if left < _NOTHING or number >= self._vocab:
            return 0.0
        if temperature == 1:
            return left
        last = math.exp(raw[0])
        power = (1 + last * number / left) / temperature
        span = self._vocab / number
        ranks = math.log(span) if abs(power - 1) < 1e-9 else (span ** (1 - power) - 1) / (1 - power)
        return float(last ** (1 / temperature) * number * ranks)

    def _cut(self, scaled: list[float], rest: float) -> tuple[list[float], float]:
        """What min-p, top-k and top-p leave: the returned tokens, best first, and the others' weight."""
        params = self.params
        if params.min_p:
            least = scaled[0] + math.log(params.min_p)
            rest = rest if scaled[-1] >= least else 0.0
            scaled = [value for value in scaled if value >= least]
        if params.top_k and params.top_k <= len(scaled):
            scaled, rest = scaled[: params.top_k], 0.0
        if params.top_p >= 1:
            return scaled, rest
        wanted, weight = params.top_p * (sum(map(math.exp, scaled)) + rest), 0.0
        for number, value in enumerate(scaled, 1):
            weight += math.exp(value)
            if weight >= wanted:
                return scaled[:number], 0.0
        return scaled, wanted - weight
