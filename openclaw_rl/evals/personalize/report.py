"""The report from the arms' logs: tables, three plots and one example per user."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.evals.personalize import plots
from openclaw_rl.evals.personalize.arm import MEMORY, UNTRAINED, sessions_until
from openclaw_rl.evals.personalize.talk import ConversationLog, Row

Group = tuple[str, str]
"""(users, method)."""


def write(out: Path, dashboard: Path | None = None) -> dict[str, Any]:
    """Write ``report.md``, ``results.json`` and the plots, from finished and interrupted arms.

    ``dashboard``: the folder from which the dashboard's Results page reads.
    """
    logs = [(path.parent.name, ConversationLog(path)) for path in sorted(out.glob("arms/*/log.jsonl"))]
    arms = [summarise(log) | _identity(name) for name, log in logs if _has_looks(log)]
    groups: dict[Group, list[Row]] = defaultdict(list)
    for arm in arms:
        groups[arm["users"], arm["method"]].append(arm)
    members = [(_row(group, mine), mine) for group, mine in _ordered(groups)]
    results = {"rows": [row for row, _ in members], "arms": arms}
    (out / "results.json").write_text(json.dumps(_plain(results), indent=1), encoding="utf-8")
    for name, curve in plots.curves(members).items():
        if dashboard is not None:
            dashboard.mkdir(parents=True, exist_ok=True)
            (dashboard / f"{out.name}-{name}.json").write_text(json.dumps(curve), encoding="utf-8")
    pictures = plots.draw(out, members)
    parts = [
        _table(results["rows"]),
        _costs(results["rows"]),
        *(f"![{title}]({name})" for title, name in pictures),
        _samples(groups),
    ]
    (out / "report.md").write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return results


def _plain(value: Any) -> Any:
    """For JSON: NaN becomes null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _has_looks(log: ConversationLog) -> bool:
    """An interrupted arm counts as far as it got, once it has two held-out measurements to compare."""
    return len({row["number"] for row in log.of("held_out")}) > 1


def _identity(folder: str) -> Row:
    name, seed = folder.rsplit("-", 1)
    method, users = (
        name.split("-", 1) if not name.startswith(("opd-topk", "hybrid-sum")) else _split_long(name)
    )
    return {"method": method, "users": users, "seed": int(seed)}


def _split_long(name: str) -> tuple[str, str]:
    first, second, users = name.split("-", 2)
    return f"{first}-{second}", users


def summarise(log: ConversationLog) -> Row:
    """One arm's metrics."""
    sessions, looks = log.of("session"), log.of("held_out")
    end: Row = next(reversed(log.of("end")), {"verdicts": [], "policies": [], "seconds": None})
    names = sorted({row["user"] for row in sessions})
    limit = max(row["number"] for row in sessions) + 1
    until = {
        rule: {name: sessions_until([r for r in sessions if r["user"] == name], rule) for name in names}
        for rule in ("strict", "published")
    }
    curve: dict[int, list[Row]] = defaultdict(list)
    for look in looks:
        curve[look["number"]] += look["rows"]
    probes = log.of("probes")
    verdicts = [v for v in end["verdicts"] if v["score"] is not None]
    replies = [turn for row in sessions for turn in row["turns"]]
    served = [p for p in end["policies"] if p["status"] in ("serving", "retired")]
    return {
        "until": until,
        "limit": limit,
        "curve": [
            {
                "sessions": number,
                "strict": _share(rows, lambda row: row["liked"] and row["answered"]),
                "liked": _share(rows, lambda row: row["liked"]),
                "words": statistics.mean(len(row["reply"].split()) for row in rows),
                "by_wish": [
                    statistics.mean(wish) for wish in zip(*(row["wishes"] for row in rows), strict=True)
                ],
            }
            for number, rows in sorted(curve.items())
        ],
        # Without a final measurement there is nothing to compare.
        "before": [_bit(row) for row in probes[0]["rows"] if len(probes) > 1],
        "after": [_bit(row) for row in probes[-1]["rows"] if len(probes) > 1],
        "interrupted": end["seconds"] is None,
        "judged": len(verdicts),
        "judge_right": sum(v["score"] == v["truth"] for v in verdicts),
        "judge_negative_right": sum((v["score"] < 0) == (v["truth"] < 0) for v in verdicts),
        "versions": len([p for p in served if p["version"] > 0]),
        "rejected": sum(p["status"] == "rejected" for p in end["policies"]),
        "drift": next(
            (p["gate"] for p in end["policies"] if p["status"] == "serving" and p.get("gate")), None
        ),
        "seconds": end["seconds"],
        "prompt_tokens": statistics.mean(turn["prompt_tokens"] for turn in replies if turn is not None),
        "tokens": sum(turn["prompt_tokens"] + turn["completion_tokens"] for turn in replies),
        "samples": [
            {"user": name, "before": first, "after": last}
            for name in names
            for first, last in [_first_and_last([look for look in looks if look["user"] == name])]
        ],
    }


def _first_and_last(looks: Sequence[Row]) -> tuple[Row, Row]:
    return ({k: looks[i]["rows"][0][k] for k in ("ask", "reply")} for i in (0, -1))  # type: ignore[return-value]


def _bit(row: Row) -> Row:
    return {"kind": row["kind"], "ask": row["ask"], "right": row["answered"]}


def _row(group: Group, arms: Sequence[Row]) -> Row:
    """Means over the seeds, with 95 % intervals."""
    users, method = group
    until = {
        rule: [
            statistics.mean(count or arm["limit"] for count in arm["until"][rule].values()) for arm in arms
        ]
        for rule in ("strict", "published")
    }
    open_ended = {
        rule: any(count is None for arm in arms for count in arm["until"][rule].values())
        for rule in ("strict", "published")
    }
    reached = [count is not None for arm in arms for count in arm["until"]["strict"].values()]
    before = [bit for arm in arms for bit in arm["before"]]
    after = [bit for arm in arms for bit in arm["after"]]
    judged = sum(arm["judged"] for arm in arms)
    return {
        "users": users,
        "method": method,
        "seeds": len(arms),
        "strict": interval(until["strict"]),
        "published": interval(until["published"]),
        "at_least": open_ended,
        "reached": f"{sum(reached)}/{len(reached)}",
        "held_out_before": statistics.mean(arm["curve"][0]["strict"] for arm in arms),
        "held_out": interval([arm["curve"][-1]["strict"] for arm in arms]),
        "by_wish": [
            statistics.mean(x) for x in zip(*(arm["curve"][-1]["by_wish"] for arm in arms), strict=True)
        ],
        "words": statistics.mean(arm["curve"][-1]["words"] for arm in arms),
        "right_before": _share(before, lambda bit: bit["right"]),
        "right": _share(after, lambda bit: bit["right"]),
        "worse": worse_kinds(before, after),
        "judge": sum(arm["judge_right"] for arm in arms) / judged if judged else None,
        "judge_negative": sum(arm["judge_negative_right"] for arm in arms) / judged if judged else None,
        "versions": statistics.mean(
            [arm["versions"] for arm in arms if not arm["interrupted"]] or [math.nan]
        ),
        "rejected": sum(arm["rejected"] for arm in arms),
        "interrupted": sum(arm["interrupted"] for arm in arms),
        "seconds_per_session": statistics.mean(
            [arm["seconds"] / arm["limit"] for arm in arms if not arm["interrupted"]] or [math.nan]
        ),
        "drift": statistics.mean(
            [d for arm in arms if (d := _drift(arm["drift"])) is not None] or [math.nan]
        ),
        "tokens_per_session": statistics.mean(arm["tokens"] / arm["limit"] for arm in arms),
        "prompt_tokens": statistics.mean(arm["prompt_tokens"] for arm in arms),
    }


def _drift(gate: Row | None) -> float | None:
    """The last version's loss of log-prob against the base on texts it should still know, in nats."""
    checks = {check["name"]: check["value"] for check in (gate or {}).get("checks", ())}
    value: float | None = checks.get("forgetting")
    return value


def worse_kinds(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """Probe kinds answered significantly worse: one-sided exact sign test over the pairs, 5 %."""
    found = []
    for kind in sorted({bit["kind"] for bit in before}):
        pairs = [(b["right"], a["right"]) for b, a in zip(before, after, strict=True) if b["kind"] == kind]
        lost, won = sum(b and not a for b, a in pairs), sum(a and not b for b, a in pairs)
        total = lost + won
        chance = sum(math.comb(total, k) for k in range(lost, total + 1)) / 2**total if total else 1.0
        if chance < 0.05:
            found.append(f"{kind} (−{lost} +{won} of {len(pairs)})")
    return found


def interval(values: Sequence[float], rounds: int = 2000) -> tuple[float, float, float]:
    """Mean and 95 % bootstrap interval over the seeds."""
    chance = random.Random(0)
    means = sorted(statistics.mean(chance.choices(values, k=len(values))) for _ in range(rounds))
    return statistics.mean(values), means[int(0.025 * rounds)], means[int(0.975 * rounds) - 1]


def _share(rows: Sequence[Any], test: Callable[[Any], bool]) -> float:
    return sum(map(test, rows)) / len(rows) if rows else math.nan


def _ordered(groups: dict[Group, list[Row]]) -> Iterable[tuple[Group, list[Row]]]:
    known = list(plots.COLOURS)
    order = {method: known.index(method) if method in known else -1 for _, method in groups}
    return sorted(groups.items(), key=lambda item: (-item[0][0].count("+"), item[0][0], order[item[0][1]]))


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| users | method | seeds | sessions until three in a row, strict | published rule | reached "
        "| held-out satisfaction, strict | words | tasks right | significantly worse "
        "| judge right (negative or not) | versions (rejected) | prompt tokens |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        judge = "–" if row["judge"] is None else f"{row['judge']:.2f} ({row['judge_negative']:.2f})"
        lines.append(
            f"| {row['users']} | {row['method']} | {row['seeds']}{_cut(row)} | {_until(row, 'strict')} "
            f"| {_until(row, 'published')} | {row['reached']} "
            f"| {row['held_out_before']:.2f} → {_range(row['held_out'], '.2f')} | {row['words']:.0f} "
            f"| {_tasks(row)} | {judge} | {_number(row['versions'], '.1f')} ({row['rejected']}) "
            f"| {row['prompt_tokens']:.0f} |"
        )
    return "\n".join(lines)


def _costs(rows: Sequence[Row]) -> str:
    lines = [
        "| users | method | seconds a session | tokens a session (in and out) | drift from the base (nats) |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row["seconds_per_session"], row["tokens_per_session"], row["drift"])
        shown = [_number(x, form) for x, form in zip(cells, (".0f", ".0f", "+.3f"), strict=True)]
        lines.append(f"| {row['users']} | {row['method']} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _tasks(row: Row) -> str:
    """Share right before and after, and the kinds that got worse; dashes if no arm was measured twice."""
    if math.isnan(row["right"]):
        return "– | –"
    return f"{row['right_before']:.2f} → {row['right']:.2f} | {', '.join(row['worse']) or 'none'}"


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else f"{value:{form}}"


def _cut(row: Row) -> str:
    return f" ({row['interrupted']} interrupted)" if row["interrupted"] else ""


def _until(row: Row, rule: str) -> str:
    """Users who did not get there count with the sessions they had, so the mean is a lower bound."""
    return ("≥ " if row["at_least"][rule] else "") + _range(row[rule], ".1f")


def _range(value: tuple[float, float, float], form: str) -> str:
    mean, low, high = value
    return f"**{mean:{form}}**" + (f" [{low:{form}}, {high:{form}}]" if low != high else "")


def _samples(groups: dict[Group, list[Row]]) -> str:
    """The first held-out task of every user, before and after; not selected by result."""
    parts = []
    for (users, method), arms in _ordered(groups):
        if method in (UNTRAINED, MEMORY, "binary", "opd"):
            continue
        for sample in arms[0]["samples"]:
            before, after = (" ".join(sample[when]["reply"].split()) for when in ("before", "after"))
            parts.append(
                f"**{sample['user']}** ({method}, {users}): {sample['after']['ask']}\n\n"
                f"> before: {before}\n>\n> after: {after}"
            )
    return "\n\n".join(parts)
