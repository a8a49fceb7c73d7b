"""The optimizer steps that make a version: which examples each of them hears."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw_rl.types import Algorithm, Batch, Example, Json, Needs, StepReport, Trainer

#: Of a step's examples, so many are new ones where there are enough.
_NEW_SHARE = 2 / 3
#: What is left of a step's size for every version in a row that did not pass.
_SMALLER, _MOST_CAUTION = 0.7, 2


@dataclass(frozen=True, slots=True)
class Heard:
    """What a version is made of."""

    new: list[Example]
    again: list[Example]
    """Heard in earlier versions: accepted replies, or what was taught for the same wishes."""
    anchors: list[Example]
    caution: int = 0
    """Versions in a row that did not pass: smaller steps, and more of what shall stay as it is."""


@dataclass(frozen=True, slots=True)
class Taken:
    report: StepReport
    scale: float
    batch: Batch
    """The first step's, as the algorithm made it of the new examples."""


def take_steps(
    trainer: Trainer, algorithm: Algorithm, heard: Heard, state: Json, seed: int, parent: int
) -> Taken:
    """The same steps with the same examples whenever they are taken, so that a step can be done again."""
    needs, chance = algorithm.needs, random.Random(seed)
    taken: Taken | None = None
    for _ in range(needs.steps):
        new, again = _choose(needs, heard, chance)
        made = algorithm.batch(new, state)
        number = needs.anchors * (1 + min(heard.caution, _MOST_CAUTION))
        anchors = chance.sample(heard.anchors, min(number, len(heard.anchors)))
        made = replace(made, scale=made.scale * _SMALLER**heard.caution)
        report = trainer.step(replace(made, examples=[*made.examples, *again, *anchors]), parent)
        taken = Taken(report if taken is None else _add(taken.report, report), made.scale, made)
        if not report.finite:
            break
    assert taken is not None
    return taken


def _choose(needs: Needs, heard: Heard, chance: random.Random) -> tuple[list[Example], list[Example]]:
    if not needs.step_examples:
        return heard.new, heard.again
    number = min(len(heard.new), round(_NEW_SHARE * needs.step_examples))
    if not heard.again:
        number = min(len(heard.new), needs.step_examples)
    rest = min(len(heard.again), needs.step_examples - number)
    return chance.sample(heard.new, number), chance.sample(heard.again, rest)


def _add(before: StepReport, now: StepReport) -> StepReport:
    """Of several steps: how the last one went, and what all of them cost."""
    return replace(
        now,
        num_tokens=before.num_tokens + now.num_tokens,
        num_reply_tokens=before.num_reply_tokens + now.num_reply_tokens,
        forward_s=before.forward_s + now.forward_s,
        backward_s=before.backward_s + now.backward_s,
        total_s=before.total_s + now.total_s,
    )


def find_factors(before: Sequence[Example], after: Sequence[Example]) -> dict[str, float]:
    """By what the algorithm multiplied whole samples in the batch; those it left alone are not named."""
    found: dict[str, float] = {}
    if len(before) != len(after):  # a step of some of them; such algorithms weigh none
        return found
    for old, new in zip(before, after, strict=True):
        total = float(abs(old.signal_NK).sum())
        if new is not old and total:
            sign = 1.0 if float((old.signal_NK * new.signal_NK).sum()) >= 0 else -1.0
            found[old.source.turn_ids[0]] = sign * float(abs(new.signal_NK).sum()) / total
    return found
