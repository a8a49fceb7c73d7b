"""What a step reports, collected over its rows. Nothing is read back from a GPU until the step ends, so that
its queue never runs empty."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from openclaw_rl.train.packed import Packed

#: Beyond this, a ratio of probabilities is 0 or infinite in practice.
_MAX_LOG_RATIO = 20


class Clock:
    """Times of the device's own work."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"

    def now(self) -> Any:
        if not self._is_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """On a GPU, only after both have been reached."""
        return float(start.elapsed_time(end) / 1000 if self._is_gpu else end - start)


@dataclass
class Tally:
    version: int
    """The version being trained; only its own tokens show how far engine and trainer differ."""
    num_tokens: int = 0
    num_reply: int = 0
    _times: list[tuple[Any, Any, Any]] = field(default_factory=list)
    _losses: list[torch.Tensor] = field(default_factory=list)
    _changes: list[torch.Tensor] = field(default_factory=list)
    _recorded: list[torch.Tensor] = field(default_factory=list)
    _own: list[torch.Tensor] = field(default_factory=list)

    def add(self, packed: Packed, new_NK: torch.Tensor, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach())
        self._changes.append((new_NK[:, 0] - packed.old_NK[:, 0]).detach())
        self._recorded.append(packed.old_NK[:, 0] <= 0)
        self._own.append(packed.versions_N == self.version)
        self.num_tokens += packed.num_tokens
        self.num_reply += len(packed.rows_N)

    def time(self, start: Any, forwarded: Any, done: Any) -> None:
        self._times.append((start, forwarded, done))

    def loss(self) -> float:
        return sum((float(loss) for loss in self._losses), 0.0)

    def mismatch(self) -> float | None:
        """Mean absolute difference of the log-probs of tokens that this version sampled."""
        recorded, own = torch.cat(self._recorded), torch.cat(self._own)
        mine = torch.cat(self._changes)[recorded & own].abs()
        return float(mine.mean()) if len(mine) else None

    def ratio(self) -> float:
        moved = torch.cat(self._changes)[torch.cat(self._recorded)]
        ratios = moved.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
        return float(ratios.mean()) if len(ratios) else 1.0

    def seconds(self, clock: Clock) -> tuple[float, float]:
        """Of all forward passes, and of all backward passes."""
        forward = sum(clock.seconds(start, middle) for start, middle, _ in self._times)
        return forward, sum(clock.seconds(middle, end) for _, middle, end in self._times)
