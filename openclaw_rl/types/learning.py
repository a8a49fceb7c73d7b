"""From a verdict to signal, from signal to a step, from a step to a version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.types.base import FloatArray, IntArray, Json
from openclaw_rl.types.capture import TurnRecord
from openclaw_rl.types.judging import Verdict


@dataclass(frozen=True, slots=True)
class Lesson:
    """A judged turn, as an algorithm sees it."""

    turn: TurnRecord
    verdict: Verdict
    hinted: Callable[[str], list[int] | None]
    """The prompt's ids with a hint added to the user's last message; None where it cannot be rebuilt."""
    amends: Lesson | None = None
    """What this reply made up for: the first of the replies that were complained about right before it."""


class Scorer(Protocol):
    """Raw log-probs of chosen tokens under the teacher."""

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching: ...


@dataclass(frozen=True, slots=True)
class Teaching:
    """What the teacher thinks at each position of a reply."""

    logprobs_NK: FloatArray
    """Of the tokens that were asked for."""
    top_ids_NK: IntArray
    """Its own likeliest tokens, as many as were asked for."""
    top_logprobs_NK: FloatArray
    """Of those."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A turn with a signal for every token: all that training needs besides the turn itself.

    Row i is the reply's i-th token, column k one candidate there with its own signal. The first column is
    the token that was sampled. What the signal means is the loss's business.
    """

    ids_NK: IntArray
    old_NK: FloatArray
    """Raw log-probs under the version that sampled the reply; above 0 where they were not recorded."""
    signal_NK: FloatArray
    """Zero where a candidate has nothing to say, such as tokens forced by a grammar."""
    strength: float = 1.0
    """0..1: how much of a reason this sample is to take a step at all."""
    hint: str | None = None
    """The one that was distilled."""
    prompt_ids: list[int] | None = None
    """Another prompt than the turn's own, to which the reply is taught as the answer."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A sample on its way into a step."""

    turn: TurnRecord
    sample: Sample
    score: int
    """The verdict's."""

    @property
    def prompt_ids(self) -> list[int]:
        own = self.sample.prompt_ids
        return self.turn.prompt_ids if own is None else own


class Loss(Protocol):
    """Loss per position from log-probs now, before, and the signal; torch tensors, all ``[N, K]``.

    Samples with fewer candidates than others get columns with a signal of 0, or of the loss's ``padding``
    where it has one; such a column must count for nothing.
    """

    def __call__(self, new_NK: Any, old_NK: Any, signal_NK: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Batch:
    items: Sequence[BatchItem]
    loss: Loss
    scale: float = 1.0
    """Of the learning rate: a batch with little to say takes a small step."""


class Algorithm(Protocol):
    """Turns judged turns into per-token signal. Short on purpose: one file each."""

    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        """None: this turn has nothing to teach."""

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        """Baselines, groups and the step's size. ``state`` is kept with the weights; it may be changed."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did, for people and for the gate."""

    loss: float
    grad_norm: float
    finite: bool
    learning_rate: float
    num_samples: int
    num_tokens: int
    num_reply_tokens: int
    mismatch: float | None
    """Mean |log-prob here − log-prob when served| of tokens sampled by the version the step began with."""
    ratio: float
    """Mean ratio of probabilities, now to then, of the sampled tokens, before the step."""
    forward_s: float
    backward_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Policy:
    """One version of the weights, and what is known about it."""

    version: int
    parent: int | None
    status: str
    """``training`` → ``candidate`` → ``serving`` → ``retired``, or ``rejected``."""
    created_at: float
    published_at: float | None
    num_samples: int
    config_hash: str
    metrics: Json
    gate: Json


class Trainer(Protocol):
    """Changes weights; knows no algorithm by name. Synchronous: call it in one thread of its own."""

    def resume(self, folder: Path | None) -> None:
        """Go on from a saved version, or from the base."""

    def step(self, batch: Batch, version: int) -> StepReport:
        """One optimizer step; ``version`` is the one it starts from."""

    def save(self, folder: Path, state: Json) -> None:
        """Weights that an engine can load, and everything ``resume`` needs, ``state`` included."""

    @property
    def state(self) -> Json:
        """The algorithm's own, as last saved."""


class Sink(Protocol):
    """Where numbers go, for people who have a place for them."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """The numbers of one step; ``step`` is the version it made."""

    def close(self) -> None: ...
