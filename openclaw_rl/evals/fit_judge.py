"""Fits the label judge's calibration on the train half: ``python -m openclaw_rl.evals.fit_judge``.

Writes ``judge/calibration.json`` and ``judge/probe.json`` (with the model's states) and prints the
cross-validated accuracy. Cases that serve a vote as its examples are left out of that vote's fit.
The test half is never read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from openclaw_rl.evals.judge import Row, local_parts
from openclaw_rl.judge.calibration import CLASSES, Calibration, fit
from openclaw_rl.judge.evidence import Evidence
from openclaw_rl.judge.exchange import Exchange
from openclaw_rl.judge.rules import apply_rules
from openclaw_rl.judge.shots import NUM_SETS, case_of, read_cases
from openclaw_rl.judge.small import features, kind_of, states
from openclaw_rl.judge.voting import majority
from openclaw_rl.models import DEFAULT_MODEL

#: Chosen by cross-validation on the train half; without and with the model's states.
PENALTIES = {"user": 50.0, "tool": 10.0}
PROBE_PENALTIES = {"user": 0.2, "tool": 0.1}
NUM_FOLDS = 10
KINDS = ("user", "tool")
_NUMBERS = list(range(1, NUM_SETS + 1))
_FOLDER = Path(__file__).parent.parent / "judge"


@dataclass(frozen=True, slots=True)
class Example:
    """A labelled row with, for each few-shot set, its groups of features: the evidence, then the states."""

    row: Row
    votes: list[list[list[float]]]

    def vote(self, number: int, with_states: bool) -> list[list[float]]:
        groups = self.votes[number - 1]
        return groups if with_states else groups[:1]

    def is_shot(self, number: int | None = None) -> bool:
        start = "shot-" if number is None else f"shot-{number}"
        return any(tag.startswith(start) for tag in self.row["tags"])


async def collect(model: str, rows: Sequence[Row]) -> dict[str, list[Example]]:
    """The evidence of every case, by kind of next state."""
    from tqdm import tqdm

    examples: dict[str, list[Example]] = {kind: [] for kind in KINDS}
    async with local_parts(model) as (engine, encode, renderer):
        evidence = Evidence(engine, encode, renderer)
        for row in tqdm(rows, desc="scoring the train half", file=sys.stderr):
            exchange = Exchange(case_of(row))
            counted = await features(evidence, exchange, _NUMBERS)
            shown = await states(evidence, exchange, _NUMBERS)
            votes = [[first, *others] for first, others in zip(counted, shown, strict=True)]
            examples[kind_of(exchange)].append(Example(row, votes))
    return examples


def fit_votes(examples: Sequence[Example], penalty: float, with_states: bool) -> list[Calibration]:
    """Groups share the weight only where there are states: the evidence alone is one group."""
    calibrations = []
    for number in _NUMBERS:
        usable = [item for item in examples if not item.is_shot(number)]
        values = [item.vote(number, with_states) for item in usable]
        sizes = [len(group) for group in values[0]] if with_states else []
        rows = [list(chain.from_iterable(groups)) for groups in values]
        calibrations.append(fit(rows, [item.row["label"] for item in usable], penalty, sizes))
    return calibrations


def cross_validate(examples: Sequence[Example], penalty: float, with_states: bool) -> list[tuple[int, int]]:
    """(label, verdict with rules) of every case that is no example in a prompt, each judged unseen."""
    pairs = []
    for fold in range(NUM_FOLDS):
        held_out = examples[fold::NUM_FOLDS]
        rest = [item for index, item in enumerate(examples) if index % NUM_FOLDS != fold]
        calibrations = fit_votes(rest, penalty, with_states)
        for item in held_out:
            if item.is_shot():
                continue
            rule = apply_rules(case_of(item.row))
            values = [list(chain.from_iterable(item.vote(number, with_states))) for number in _NUMBERS]
            odds = [one.probabilities(value) for one, value in zip(calibrations, values, strict=True)]
            votes = [CLASSES[one.index(max(one))] for one in odds]
            pairs.append((int(item.row["label"]), rule.score if rule else majority(votes)))
    return pairs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=_FOLDER, help="folder for the two files [the package's]")
    options = parser.parse_args(arguments)
    examples = asyncio.run(collect(options.model, read_cases("train")))
    for name, penalties in (("calibration", PENALTIES), ("probe", PROBE_PENALTIES)):
        with_states = name == "probe"
        data: dict[str, Any] = {"model": options.model, "penalties": penalties}
        for kind in KINDS:
            pairs = cross_validate(examples[kind], penalties[kind], with_states)
            right = sum(label == verdict for label, verdict in pairs)
            sides = sum((label < 0) == (verdict < 0) for label, verdict in pairs)
            print(
                f"{name}, {kind}: {right} of {len(pairs)} right, {sides} negative or not, "
                f"in {NUM_FOLDS}-fold cross-validation",
                file=sys.stderr,
            )
            fitted = fit_votes(examples[kind], penalties[kind], with_states)
            data[kind] = [one.to_json() for one in fitted]
        (options.out / f"{name}.json").write_text(json.dumps(data, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
