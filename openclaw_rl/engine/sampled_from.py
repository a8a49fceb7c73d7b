"""The log-prob of the distribution that a reply was really drawn from, where a server tells only raw ones.

Temperature, top-k, top-p, min-p, penalties and biases are known, so what they did to the likeliest tokens is
computed. Exact wherever the tokens that were not told are cut off or the temperature is 1; otherwise their
share is estimated from how fast the last of the likeliest fall off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from openclaw_rl.types import SamplingParams

#: Below, servers take the likeliest token.
_COLDEST = 1e-5
#: So many of the likeliest tokens are asked for where the parameters change their shares.
NUM_NEEDED = 128
_NOTHING = 1e-12


class SampledFrom:
    """One reply's parameters, and the tokens it has so far."""

    def __init__(self, params: SamplingParams, vocab: int) -> None:
        self._params, self._vocab = params, vocab
        self._bias = {int(token_id): value for token_id, value in params.logit_bias.items()}
        self._counts: Counter[int] = Counter()

    @property
    def num_needed(self) -> int:
        """Likeliest tokens that ``logprob`` has to be told."""
        params = self._params
        if params.temperature < _COLDEST or self._is_raw():
            return 0
        return min(self._vocab, max(NUM_NEEDED, params.top_k))

    def _is_raw(self) -> bool:
        params = self._params
        changed = params.presence_penalty or params.frequency_penalty or self._bias
        return params.temperature == 1 and params.top_p >= 1 and not (params.top_k or params.min_p or changed)

    def logprob(self, token_id: int, raw: float, top: Mapping[int, float]) -> float:
        """Of the token that was drawn, given its raw log-prob and those of the likeliest."""
        if self._params.temperature < _COLDEST:
            return 0.0
        if self._is_raw():
            return raw
        known = {**top, token_id: raw}
        scaled = {
            each: (value + self._added(each)) / self._params.temperature for each, value in known.items()
        }
        kept, rest = self._cut(sorted(scaled.values(), reverse=True), self._rest(known, sorted(top.values())))
        self._counts[token_id] += 1
        return min(0.0, scaled[token_id] - math.log(sum(map(math.exp, kept)) + rest))

    def _added(self, token_id: int) -> float:
        params, count = self._params, self._counts[token_id]
        penalty = params.frequency_penalty * count + (params.presence_penalty if count else 0.0)
        return self._bias.get(token_id, 0.0) - penalty

    def _rest(self, known: Mapping[int, float], raw: list[float]) -> float:
        """What the tokens that were not told weigh: their shares fall as a power of the rank."""
        temperature, number = self._params.temperature, len(raw)
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
        """What min-p, top-k and top-p leave: the told tokens, best first, and the weight of the others."""
        params = self._params
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
