"""From a verdict to signal, from signal to a step, from a step to a version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from openclaw_rl.types.base import EVERYONE, FloatArray, IntArray, Json, Scope
from openclaw_rl.types.capture import TurnRecord
from openclaw_rl.types.engine import Weights
from openclaw_rl.types.judging import Verdict


@dataclass(frozen=True, slots=True)
class Lesson:
    """A judged turn, as an algorithm sees it."""

    turn: TurnRecord
    verdict: Verdict
    hinted: Callable[[str], list[int] | None]
    """The prompt's ids with a hint added to the user's last message; None where it cannot be rebuilt."""
    corrected: Lesson | None = None
    """What this reply made up for: the first of the replies that were complained about right before it."""
    peers: tuple[int, ...] = ()
    """Verdicts on the other answers to the same request, as far as they are judged."""
    wishes: tuple[str, ...] = ()
    """All that this person wishes for now, oldest first, this turn's hint included."""
    asks: Callable[[str, int], list[Ask]] = lambda wish, number: []
    """Requests to teach a wish on, at most so many: this one, the person's others, everyday ones."""
    standing: Standing | None = None
    """For a step in an environment: how it went, beside the other attempts at the same task."""


@dataclass(frozen=True, slots=True)
class Standing:
    """An attempt's reward and a step's verdict, each among those of its group."""

    reward: float
    rewards: tuple[float, ...]
    """Of all attempts, this one's included."""
    process: float | None
    """The step's verdict times its confidence; None where the judge failed."""
    processes: tuple[float, ...]
    """Of all steps of all attempts, this one's included."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of an episode."""

    turn: TurnRecord
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Attempt:
    """An episode that has come to its end."""

    turn_id: str
    """Its last."""
    reward: float | None
    """None where something else than the model failed."""
    failure: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class AttemptGroup:
    """All attempts at one task that are compared with each other."""

    id: str
    scope: Scope
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as it is, and as a teacher gets it who knows what is wished for."""

    prompt_ids: list[int]
    hinted_ids: list[int]
    text: str = ""
    """What was asked last, in words."""
    turn_id: str = ""
    """Whose request it is; empty for an everyday one, which is nobody's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A teacher's reply: its tokens, and what it held likely at each of them."""

    ids: list[int]
    logprobs: list[float]
    top_ids_NK: IntArray
    top_logprobs_NK: FloatArray
    text: str
    finished: bool
    """Whether it came to its end by itself."""


class Scorer(Protocol):
    """Raw log-probs of chosen tokens under the teacher."""

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching: ...


class Teacher(Scorer, Protocol):
    """One that can also be asked to answer."""

    async def answer(self, prompt_ids: list[int], number: int, seed: int) -> list[Answer]:
        """Several answers to one prompt."""

    def encode(self, text: str, *, ends: bool = True) -> list[int]:
        """A text as the tokens of a reply; ``ends``: nothing comes after it."""

    async def mean_logprob(self, prompt_ids: list[int], reply_ids: list[int]) -> float:
        """Of a reply's tokens, on average."""

    def degenerate(self, text: str) -> bool:
        """Whether a reply has fallen apart."""


@dataclass(frozen=True, slots=True)
class Teaching:
    """What the teacher thinks at each position of a reply."""

    logprobs_NK: FloatArray
    """Of the tokens that were asked for."""
    top_ids_NK: IntArray
    """Its own likeliest tokens, as many as were asked for."""
    top_logprobs_NK: FloatArray
    """Of those."""


#: In ``old_NK``, which is never positive: the version that sampled the reply did not record this candidate.
NOT_RECORDED = 1.0
#: In a signal of log-probs, which are never positive: this candidate has none.
NO_SIGNAL = 1.0

Kind = Literal["own", "hinted", "accepted", "anchor", "rollout", "upstream"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where an example comes from."""

    kind: Kind
    """``own``: a reply as it was given. ``hinted``: one that a hinted teacher gave. ``accepted``: one that
    was accepted later, as the answer to an earlier request. ``anchor``: what shall stay as it is.
    ``rollout``: a step in an environment. ``upstream``: a reply of a model elsewhere, learned as text."""
    turn_ids: tuple[str, ...]
    """The turns it was made from. The first is where it is filed; another is whose request it answers."""
    user: str = ""
    score: int = 0
    """The verdict's."""
    hint: str | None = None
    """The one that was distilled."""
    policy_version: int | None = None
    """Which version sampled the reply; None where no version of ours did."""
    compared: bool = False
    """Its signal is measured against the other answers to the same request."""
    wish_ids: tuple[str, ...] = ()
    """The turns in which the hint's words were said, where the teacher was told all that is wished for."""


@dataclass(frozen=True, slots=True)
class Example:
    """What a step learns from: a prompt, a reply, and a signal for every token of it.

    Row i is the reply's i-th token, column k one candidate there with its own signal. The first column is
    the token of the reply itself. What the signal means is the loss's business.
    """

    prompt_ids: list[int]
    reply_ids: list[int]
    ids_NK: IntArray
    old_NK: FloatArray
    """Raw log-probs under the version that sampled the reply, or ``NOT_RECORDED``."""
    signal_NK: FloatArray
    """Advantages, or a teacher's log-probs; zero (or ``NO_SIGNAL``) where a candidate has nothing to say."""
    source: Source
    num_free: int
    """Tokens that no grammar forced: as many share the example's weight."""
    weight: float = 1.0
    strength: float = 1.0
    """0..1: how much of a reason this example is to take a step at all."""
    scope: Scope = EVERYONE


_NEXT_TO_NOTHING = 1e-12


def distribution_example(
    ask: Ask, answer: Answer, source: Source, own_share: float | FloatArray = 0.0, weight: float = 1.0
) -> Example:
    """An answer as something to learn from: what its giver held likely at every token.

    ``own_share`` of it goes to the token that was given: one for all, or one for each.
    """
    import numpy as np  # these files are read where there is none

    own_share = np.reshape(np.asarray(own_share, np.float32), (-1, 1))

    own = np.array([[token] for token in answer.ids], np.int32)
    is_own = answer.top_ids_NK == own
    likely = np.exp(answer.top_logprobs_NK) * (1 - own_share) + is_own * own_share
    said = np.exp(np.array([answer.logprobs], np.float32)).T * (1 - own_share) + own_share
    # The given token has a column of its own only where it is not among the likeliest.
    missing = ~is_own.any(axis=1, keepdims=True) & (own_share > 0)
    # What nothing is left of stays a finite number.
    named = np.log(np.maximum(likely, _NEXT_TO_NOTHING))
    signal = np.concatenate([np.where(missing, np.log(said), NO_SIGNAL), named], axis=1)
    return Example(
        ask.prompt_ids,
        answer.ids,
        np.concatenate([own, answer.top_ids_NK], axis=1),
        np.full(signal.shape, NOT_RECORDED, np.float32),
        np.minimum(signal, np.where(signal == NO_SIGNAL, NO_SIGNAL, 0.0)).astype(np.float32),
        source,
        num_free=len(answer.ids),
        weight=weight,
    )


def text_example(prompt_ids: list[int], reply_ids: list[int], source: Source, strength: float) -> Example:
    """A text as something to learn from: each of its tokens, for certain; nobody's log-probs are known."""
    import numpy as np

    ids, shape = np.array([[token] for token in reply_ids], np.int32), (len(reply_ids), 1)
    unknown, certain = np.full(shape, NOT_RECORDED, np.float32), np.zeros(shape, np.float32)
    return Example(prompt_ids, reply_ids, ids, unknown, certain, source, len(reply_ids), strength=strength)


@dataclass(frozen=True, slots=True)
class SettledTurn:
    """What a judged turn came to: examples, or a reason why not."""

    turn: TurnRecord
    score: int
    examples: Sequence[Example] = ()
    reason: str | None = None
    verdict: int = 0
    """The number of the verdict that it was made from."""


class Loss(Protocol):
    """Loss per position from log-probs now, before, and the signal; torch tensors, all ``[N, K]``.

    Examples with fewer candidates than others get columns with a signal of 0, or of the loss's ``padding``
    where it has one; such a column must count for nothing.
    """

    def __call__(self, new_NK: Any, old_NK: Any, signal_NK: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Batch:
    examples: Sequence[Example]
    loss: str | Loss = "clipped-surrogate"
    """The name of one that the trainer has; a Python function only where the trainer takes them."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The loss's own, such as ``clip_low``; its defaults where not named."""
    scale: float = 1.0
    """Of the learning rate: a batch with little to say takes a small step."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm asks of the system."""

    loss: str = "clipped-surrogate"
    batch_size: int = 4
    """Examples per step, unless the settings say otherwise."""
    replay: int | None = None
    """Accepted replies that a step hears again by default; None where examples must not be heard twice."""
    scores: bool = False
    """Asks the teacher for log-probs of chosen tokens."""
    generates: bool = False
    """Asks the teacher for answers of its own."""
    shapes: bool = False
    """Puts answers into the forms that are wished for, so the model need not be able to when told."""
    steps: int = 1
    """Optimizer steps that make a version; each takes ``step_examples`` of all there are, at random."""
    step_examples: int = 0
    """0: all, in each."""
    anchors: int = 0
    """Examples of what shall stay as it is, beside those, in each."""
    pool: int = 0
    """Earlier examples of the same wishes that a version may be made of, too."""


class Algorithm(Protocol):
    """Turns judged turns into per-token signal. Short on purpose: one file each."""

    @property
    def needs(self) -> Needs: ...

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        """Empty: this turn has nothing to teach."""

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
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
    scope: Scope = EVERYONE


@dataclass(frozen=True, slots=True)
class TrainerCapabilities:
    losses: frozenset[str]
    """Names that ``Batch.loss`` may have."""
    custom_losses: bool = False
    """Whether it may be a Python function."""
    full_weights: bool = False
    makes: str = "file"
    """The URI scheme of its weights: ``file`` for a folder here."""


class Trainer(Protocol):
    """Changes weights; knows no algorithm by name. Synchronous: call it in one thread of its own."""

    capabilities: TrainerCapabilities

    def resume(self, weights: Weights | None) -> None:
        """Go on from a saved version, or from the base."""

    def step(self, batch: Batch, version: int) -> StepReport:
        """One optimizer step; ``version`` is the one it starts from."""

    def save(self, folder: Path, state: Json) -> str | None:
        """Keep weights that an engine can load, and everything ``resume`` needs, ``state`` included.

        In the folder, or elsewhere: then the result is their URI.
        """

    @property
    def state(self) -> Json:
        """The algorithm's own, as last saved."""


class Sink(Protocol):
    """Where numbers go, for people who have a place for them."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """The numbers of one step; ``step`` is the version it made."""

    def close(self) -> None: ...
