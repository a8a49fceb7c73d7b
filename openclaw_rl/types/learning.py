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
    """The prompt ids with a hint added to the user's last message; None if they cannot be rebuilt."""
    corrected: Lesson | None = None
    """The turn this reply corrects: the first of the run of rejected replies right before it."""
    peers: tuple[int, ...] = ()
    """Scores of the other answers to the same request, where already judged."""
    wishes: tuple[str, ...] = ()
    """All current wishes of this user, oldest first, including this turn's hint."""
    asks: Callable[[str, int], list[Ask]] = lambda wish, number: []
    """Up to ``number`` requests to teach a wish on: this one, the user's others, everyday ones."""
    standing: Standing | None = None
    """For a step in an environment: how it compares with the other attempts at the same task."""


@dataclass(frozen=True, slots=True)
class Standing:
    """An attempt's reward and a step's verdict, each with those of its group."""

    reward: float
    rewards: tuple[float, ...]
    """Rewards of all attempts, including this one."""
    process: float | None
    """The step's score times its confidence; None if the judge failed."""
    processes: tuple[float, ...]
    """The same for all steps of all attempts, including this one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of an episode."""

    turn: TurnRecord
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Attempt:
    """A finished episode."""

    turn_id: str
    """Its last turn."""
    reward: float | None
    """None if something other than the model failed."""
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
    """A request as sent, and as the teacher sees it, with the wish stated."""

    prompt_ids: list[int]
    hinted_ids: list[int]
    text: str = ""
    """The text of the user's last message."""
    turn_id: str = ""
    """The turn the request comes from; empty for an everyday request."""
    right: tuple[str, ...] = ()
    """If not empty, a right answer contains one of these."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A teacher's reply: its tokens, and the teacher's most likely tokens at each position."""

    ids: list[int]
    logprobs: list[float]
    top_ids_NK: IntArray
    top_logprobs_NK: FloatArray
    text: str
    finished: bool
    """Whether it ended by itself, without being cut off."""


class Scorer(Protocol):
    """Raw log-probs of chosen tokens under the teacher."""

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching: ...


class Teacher(Scorer, Protocol):
    """A scorer that can also generate answers."""

    async def answer(self, prompt_ids: list[int], number: int, seed: int) -> list[Answer]:
        """Several answers to one prompt."""

    def encode(self, text: str, *, ends: bool = True) -> list[int]:
        """A text as reply tokens; ``ends``: the reply ends after it."""

    async def mean_logprob(self, prompt_ids: list[int], reply_ids: list[int]) -> float:
        """The mean log-prob of a reply's tokens."""

    def degenerate(self, text: str) -> bool:
        """Whether a reply is degenerate."""


@dataclass(frozen=True, slots=True)
class Teaching:
    """The teacher's log-probs at each position of a reply."""

    logprobs_NK: FloatArray
    """Log-probs of the requested tokens."""
    top_ids_NK: IntArray
    """The teacher's most likely tokens, as many as requested."""
    top_logprobs_NK: FloatArray
    """Log-probs of ``top_ids_NK``."""


#: Marks a candidate in ``old_NK`` for which the sampling version recorded no log-prob. Log-probs are never
#: positive, so 1 is free to use.
NOT_RECORDED = 1.0
#: Marks a candidate without a signal, where the signal is a log-prob.
NO_SIGNAL = 1.0

Kind = Literal["own", "hinted", "accepted", "anchor", "rollout", "upstream"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where an example comes from."""

    kind: Kind
    """``own``: a reply as delivered. ``hinted``: a reply by the hinted teacher. ``accepted``: a reply
    accepted later, as the answer to an earlier request. ``anchor``: behaviour that must not change.
    ``rollout``: a step in an environment. ``upstream``: a reply by an upstream model, learned as text."""
    turn_ids: tuple[str, ...]
    """The turns it was made from. It is stored under the first; a second one's request is what it answers."""
    user: str = ""
    score: int = 0
    """The verdict's score."""
    hint: str | None = None
    """The hint that was distilled."""
    policy_version: int | None = None
    """The version that sampled the reply; None if none of ours did."""
    compared: bool = False
    """Its signal is measured against the other answers to the same request."""
    wish_ids: tuple[str, ...] = ()
    """The turns that made the wishes in the teacher's prompt, if the teacher generated the answer."""


@dataclass(frozen=True, slots=True)
class Example:
    """What a step learns from: a prompt, a reply, and a signal for each reply token.

    Row i is the reply's i-th token; column k is one candidate at that position, with its own signal. The
    first column is the reply's own token. The loss defines what the signal means.
    """

    prompt_ids: list[int]
    reply_ids: list[int]
    ids_NK: IntArray
    old_NK: FloatArray
    """Raw log-probs under the version that sampled the reply, or ``NOT_RECORDED``."""
    signal_NK: FloatArray
    """Advantages, or a teacher's log-probs; 0 (or ``NO_SIGNAL``) for a candidate without a signal."""
    source: Source
    num_free: int
    """Tokens not forced by a grammar; the example's weight is divided among them."""
    weight: float = 1.0
    strength: float = 1.0
    """0..1: how much this example counts towards taking a step at all."""
    is_told: bool = False
    """Whether the steps of its first version use ``Needs.step_told`` of its kind, besides the others."""
    scope: Scope = EVERYONE


_NEXT_TO_NOTHING = 1e-12


def distribution_example(
    ask: Ask, answer: Answer, source: Source, own_share: float | FloatArray = 0.0, weight: float = 1.0
) -> Example:
    """An example from an answer: the teacher's distribution at every token.

    A share of ``own_share`` of the probability moves to the answer's own token: one value for all positions,
    or one for each.
    """
    import numpy as np  # late: this module is also imported where numpy is not installed

    own_share = np.reshape(np.asarray(own_share, np.float32), (-1, 1))

    own = np.array([[token] for token in answer.ids], np.int32)
    is_own = answer.top_ids_NK == own
    likely = np.exp(answer.top_logprobs_NK) * (1 - own_share) + is_own * own_share
    said = np.exp(np.array([answer.logprobs], np.float32)).T * (1 - own_share) + own_share
    # The answer's own token carries a signal in the first column only where it is not among the top ones.
    missing = ~is_own.any(axis=1, keepdims=True) & (own_share > 0)
    # The lower bound keeps the log finite where no probability is left.
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
    """An example from plain text: each token with probability 1; no log-probs were recorded."""
    import numpy as np

    ids, shape = np.array([[token] for token in reply_ids], np.int32), (len(reply_ids), 1)
    unknown, certain = np.full(shape, NOT_RECORDED, np.float32), np.zeros(shape, np.float32)
    return Example(prompt_ids, reply_ids, ids, unknown, certain, source, len(reply_ids), strength=strength)


@dataclass(frozen=True, slots=True)
class SettledTurn:
    """A judged turn with its examples, or the reason why there are none."""

    turn: TurnRecord
    score: int
    examples: Sequence[Example] = ()
    reason: str | None = None
    verdict: int = 0
    """The number of the verdict it was made from."""


class Loss(Protocol):
    """Loss per position from new log-probs, old log-probs and the signal; torch tensors, all ``[N, K]``.

    Examples with fewer candidates than others are padded with columns whose signal is 0, or the loss's
    ``padding`` if it has one; a padded column must not contribute to the loss.
    """

    def __call__(self, new_NK: Any, old_NK: Any, signal_NK: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Batch:
    examples: Sequence[Example]
    loss: str | Loss = "clipped-surrogate"
    """The name of one of the trainer's losses; a Python function only if the trainer accepts them."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The loss's parameters, such as ``clip_low``; the loss's defaults for those not named."""
    scale: float = 1.0
    """Scales the learning rate: a batch with a weak signal takes a small step."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm requires of the system."""

    loss: str = "clipped-surrogate"
    batch_size: int = 4
    """Examples per step, unless the settings override it."""
    replay: int | None = None
    """Accepted replies that a step replays by default; None if examples must not be trained on twice."""
    scores: bool = False
    """Needs the teacher's log-probs of chosen tokens."""
    generates: bool = False
    """Needs answers generated by the teacher."""
    shapes: bool = False
    """Rewrites answers into the wished form itself, so the hinted base need not be able to produce it."""
    steps: int = 1
    """Optimizer steps per version; each uses ``step_examples`` of the examples, chosen at random."""
    step_examples: int = 0
    """0: every step uses all examples."""
    step_told: int = 0
    """The same for new examples that are ``is_told``; each step has so many of them in addition."""
    anchors: int = 0
    """Anchor examples (behaviour that must not change) added to each step."""
    pool: int = 0
    """Earlier examples of the same wishes that a version may also train on."""


class Algorithm(Protocol):
    """Turns judged turns into per-token signals. Short on purpose: one file each."""

    @property
    def needs(self) -> Needs: ...

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        """Empty if there is nothing to learn from this turn."""

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        """Apply baselines, groups and the step's scale. ``state`` is saved with the weights and may be
        modified."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """Metrics of one step, for people and for the gate."""

    loss: float
    grad_norm: float
    finite: bool
    learning_rate: float
    num_samples: int
    num_tokens: int
    num_reply_tokens: int
    mismatch: float | None
    """Mean |trainer log-prob − engine log-prob| over tokens sampled by the version the step started from."""
    ratio: float
    """Mean ratio of new to old probability of the sampled tokens, before the step."""
    forward_s: float
    backward_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Policy:
    """One version of the weights, with its status and metrics."""

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
    """Names accepted in ``Batch.loss``."""
    custom_losses: bool = False
    """Whether ``Batch.loss`` may be a Python function."""
    full_weights: bool = False
    kl_to_base: bool = False
    """Whether it follows ``kl_coefficient``."""
    averages: bool = False
    """Whether it follows ``average_decay`` and saves the average with each version."""
    chooses_layers: bool = False
    """Whether it follows ``lora_targets`` and ``lora_alpha``."""
    makes: str = "file"
    """The URI scheme of its weights: ``file`` for a folder here."""


class Trainer(Protocol):
    """Updates weights; knows nothing of algorithms. Synchronous: call it from one dedicated thread."""

    capabilities: TrainerCapabilities

    def resume(self, weights: Weights | None) -> None:
        """Continue from a saved version, or from the base."""

    def step(self, batch: Batch, version: int) -> StepReport:
        """One optimizer step; ``version`` is the one it starts from."""

    def save(self, folder: Path, state: Json) -> str | None:
        """Save weights that an engine can load, and everything ``resume`` needs, including ``state``.

        The folder exists. Returns their URI if they are stored elsewhere than in ``folder``.
        """

    @property
    def state(self) -> Json:
        """The algorithm's state, as last saved."""


class Sink(Protocol):
    """A metrics backend."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Metrics of one step; ``step`` is the version it produced."""

    def close(self) -> None: ...
