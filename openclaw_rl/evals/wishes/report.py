"""Tables from an evaluation's logs: each arm compared with the hinted base."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from openclaw_rl.evals.personalize.talk import ConversationLog, Row

#: A wish counts as learnable if the hinted base meets it at least ``MANAGED`` of the time, and as learned if
#: the arm is at most ``BELOW`` under the hinted base.
MANAGED, BELOW = 0.3, 0.10
IN_A_ROW = 3
#: A wish that was taken back is gone when its rate is at most this much above the untrained model's.
GONE = 0.15


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    wish: str
    seed: int
    kind: str
    told: float
    """Share of the hinted base's held-out replies that meet the wish."""
    plain: float
    note: float | None
    now: float
    trained: float
    unseen: float
    reached: int | None
    """Conversations until two versions in a row were within ``BELOW`` of the hinted base."""
    in_a_row: int | None
    jobs: float
    """Share of the checkable items with a system prompt still answered correctly."""
    facts: float
    """The same for plain items, relative to the hinted base."""
    topic: float
    topic_before: float
    broken: float
    broken_told: float
    versions: int
    rejected: int
    given_up: int | None
    """Conversations until the system reported that the model cannot do this."""
    seconds: float
    together: bool = False
    """Whether others used the same system at the same time."""

    @property
    def managed(self) -> bool:
        return self.told >= MANAGED


@dataclass(frozen=True, slots=True)
class Pair:
    """The same wish with the same seed, on a system of its own and on one that others use too."""

    alone: Result
    together: Result

    @property
    def difference(self) -> float:
        return self.together.now - self.alone.now


@dataclass(frozen=True, slots=True)
class Turn:
    """A wish after it was taken back, or after another one was added."""

    name: str
    story: str
    before: float
    """Share of replies that meet the first wish, before the change."""
    first: float
    second: float
    """Shares that meet the first and the second wish, at the end."""
    both: float
    shown: float
    """Share of replies that still show the first wish at the end, on topic or not."""
    untold: float
    """The same for the untrained model."""
    told: float
    """Share for the hinted base: the second wish, or the first if there is no second."""
    until: int | None
    """Conversations after the change until the wish that was taken back is gone, or the new one is met."""


def write(out: Path) -> str:
    results, turns = collect(out), collect_turns(out)
    alone = [result for result in results if not result.together]
    together = [result for result in results if result.together]
    parts = [
        table(alone),
        f"Three people with a system between them:\n\n{table(together)}" if together else "",
        pair_table(pairs(results)),
        turn_table(turns),
    ]
    text = "\n".join(part for part in parts if part)
    (out / "report.md").write_text(text, encoding="utf-8")
    return text


def collect(out: Path) -> list[Result]:
    base = ConversationLog(out / "baselines.jsonl")
    told = {row["wish"]: row for row in base.of("told")}
    every = base.of("items")[-1]["right"]
    found = []
    for folder in sorted(out.glob("arms/*")):
        log, facts = ConversationLog(folder / "log.jsonl"), json.loads((folder / "arm.json").read_text())
        if log.of("final") and facts.get("story", "alone") in ("alone", "together"):
            found.append(_result(folder.name, facts, log, told[facts["wish"]], base, every))
    return found


def collect_turns(out: Path) -> list[Turn]:
    told = {row["wish"]: row for row in ConversationLog(out / "baselines.jsonl").of("told")}
    found = []
    for folder in sorted(out.glob("arms/*")):
        log, facts = ConversationLog(folder / "log.jsonl"), json.loads((folder / "arm.json").read_text())
        if log.of("final") and log.of("turned"):
            found.append(_turn(folder.name, facts, log, told))
    return found


def _turn(name: str, facts: Row, log: ConversationLog, told: dict[str, Row]) -> Turn:
    final, turned = log.of("final")[-1]["rows"], log.of("turned")[-1]["number"]
    before = [row for row in log.of("look") if row["number"] < turned]
    second = facts["second"]
    measure, untold = told[second or facts["wish"]], told[facts["wish"]].get("untold", 0.0)
    level = share(measure["rows"])

    def settled(rows: Sequence[Row]) -> bool:
        if second is None:
            return bool(_shown(rows) <= untold + GONE)
        return bool(share(rows, 1) >= level - BELOW)

    until = next(
        (
            row["number"] - turned + 1
            for row in log.of("look")
            if row["number"] >= turned and settled(row["rows"])
        ),
        None,
    )
    return Turn(
        name=name,
        story=facts["story"],
        before=share(before[-1]["rows"]) if before else 0.0,
        first=share(final),
        second=share(final, 1) if second else 0.0,
        both=_mean([all(row["met"]) for row in final]),
        shown=_shown(final),
        untold=untold,
        told=level,
        until=until,
    )


def _shown(rows: Sequence[Row]) -> float:
    return _mean([row["shows"][0] for row in rows])


def _result(
    name: str, facts: Row, log: ConversationLog, told: Row, base: ConversationLog, every: Sequence[bool]
) -> Result:
    final = log.of("final")[-1]["rows"]
    end: Row = log.of("end")[-1] if log.of("end") else {"policies": [], "seconds": 0.0}
    policies = [row for row in end["policies"] if row["version"]]
    level = share(told["rows"])
    bound = [n % 2 == 1 for n in range(len(every)) if every[n]]
    right = log.of("items")[-1]["right"] if log.of("items") else []
    now = _kept(right, bound, True), _kept(right, bound, False)
    then = _kept(told["right"], bound, False)
    plain = base.of("plain")[-1]["rows"]
    return Result(
        name=name,
        wish=facts["wish"],
        seed=facts["seed"],
        kind=facts["kind"],
        told=level,
        plain=0.0,
        note=share(told["note"]) if told["note"] else None,
        now=share(final),
        trained=share([row for row in final if row["form"] == "trained"]),
        unseen=share([row for row in final if row["form"] != "trained"]),
        reached=_reached(log, level),
        in_a_row=_in_a_row(log),
        jobs=now[0],
        facts=now[1] / max(0.01, then),
        topic=_mean([row["topic"] for row in final]),
        topic_before=_mean([row["topic"] for row in plain]),
        broken=_mean([row["degenerate"] for row in final]),
        broken_told=_mean([row["degenerate"] for row in told["rows"]]),
        versions=sum(row["status"] in ("serving", "retired") for row in policies),
        rejected=sum(row["status"] == "rejected" for row in policies),
        given_up=_given_up(log),
        seconds=end["seconds"],
        together=facts.get("story") == "together",
    )


def _reached(log: ConversationLog, level: float) -> int | None:
    looks = [(row["number"] + 1, share(row["rows"]) >= level - BELOW) for row in log.of("look")]
    pairs = pairwise([*looks, (0, share(log.of("final")[-1]["rows"]) >= level - BELOW)])
    return next((number for (number, near), (_, still) in pairs if near and still), None)


def _in_a_row(log: ConversationLog) -> int | None:
    streak = 0
    for count, row in enumerate(log.of("conversation"), 1):
        streak = streak + 1 if row["first"] else 0
        if streak == IN_A_ROW:
            return count
    return None


def _given_up(log: ConversationLog) -> int | None:
    return next((row["number"] + 1 for row in log.of("given up")), None)


def _kept(right: Sequence[bool], bound: Sequence[bool], which: bool) -> float:
    return _mean([r for r, b in zip(right, bound, strict=True) if b == which]) if right else 0.0


def share(rows: Sequence[Row], which: int = 0) -> float:
    """Share of held-out replies that meet a wish."""
    return _mean([row["met"][which] for row in rows])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def table(results: Sequence[Result]) -> str:
    head = (
        "| wish | told base | after | trained / unseen form | reached | three in a row | jobs | facts ÷ told "
        "| topic before → after | broken (told) | versions (rejected) | said it cannot |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    lines = [
        f"| {r.name} | {r.told:.2f} | {r.now:.2f} | {r.trained:.2f} / {r.unseen:.2f} | {r.reached or '–'} | "
        f"{r.in_a_row or '–'} | {r.jobs:.2f} | {r.facts:.2f} | {r.topic_before:.2f} → {r.topic:.2f} | "
        f"{r.broken:.2f} ({r.broken_told:.2f}) | {r.versions} ({r.rejected}) | {r.given_up or '–'} |"
        for r in results
    ]
    return "\n".join([head, *lines, "", summary(results)]) + "\n"


def summary(results: Sequence[Result]) -> str:
    managed, others = [r for r in results if r.managed], [r for r in results if not r.managed]
    lines = [
        f"{len(results)} arms, {len(managed)} of wishes that the told base meets at least {MANAGED:.0%}."
    ]
    if managed:
        near = [r for r in managed if r.reached is not None]
        until = [r.reached or 0 for r in near]
        lines.append(
            f"Within {BELOW:.2f} of the told base, two versions in a row: {len(near)} of {len(managed)}; "
            f"conversations until then: {statistics.median(until) if until else '–'} (median). "
            f"Unseen ÷ trained form: {_mean([r.unseen / max(0.01, r.trained) for r in managed]):.2f}."
        )
    if results:
        lines.append(
            f"Jobs kept: {_mean([r.jobs for r in results]):.2f} on average, "
            f"{min(r.jobs for r in results):.2f} at least; "
            f"facts against the told base: {_mean([r.facts for r in results]):.2f}."
        )
    if others:
        said = sum(r.given_up is not None for r in others)
        lines.append(f"Of {len(others)} wishes that it does not manage when told, {said} were said so.")
    return "\n".join(lines)


def pairs(results: Sequence[Result]) -> list[Pair]:
    """Arms that were run both ways; an arm without its counterpart is left out."""
    alone = {(r.wish, r.seed): r for r in results if not r.together}
    return [Pair(alone[r.wish, r.seed], r) for r in results if r.together and (r.wish, r.seed) in alone]


def pair_table(paired: Sequence[Pair]) -> str:
    """One row per wish: means over its seeds, and the median of the conversations until it was learned."""
    if not paired:
        return ""
    head = (
        "The same wishes and seeds, alone and together:\n\n"
        "| wish | seeds | told base | after: alone | together | difference (least … most) "
        "| learned after: alone | together |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    wishes = sorted({pair.alone.wish for pair in paired})
    lines = [_pair_row(wish, [pair for pair in paired if pair.alone.wish == wish]) for wish in wishes]
    return "\n".join([head, *lines, "", pair_summary(paired)]) + "\n"


def _pair_row(wish: str, paired: Sequence[Pair]) -> str:
    differences = [pair.difference for pair in paired]
    return (
        f"| {wish} | {len(paired)} | {paired[0].alone.told:.2f} | {_mean([p.alone.now for p in paired]):.2f} "
        f"| {_mean([p.together.now for p in paired]):.2f} | {_mean(differences):+.2f} "
        f"({min(differences):+.2f} … {max(differences):+.2f}) "
        f"| {_until([p.alone for p in paired])} | {_until([p.together for p in paired])} |"
    )


def _until(results: Sequence[Result]) -> str:
    """Conversations until the wish was learned, and in how many arms it was."""
    until = [r.reached for r in results if r.reached is not None]
    return f"{statistics.median(until):g} ({len(until)} of {len(results)})" if until else "–"


def pair_summary(paired: Sequence[Pair]) -> str:
    """Over wishes that the told base meets; the interval treats the pairs as independent."""
    managed = [pair for pair in paired if pair.alone.managed]
    if not managed:
        return f"{len(paired)} pairs, none of a wish that the told base meets."
    differences = [pair.difference for pair in managed]
    interval = ""
    if len(managed) > 1:
        interval = f" ± {1.96 * statistics.stdev(differences) / len(managed) ** 0.5:.3f} (95 %)"
    later = [pair for pair in managed if None not in (pair.alone.reached, pair.together.reached)]
    delay = _mean([(pair.together.reached or 0) - (pair.alone.reached or 0) for pair in later])
    return (
        f"{len(managed)} pairs of wishes that the told base meets at least {MANAGED:.0%}: "
        f"together minus alone {_mean(differences):+.3f}{interval}; more than {BELOW:.2f} below alone: "
        f"{sum(d < -BELOW for d in differences)}. Learned alone "
        f"{sum(p.alone.reached is not None for p in managed)}, together "
        f"{sum(p.together.reached is not None for p in managed)}, both ways {len(later)}; "
        f"of these, together after {delay:+.1f} conversations on average."
    )


def turn_table(turns: Sequence[Turn]) -> str:
    if not turns:
        return ""
    head = (
        "| story | first before | first / second / both after | told base | still shown (untold) | after |\n"
        "|---|---|---|---|---|---|"
    )
    lines = [
        f"| {t.name} | {t.before:.2f} | {t.first:.2f} / {t.second:.2f} / {t.both:.2f} | {t.told:.2f} | "
        f"{t.shown:.2f} ({t.untold:.2f}) | {t.until or '–'} |"
        for t in turns
    ]
    return "\n".join([head, *lines]) + "\n"
