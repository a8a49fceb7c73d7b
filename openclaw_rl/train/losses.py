"""Losses per position, from new and old log-probs. All tensors are ``[N, K]``: position by candidate.

A batch names its loss; the names are the keys of ``LOSSES``. torch is imported when a loss is computed: the
names are needed before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from openclaw_rl.types import NO_SIGNAL, Batch, Loss

if TYPE_CHECKING:
    import torch

#: Beyond this, a ratio of probabilities is 0 or infinite in practice.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Surrogate:
    """Clipped policy-gradient surrogate, summed over a position's candidates; the signal is the advantage."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0
    """Bounds the loss of a token that has become likelier although its advantage is negative."""

    def __call__(self, new_NK: torch.Tensor, old_NK: torch.Tensor, signal_NK: torch.Tensor) -> torch.Tensor:
        import torch

        # With one pass per batch and few versions in between, an unrecorded old log-prob is close to the new.
        old_NK = torch.where(old_NK > 0, new_NK.detach(), old_NK)
        ratio = (new_NK - old_NK).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = torch.maximum(-signal_NK * ratio, -signal_NK * clipped)
        bounded = torch.minimum(loss, -signal_NK * self.dual_clip)
        return torch.where(signal_NK < 0, bounded, loss).sum(dim=1)


@dataclass(frozen=True)
class TailKL:
    """Reverse KL over the candidates and one bin for the rest; the signal is the teacher's log-prob."""

    padding: ClassVar[float] = NO_SIGNAL

    def __call__(self, new_NK: torch.Tensor, old_NK: torch.Tensor, signal_NK: torch.Tensor) -> torch.Tensor:
        import torch

        asked, new, teacher, gap = _candidates(new_NK, signal_NK)
        new_rest, teacher_rest = _log_rest(new), _log_rest(teacher)
        loss = (new.exp() * gap).sum(dim=1) + new_rest.exp() * (new_rest - teacher_rest)
        return torch.where(asked.any(dim=1), loss, torch.zeros_like(loss))


@dataclass(frozen=True)
class ForwardTailKL:
    """Forward KL over the same bins: cross entropy with the teacher's probabilities, minus their entropy."""

    padding: ClassVar[float] = NO_SIGNAL

    def __call__(self, new_NK: torch.Tensor, old_NK: torch.Tensor, signal_NK: torch.Tensor) -> torch.Tensor:
        import torch

        asked, new, teacher, gap = _candidates(new_NK, signal_NK)
        new_rest, teacher_rest = _log_rest(new), _log_rest(teacher)
        loss = teacher_rest.exp() * (teacher_rest - new_rest) - (teacher.exp() * gap).sum(dim=1)
        return torch.where(asked.any(dim=1), loss, torch.zeros_like(loss))


def _candidates(new_NK: torch.Tensor, signal_NK: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Mask of candidates with a signal; their student and teacher log-probs; the difference of the two."""
    import torch

    asked = signal_NK != NO_SIGNAL
    gone = torch.full_like(new_NK, float("-inf"))
    # -inf minus -inf is NaN, which spoils gradients even where it is unused; so take the gap before masking.
    gap = torch.where(asked, new_NK - signal_NK, torch.zeros_like(new_NK))
    return asked, torch.where(asked, new_NK, gone), torch.where(asked, signal_NK, gone), gap


def _log_rest(logprobs_NK: torch.Tensor) -> torch.Tensor:
    """log(1 - sum of the probabilities), kept finite when almost nothing remains."""
    import torch

    total = torch.where(logprobs_NK.isinf(), torch.zeros_like(logprobs_NK), logprobs_NK.exp()).sum(dim=1)
    return torch.log1p(-total.clamp(max=1 - 1e-6))


LOSSES: dict[str, Callable[..., Loss]] = {
    "clipped-surrogate": Surrogate,
    "reverse-kl": TailKL,
    "forward-kl": ForwardTailKL,
}


def loss_of(batch: Batch) -> Loss:
    """The batch's loss with its parameters; ValueError if there is no such loss."""
    if callable(batch.loss):
        return batch.loss
    if batch.loss not in LOSSES:
        raise ValueError(f"the trainer has no loss {batch.loss!r}; it has: {', '.join(LOSSES)}")
    try:
        return LOSSES[batch.loss](**batch.numbers)
    except TypeError as error:
        raise ValueError(f"loss {batch.loss!r}: {error}") from None
