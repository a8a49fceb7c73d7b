"""How good is a judge? Accuracy, agreement, validity, cost and resistance to injection.

``evaluate_judge`` measures any Judge on labelled cases. ``run`` is the command ``openclaw-rl eval judge``,
which also builds the embedded engine and the judge. A case that the judge could not judge counts as wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.judge import JudgeParts, create_judge
from openclaw_rl.judge.shots import case_of, read_cases
from openclaw_rl.judge.voting import agreement
from openclaw_rl.models import default_cache_dir, eos_ids, resolve_model
from openclaw_rl.types import Judge, JudgeError, Verdict

Row = dict[str, Any]
CLASSES = (1, 0, -1)
INJECTIONS = ("injection", "injection-heldout")


@dataclass(slots=True)
class Report:
    """Rates are over all cases unless the name says otherwise."""

    accuracy: float
    num_cases: int
    negative_accuracy: float
    """Accuracy of "negative or not"."""
    per_class: dict[str, dict[str, float]]
    """Recall, precision and count by label."""
    confusion: dict[str, dict[str, int]]
    """label → verdict → count; ``none`` is a case without a verdict."""
    validity: float
    """Share of cases with a verdict."""
    vote_agreement: float
    """Share of vote pairs that agree, over the cases decided by votes."""
    by_source: dict[str, dict[str, float]]
    mean_latency_s: float
    max_latency_s: float
    cpu_s_per_vote: float
    num_votes: int
    injections: dict[str, dict[str, int]]
    """By set of attacks: the number of attacks, and how many changed a verdict."""
    moved: list[str] = field(default_factory=list)
    errors: list[Row] = field(default_factory=list)
    """The cases judged wrongly."""


@dataclass(slots=True)
class _Judged:
    row: Row
    verdict: Verdict | None
    latency_s: float
    cpu_s: float


async def evaluate_judge(
    judge: Judge,
    cases: Sequence[Row],
    injections: Mapping[str, Sequence[Row]],
    progress: Callable[[], None] = lambda: None,
) -> Report:
    """One case at a time, so that latency and CPU time can be attributed to it."""
    judged = [await _judge(judge, row, progress) for row in cases]
    report = _report(judged)
    for name, rows in injections.items():
        moved = [row for row in rows if await _is_moved(judge, row, progress)]
        report.injections[name] = {"attacks": len(rows), "moved": len(moved)}
        report.moved += [f"{name}: {_attack(row)}" for row in moved]
    return report


async def _judge(judge: Judge, row: Row, progress: Callable[[], None]) -> _Judged:
    wall, cpu = time.monotonic(), time.process_time()
    verdict: Verdict | None
    try:
        verdict = await judge.evaluate(case_of(row))
    except JudgeError:
        verdict = None
    progress()
    return _Judged(row, verdict, time.monotonic() - wall, time.process_time() - cpu)


async def _is_moved(judge: Judge, row: Row, progress: Callable[[], None]) -> bool:
    base = await _judge(judge, row, progress)
    injected = await _judge(judge, {**row, **row["injected"]}, progress)
    return _score(base.verdict) != _score(injected.verdict)


def _score(verdict: Verdict | None) -> int | None:
    return verdict.score if verdict is not None and verdict.trainable else None


def _attack(row: Row) -> str:
    """The injected text."""
    part = row["injected"].get("next_state") or [{"content": row["injected"]["reply"]}]
    return str(part[-1]["content"])[:160]


def _report(judged: Sequence[_Judged]) -> Report:
    pairs = [(int(item.row["label"]), _score(item.verdict)) for item in judged]
    voted = [item for item in judged if item.verdict is not None and item.verdict.votes]
    votes = sum(len(item.verdict.votes) for item in voted if item.verdict)
    latencies = [item.latency_s for item in voted] or [item.latency_s for item in judged] or [0.0]
    return Report(
        accuracy=_share(label == score for label, score in pairs),
        num_cases=len(pairs),
        negative_accuracy=_share(score is not None and (label < 0) == (score < 0) for label, score in pairs),
        per_class={str(label): _class_figures(pairs, label) for label in CLASSES},
        confusion={str(label): _confusion_row(pairs, label) for label in CLASSES},
        validity=_share(score is not None for _, score in pairs),
        vote_agreement=_mean([agreement(item.verdict.votes) for item in voted if item.verdict])
        if voted
        else 1.0,
        by_source=_by_source(judged),
        mean_latency_s=round(_mean(latencies), 4),
        max_latency_s=round(max(latencies), 4),
        cpu_s_per_vote=round(sum(item.cpu_s for item in voted) / votes, 4) if votes else 0.0,
        num_votes=votes,
        injections={},
        errors=[_error(item) for item in judged if _score(item.verdict) != int(item.row["label"])],
    )


def _class_figures(pairs: Sequence[tuple[int, int | None]], label: int) -> dict[str, float]:
    mine = [score == label for truth, score in pairs if truth == label]
    claimed = [truth == label for truth, score in pairs if score == label]
    return {"recall": _share(mine), "precision": _share(claimed), "cases": len(mine)}


def _confusion_row(pairs: Sequence[tuple[int, int | None]], label: int) -> dict[str, int]:
    counts = Counter("none" if score is None else str(score) for truth, score in pairs if truth == label)
    return {key: counts[key] for key in ("1", "0", "-1", "none")}


def _by_source(judged: Sequence[_Judged]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[bool]] = {}
    for item in judged:
        source = item.verdict.source if item.verdict is not None else "none"
        groups.setdefault(source, []).append(_score(item.verdict) == int(item.row["label"]))
    return {name: {"cases": len(hits), "accuracy": _share(hits)} for name, hits in sorted(groups.items())}


def _error(item: _Judged) -> Row:
    state = item.row.get("next_state") or [{"content": ""}]
    return {
        "label": item.row["label"],
        "verdict": _score(item.verdict),
        "next": str(state[-1].get("content"))[:160],
    }


def _share(hits: Any) -> float:
    return round(_mean([float(hit) for hit in hits]), 4)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# --- the command -----------------------------------------------------------------------------


def run(options: argparse.Namespace, config: Config) -> int:
    """Measure and print; 0 when it could be measured."""
    cases = load_cases(options.cases) if options.cases else read_cases("test")
    injections = {name: read_cases(name)[: options.limit] for name in INJECTIONS}
    report = asyncio.run(_measure(config, cases[: options.limit], injections))
    print(json.dumps(asdict(report), ensure_ascii=False, indent=2) if options.json else describe(report))
    return 0


def load_cases(path: Path) -> list[Row]:
    """Labelled cases from a file; ValueError names the first invalid line."""
    rows = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            case_of(row)
            if int(row["label"]) not in CLASSES:
                raise ValueError(f"label {row['label']} is none of 1, 0, -1")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}:{number}: not a labelled case ({type(error).__name__}: {error})"
            ) from error
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no cases")
    return rows


async def _measure(config: Config, cases: Sequence[Row], injections: Mapping[str, Sequence[Row]]) -> Report:
    from tqdm import tqdm

    total = len(cases) + 2 * sum(len(rows) for rows in injections.values())
    async with built_judge(config) as judge:
        with tqdm(total=total, desc="judging", file=sys.stderr) as bar:
            return await evaluate_judge(judge, cases, injections, lambda: bar.update() and None)


@asynccontextmanager
async def built_judge(config: Config) -> AsyncIterator[Judge]:
    settings = config.judge
    if settings.judge in ("rules", "endpoint"):
        judge = create_judge(settings.judge, JudgeParts(settings))
        yield judge
        await judge.close()
        return
    async with local_parts(settings.judge_model or config.engine.model) as (engine, encode, renderer):
        judge = create_judge(settings.judge, JudgeParts(settings, engine, encode, renderer))
        # The constant few-shot prefixes are read once in a judge's life, not once per case.
        await _judge(judge, read_cases("train")[0], lambda: None)
        yield judge
        await judge.close()


def load_model(model: str, **options: Any) -> tuple[Any, Callable[[str], list[int]], Any]:
    """The embedded engine (with one thread: costs are stated per core), its encoder and its renderer."""
    from transformers import AutoConfig, AutoTokenizer

    from openclaw_rl.engine.local import LocalEngine
    from openclaw_rl.engine.local_options import LocalEngineOptions
    from openclaw_rl.render import create_renderer

    path = resolve_model(model, default_cache_dir())
    tokenizer = AutoTokenizer.from_pretrained(path)
    renderer = create_renderer(tokenizer, AutoConfig.from_pretrained(path).model_type, None, eos_ids(path))
    engine = LocalEngine(path, LocalEngineOptions(**{"num_threads": 1, **options}))
    return engine, lambda text: list(tokenizer.encode(text, add_special_tokens=False)), renderer


@asynccontextmanager
async def local_parts(
    model: str, **options: Any
) -> AsyncIterator[tuple[Any, Callable[[str], list[int]], Any]]:
    engine, encode, renderer = load_model(model, **options)
    try:
        yield engine, encode, renderer
    finally:
        await engine.close()


def describe(report: Report) -> str:
    lines = [
        f"accuracy          {report.accuracy:.1%} of {report.num_cases} cases",
        f"negative or not   {report.negative_accuracy:.1%}",
        f"validity          {report.validity:.1%} with a verdict",
        f"vote agreement    {report.vote_agreement:.1%} of pairs",
        f"latency           {report.mean_latency_s:.2f} s mean, {report.max_latency_s:.2f} s at most",
        f"CPU               {report.cpu_s_per_vote:.2f} s per vote ({report.num_votes} votes)",
        *(
            f"{name:<17} {counts['moved']} of {counts['attacks']} moved a verdict"
            for name, counts in report.injections.items()
        ),
        "",
        "label    recall  precision | verdict:   1     0    -1  none",
    ]
    for label in CLASSES:
        figures, row = report.per_class[str(label)], report.confusion[str(label)]
        counts = "".join(f"{row[key]:6d}" for key in ("1", "0", "-1", "none"))
        lines.append(f"{label:>5}   {figures['recall']:6.1%}     {figures['precision']:6.1%} |     {counts}")
    lines += ["", "decided by"]
    lines += [
        f"  {name:<20} {f['cases']:4.0f} cases, {f['accuracy']:.1%} right"
        for name, f in report.by_source.items()
    ]
    return "\n".join(lines)
