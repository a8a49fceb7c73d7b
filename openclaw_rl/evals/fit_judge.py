"""Fits the label judge's calibration on the train half: ``python -m openclaw_rl.evals.fit_judge``.

Writes ``calibration.json`` and ``probe.json`` (which also uses the model's hidden states) and prints the
cross-validated accuracy. The files go into the package for the default model, else into the cache folder,
where the judge finds them. Both hold a digest of every input of the fit except the model. Cases that a vote
uses as few-shot examples are left out of that vote's fit. The test half is never read.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from openclaw_rl.config import JudgeConfig
from openclaw_rl.evals.judge import Row, local_parts
from openclaw_rl.judge.calibration import CLASSES, Calibration, fit
from openclaw_rl.judge.cues import tool_cues, user_cues
from openclaw_rl.judge.evidence import CONTINUATIONS, Evidence
from openclaw_rl.judge.exchange import CaseTexts
from openclaw_rl.judge.fitted import KINDS, PACKAGE, SIGNATURE_TEXT, own_folder, signature
from openclaw_rl.judge.label import features, kind_of, states
from openclaw_rl.judge.rules import apply_rules
from openclaw_rl.judge.shots import NUM_SETS, case_of, few_shot_set, read_cases, state_prompts
from openclaw_rl.judge.voting import majority
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model

#: Chosen by cross-validation on the train half: without and with the model's hidden states.
PENALTIES = {"user": 50.0, "tool": 10.0}
PROBE_PENALTIES = {"user": 0.2, "tool": 0.1}
#: The layer whose hidden states are used, as a fraction of the model's layers: 18 of the default model's 30.
STATE_DEPTH = 0.6
NUM_FOLDS = 10
_NUMBERS = list(range(1, NUM_SETS + 1))


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """A labelled row with its feature groups for each few-shot set: the evidence, then the hidden states."""

    row: Row
    votes: list[list[list[float]]]

    def vote(self, number: int, with_states: bool) -> list[list[float]]:
        groups = self.votes[number - 1]
        return groups if with_states else groups[:1]

    def is_shot(self, number: int | None = None) -> bool:
        start = "shot-" if number is None else f"shot-{number}"
        return any(tag.startswith(start) for tag in self.row["tags"])


@dataclass(frozen=True, slots=True)
class Collected:
    examples: dict[str, list[LabelledCase]]
    """By kind of next state."""
    layer: int
    signature: tuple[float, ...]


def inputs_digest(rows: Sequence[Row]) -> str:
    """Digest of every input of the fit except the model: labels, prompts as sent, cues, settings."""
    settings = [PENALTIES, PROBE_PENALTIES, STATE_DEPTH, CONTINUATIONS, SIGNATURE_TEXT]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for kind in KINDS:
        for number in _NUMBERS:
            digest.update(
                json.dumps([few_shot_set(kind, number).words, few_shot_set(kind, number).prefix]).encode()
            )
    for row in rows:
        exchange = CaseTexts(case_of(row))
        kind = kind_of(exchange)
        texts = [few_shot_set(kind, number).case_text(exchange) for number in _NUMBERS]
        shown = [state_prompts(kind, number, exchange) for number in _NUMBERS]
        signs = user_cues(exchange) if kind == "user" else tool_cues(exchange)
        digest.update(json.dumps([row["label"], row["tags"], texts, shown, signs]).encode())
    return digest.hexdigest()[:16]


async def collect(model: str, rows: Sequence[Row]) -> Collected:
    """Collect every case's features, and the signature by which the model is recognised."""
    from tqdm import tqdm

    examples: dict[str, list[LabelledCase]] = {kind: [] for kind in KINDS}
    config = json.loads((resolve_model(model, default_cache_dir()) / "config.json").read_text())
    layer = round(STATE_DEPTH * config["num_hidden_layers"])
    async with local_parts(model, num_threads=0) as (engine, encode, renderer):
        known_by = await signature(engine, encode)
        evidence = Evidence(engine, encode, renderer, layer)
        for row in tqdm(rows, desc="scoring the train half", file=sys.stderr):
            exchange = CaseTexts(case_of(row))
            counted = await features(evidence, exchange, _NUMBERS)
            shown = await states(evidence, exchange, _NUMBERS)
            votes = [[first, *others] for first, others in zip(counted, shown, strict=True)]
            examples[kind_of(exchange)].append(LabelledCase(row, votes))
    return Collected(examples, layer, known_by)


def fit_votes(examples: Sequence[LabelledCase], penalty: float, with_states: bool) -> list[Calibration]:
    """Group sizes matter only with hidden states: the evidence alone is one group."""
    calibrations = []
    for number in _NUMBERS:
        usable = [item for item in examples if not item.is_shot(number)]
        values = [item.vote(number, with_states) for item in usable]
        sizes = [len(group) for group in values[0]] if with_states else []
        rows = [list(chain.from_iterable(groups)) for groups in values]
        calibrations.append(fit(rows, [item.row["label"] for item in usable], penalty, sizes))
    return calibrations


def cross_validate(
    examples: Sequence[LabelledCase], penalty: float, with_states: bool
) -> list[tuple[int, int]]:
    """(label, verdict with rules) of every case that is not a few-shot example, each judged unseen."""
    pairs, threshold = [], JudgeConfig().majority_vote_threshold
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
            pairs.append((int(item.row["label"]), rule.score if rule else majority(votes, threshold)))
    return pairs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument(
        "--out", type=Path, help="folder for the two files [the package's, or one in the cache folder]"
    )
    options = parser.parse_args(arguments)
    out = options.out or (PACKAGE if options.model == DEFAULT_MODEL else own_folder(options.model))
    rows = read_cases("train")
    collected = asyncio.run(collect(options.model, rows))
    out.mkdir(parents=True, exist_ok=True)
    for name, penalties in (("calibration", PENALTIES), ("probe", PROBE_PENALTIES)):
        with_states = name == "probe"
        data: dict[str, Any] = {
            "model": options.model,
            "inputs": inputs_digest(rows),
            "layer": collected.layer,
            "signature": collected.signature,
        }
        for kind in KINDS:
            pairs = cross_validate(collected.examples[kind], penalties[kind], with_states)
            right = sum(label == verdict for label, verdict in pairs)
            sides = sum((label < 0) == (verdict < 0) for label, verdict in pairs)
            print(
                f"{name}, {kind}: {right} of {len(pairs)} right, {sides} negative or not, "
                f"in {NUM_FOLDS}-fold cross-validation",
                file=sys.stderr,
            )
            fitted = fit_votes(collected.examples[kind], penalties[kind], with_states)
            data[kind] = [one.to_json() for one in fitted]
        (out / f"{name}.json").write_text(json.dumps(data, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
