"""Fits the label judge's calibration on the train half: ``python -m openclaw_rl.evals.fit_judge``.

Writes ``judge/calibration.json`` (or the file given) and prints the cross-validated accuracy. Cases
that serve a vote as its examples are left out of that vote's fit. The test half is never read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.evals.judge import Row, local_parts
from openclaw_rl.judge.calibration import CLASSES, fit
from openclaw_rl.judge.evidence import NUM_SETS, Evidence, case_of, read_cases
from openclaw_rl.judge.exchange import Exchange
from openclaw_rl.judge.rules import apply_rules
from openclaw_rl.judge.small import features, kind_of
from openclaw_rl.judge.voting import majority
from openclaw_rl.models import DEFAULT_MODEL

#: Chosen by cross-validation on the train half.
PENALTIES = {"user": 50.0, "tool": 10.0}
NUM_FOLDS = 10
KINDS = ("user", "tool")
_NUMBERS = list(range(1, NUM_SETS + 1))
#: (the labelled row, its features for each few-shot set)
Example = tuple[Row, list[list[float]]]


async def collect(model: str, rows: Sequence[Row]) -> dict[str, list[Example]]:
    """The evidence of every case, by kind of next state."""
    from tqdm import tqdm

    examples: dict[str, list[Example]] = {kind: [] for kind in KINDS}
    async with local_parts(model) as (engine, encode, renderer):
        evidence = Evidence(engine, encode, renderer)
        for row in tqdm(rows, desc="scoring the train half", file=sys.stderr):
            exchange = Exchange(case_of(row))
            examples[kind_of(exchange)].append((row, await features(evidence, exchange, _NUMBERS)))
    return examples


def fit_votes(examples: Sequence[Example], penalty: float) -> list[Any]:
    calibrations = []
    for number in _NUMBERS:
        usable = [
            (row, values[number - 1]) for row, values in examples if f"shot-{number}" not in row["tags"]
        ]
        calibrations.append(
            fit([values for _, values in usable], [row["label"] for row, _ in usable], penalty)
        )
    return calibrations


def cross_validate(examples: Sequence[Example], penalty: float) -> list[tuple[int, int]]:
    """(label, verdict with rules) of every case that is no example in a prompt, each judged unseen."""
    pairs = []
    for fold in range(NUM_FOLDS):
        held_out = examples[fold::NUM_FOLDS]
        calibrations = fit_votes([item for item in examples if item not in held_out], penalty)
        for row, values in held_out:
            if any(tag.startswith("shot-") for tag in row["tags"]):
                continue
            rule = apply_rules(case_of(row))
            odds = [one.probabilities(value) for one, value in zip(calibrations, values, strict=True)]
            votes = [CLASSES[one.index(max(one))] for one in odds]
            pairs.append((int(row["label"]), rule.score if rule else majority(votes)))
    return pairs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent.parent / "judge" / "calibration.json"
    )
    options = parser.parse_args(arguments)
    examples = asyncio.run(collect(options.model, read_cases("train")))
    data: dict[str, Any] = {"model": options.model, "penalties": PENALTIES}
    for kind in KINDS:
        pairs = cross_validate(examples[kind], PENALTIES[kind])
        right = sum(label == verdict for label, verdict in pairs)
        print(f"{kind}: {right} of {len(pairs)} right in {NUM_FOLDS}-fold cross-validation", file=sys.stderr)
        data[kind] = [one.to_json() for one in fit_votes(examples[kind], PENALTIES[kind])]
    options.out.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
