"""The optimizer steps that make a version, and which examples each of them uses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw_rl.types import Algorithm, Batch, Example, Json, Needs, StepReport, Trainer

#: The share of new examples in a step, where there are enough.
_NEW_SHARE = 2 / 3
#: A step is scaled by this for every consecutive candidate that failed the gate.
_SMALLER, _MOST_REJECTED = 0.7, 2


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """The examples a version is trained on."""

    new: list[Example]
    replayed: list[Example]
    """From earlier versions: accepted replies, or examples taught for the same wishes."""
    anchors: list[Example]
    num_rejected: int = 0
    """Consecutive candidates that failed the gate: each makes the steps smaller and adds anchors."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    report: StepReport
    scale: float
    batch: Batch
    """The last step's new examples, as the algorithm weighted them."""


def take_steps(
    trainer: Trainer, algorithm: Algorithm, training_set: TrainingSet, state: Json, seed: int, parent: int
) -> TrainedStep:
    """Deterministic: after a crash the same seed gives the same steps with the same examples."""
    needs, chance = algorithm.needs, random.Random(seed)
    told = _Deck([example for example in training_set.new if example.is_told], chance)
    some = [example for example in training_set.new if not example.is_told]
    decks = _Deck(some, chance), _Deck(training_set.replayed, chance)
    result: TrainedStep | None = None
    for _ in range(needs.steps):
        new, replayed = _choose(needs, training_set, *decks)
        more = told.draw(needs.step_told or len(told.examples))
        made = algorithm.batch([*more, *new], state)
        number = needs.anchors * (1 + min(training_set.num_rejected, _MOST_REJECTED))
        anchors = chance.sample(training_set.anchors, min(number, len(training_set.anchors)))
        made = replace(made, scale=made.scale * _SMALLER**training_set.num_rejected)
        report = trainer.step(replace(made, examples=[*made.examples, *replayed, *anchors]), parent)
        result = TrainedStep(report if result is None else _add(result.report, report), made.scale, made)
        if not report.finite:
            break
    assert result is not None
    return result


class _Deck:
    """Draws examples without replacement and shuffles again when all were drawn: each is used equally often.

    Independent draws would use some of a complaint's 16 answers twice and others six times in eight steps.
    """

    def __init__(self, examples: Sequence[Example], chance: random.Random) -> None:
        self.examples, self._chance = list(examples), chance
        self._left: list[int] = []

    def draw(self, number: int) -> list[Example]:
        """So many different examples, or all if there are fewer."""
        drawn: list[int] = []
        while len(drawn) < min(number, len(self.examples)):
            if not self._left:
                # Those drawn for this step come last, so that no step has one twice.
                fresh = self._chance.sample(range(len(self.examples)), len(self.examples))
                self._left = sorted(fresh, key=lambda n: n not in drawn)
            drawn.append(self._left.pop())
        return [self.examples[n] for n in drawn]


def _choose(
    needs: Needs, training_set: TrainingSet, new: _Deck, replayed: _Deck
) -> tuple[list[Example], list[Example]]:
    """The examples of one step, besides those that are in every step."""
    if not needs.step_examples:
        return new.examples, training_set.replayed
    number = round(_NEW_SHARE * needs.step_examples) if training_set.replayed else needs.step_examples
    rest = needs.step_examples - min(number, len(training_set.new))
    return new.draw(number), replayed.draw(rest)


def _add(before: StepReport, now: StepReport) -> StepReport:
    """The last step's loss and norms, with the total cost of all steps."""
    return replace(
        now,
        num_tokens=before.num_tokens + now.num_tokens,
        num_reply_tokens=before.num_reply_tokens + now.num_reply_tokens,
        forward_s=before.forward_s + now.forward_s,
        backward_s=before.backward_s + now.backward_s,
        total_s=before.total_s + now.total_s,
    )


def find_factors(before: Sequence[Example], after: Sequence[Example]) -> dict[str, float]:
    """The factor by which the algorithm scaled each sample in the batch; unchanged samples are left out."""
    found: dict[str, float] = {}
    if len(before) != len(after):  # the step used only some; such algorithms scale none
        return found
    for old, new in zip(before, after, strict=True):
        total = float(abs(old.signal_NK).sum())
        if new is not old and total:
            sign = 1.0 if float((old.signal_NK * new.signal_NK).sum()) >= 0 else -1.0
            found[old.source.turn_ids[0]] = sign * float(abs(new.signal_NK).sum()) / total
    return found
