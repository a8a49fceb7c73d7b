"""Samples the tokens of a step on the GPU, with one copy of settings there and one of results back.

Rows with biases, penalties, a grammar or a large top-k are sampled by ``sampling.py``. A request's uniform
numbers come from its own generator on the CPU, so that a seed gives the same reply whatever else is in the
batch.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from openclaw_rl.engine.gpu_sampling import draw
from openclaw_rl.engine.recording import Recorded, record
from openclaw_rl.engine.sampling import COLDEST, Sampler
from openclaw_rl.types import SamplingParams

_ROWS = 256
#: Recorded sets of kernels; the logits of recorded steps are always at the same few addresses.
_MOST_GRAPHS = 64
#: Steps after which one is recorded: the number of rows changes often, and recording is not free.
_RECORD_AFTER = 8
_MOST_SEEN = 1000
_LEAST_TOP_P = 1e-9
#: The likeliest tokens that are found at least; then a power of two, as each number is compiled.
_LEAST_TOP = 8
#: Settings of a greedy row, whose drawn token is not used.
_ALONE = (1.0, 1.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row's token; the log-probs are as in ``Token``."""

    id: int
    logprob: float
    sampled_logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


class GpuSampler:
    """``start`` launches kernels, ``finish`` waits for their results; in turn. Without a GPU, as in tests,
    nothing is recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_gpu = device, device.type == "cuda"
        self._graphs: OrderedDict[tuple[int, int, int, bool], Recorded] = OrderedDict()
        self._seen: Counter[tuple[int, int, int, bool]] = Counter()
        self._done = torch.cuda.Event() if self._is_gpu else None
        self._results = torch.empty(0, dtype=torch.int32)
        self._greedy: list[bool] = []
        self._top = 1
        self._grow(_ROWS)

    def start(self, logits_RV: torch.Tensor, samplers: Sequence[Sampler], top: int) -> None:
        rows = len(samplers)
        if rows > self._host_R5.shape[0]:
            self._grow(2 * rows)
        params = [sampler.params for sampler in samplers]
        self._greedy = [each.temperature < COLDEST for each in params]
        settings = [
            (sampler.next_uniform(), *(_ALONE if greedy else _settings(sampler.params)))
            for sampler, greedy in zip(samplers, self._greedy, strict=True)
        ]
        self._host_R5[:rows] = torch.tensor(settings, dtype=torch.float64)
        self._settings_R5.copy_(self._host_R5, non_blocking=True)
        is_cut = any(each.top_p < 1 or each.min_p > 0 or each.top_k for each in params)
        self._top = top
        top = max(_LEAST_TOP, 1 << (max(top, *(each.top_k for each in params)) - 1).bit_length())
        drawn = self._draw(logits_RV.contiguous(), top, is_cut)
        self._results = self._pinned(rows, drawn.shape[1])
        self._results.copy_(drawn, non_blocking=True)
        if self._done is not None:
            self._done.record()

    def finish(self) -> list[Drawn]:
        if self._done is not None:
            self._done.synchronize()
        top = (self._results.shape[1] - 3) // 2
        ids = self._results[:, : 3 + top].tolist()
        logprobs = self._results.view(torch.float32).tolist()
        return [
            Drawn(
                row[3] if greedy else row[0],
                floats[3 + top] if greedy else floats[1],
                0.0 if greedy else floats[2],
                row[3 : 3 + self._top],
                floats[3 + top : 3 + top + self._top],
            )
            for row, floats, greedy in zip(ids, logprobs, self._greedy, strict=True)
        ]

    def _grow(self, rows: int) -> None:
        self._graphs.clear()
        self._host_R5 = torch.zeros(rows, 5, dtype=torch.float64, pin_memory=self._is_gpu)
        self._host_R5[:, 1:3] = 1
        self._settings_R5 = torch.zeros(rows, 5, dtype=torch.float64, device=self._device)
        self._host = torch.empty(0, dtype=torch.int32)

    def _pinned(self, rows: int, width: int) -> torch.Tensor:
        if rows * width > self._host.numel():
            self._host = torch.empty(2 * rows * width, dtype=torch.int32, pin_memory=self._is_gpu)
        return self._host[: rows * width].view(rows, width)

    def _draw(self, logits_RV: torch.Tensor, top: int, is_cut: bool) -> torch.Tensor:
        settings_R5 = self._settings_R5[: logits_RV.shape[0]]
        if not self._is_gpu:
            return draw(logits_RV, settings_R5, top, is_cut)
        key = (logits_RV.data_ptr(), logits_RV.shape[0], top, is_cut)
        if len(self._seen) > _MOST_SEEN:
            self._seen = Counter(dict.fromkeys(self._graphs, _RECORD_AFTER))
        self._seen[key] += 1
        if key not in self._graphs and self._seen[key] > _RECORD_AFTER:
            self._graphs[key] = record(partial(draw, logits_RV, settings_R5, top, is_cut))
        if key not in self._graphs:
            return draw(logits_RV, settings_R5, top, is_cut)
        self._graphs.move_to_end(key)
        if len(self._graphs) > _MOST_GRAPHS:
            self._seen.pop(self._graphs.popitem(last=False)[0])
        graph, drawn = self._graphs[key]
        graph.replay()
        return drawn


def _settings(params: SamplingParams) -> tuple[float, float, float, int]:
    return 1 / params.temperature, max(params.top_p, _LEAST_TOP_P), params.min_p, params.top_k
