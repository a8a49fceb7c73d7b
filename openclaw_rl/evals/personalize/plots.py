"""The evaluation's plots: satisfaction against sessions, sessions needed, and forgetting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openclaw_rl.evals.personalize.arm import MEMORY, UNTRAINED
from openclaw_rl.evals.personalize.talk import Row

COLOURS = {
    "hybrid": "#e4572e",
    "binary": "#6b8cae",
    "opd": "#76b041",
    UNTRAINED: "#9aa5b1",
    MEMORY: "#8e6bbf",
}
#: One table row and the arms it summarises.
Member = tuple[Row, Sequence[Row]]


def draw(out: Path, members: Sequence[Member]) -> list[tuple[str, str]]:
    if not members or find_spec("matplotlib") is None:
        return []  # without matplotlib only the table is made; pip install 'openclaw-rl[eval]'
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    users = list(dict.fromkeys(row["users"] for row, _ in members))
    made = []

    def save(figure: Any, title: str, name: str) -> None:
        figure.savefig(out / name, dpi=130, bbox_inches="tight")
        pyplot.close(figure)
        made.append((title, name))

    save(
        _satisfaction(pyplot, members, users),
        "satisfaction on held-out tasks against sessions",
        "satisfaction.png",
    )
    save(
        _sessions(pyplot, members, users),
        "sessions until three in a row please, and how many users reached it",
        "sessions.png",
    )
    save(_forgetting(pyplot, members, users), "what was learned against what was forgotten", "forgetting.png")
    return made


def _satisfaction(pyplot: Any, members: Sequence[Member], users: Sequence[str]) -> Any:
    figure, axes = pyplot.subplots(1, len(users), figsize=(4.2 * len(users), 3.4), sharey=True, squeeze=False)
    for axis, who in zip(axes[0], users, strict=True):
        for row, arms in members:
            if row["users"] == who:
                _curve(axis, row["method"], arms)
        axis.set(title=who.replace("+", ", "), xlabel="sessions", ylim=(-0.02, 1.02))
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0][0].set_ylabel("held-out satisfaction, strict")
    lines = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
    figure.legend(
        lines.values(), lines.keys(), frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(0.91, 0.5)
    )
    return figure


def _sessions(pyplot: Any, members: Sequence[Member], users: Sequence[str]) -> Any:
    figure, axes = pyplot.subplots(1, len(users), figsize=(4.2 * len(users), 2.8), sharey=True, squeeze=False)
    for axis, who in zip(axes[0], users, strict=True):
        rows = [row for row, _ in members if row["users"] == who]
        for position, row in enumerate(rows):
            _bar(axis, position, row)
        axis.set_xticks(range(len(rows)), [row["method"] for row in rows], rotation=25)
        axis.set(title=who.replace("+", ", "), xlim=(-0.6, max(2, len(rows) - 1) + 0.6))
        axis.margins(y=0.25)
    axes[0][0].set_ylabel("sessions until three\nin a row, strict")
    return figure


def _bar(axis: Any, position: int, row: Row) -> None:
    mean, low, high = row["strict"]
    colour, open_ended = COLOURS.get(row["method"], "#444"), row["at_least"]["strict"]
    style = {"facecolor": "white", "edgecolor": colour, "hatch": "//"} if open_ended else {"color": colour}
    axis.bar(position, mean, width=0.65, **style)
    axis.errorbar(position, mean, [[mean - low], [high - mean]], color="#333", capsize=3)
    axis.text(
        position,
        high + 0.6,
        f"{'≥ ' if open_ended else ''}{mean:.1f}\n{row['reached']}",
        ha="center",
        fontsize=8,
    )


def _forgetting(pyplot: Any, members: Sequence[Member], users: Sequence[str]) -> Any:
    figure, axis = pyplot.subplots(figsize=(5, 3.4))
    for row, _ in members:
        who, method = row["users"], row["method"]
        marker = "o^sD"[users.index(who) % 4]
        axis.scatter(row["held_out"][0], row["right"] / max(row["right_before"], 1e-9), s=60, marker=marker,
                     color=COLOURS.get(method, "#444"), label=f"{method}, {who}")  # fmt: skip
    axis.axhline(0.95, color="#bbb", lw=1, ls="--")
    axis.set(xlabel="held-out satisfaction, strict", ylabel="tasks right, of before", xlim=(-0.03, 1.03))
    axis.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def curves(members: Sequence[Member]) -> dict[str, Row]:
    """Data for the plot of satisfaction against sessions, by users."""
    found = {}
    for who in {row["users"] for row, _ in members}:
        mine = {row["method"]: arms for row, arms in members if row["users"] == who}
        points = _points([arm for arms in mine.values() for arm in arms])
        found[who] = {
            "title": f"Satisfaction of {who.replace('+', ', ')}",
            "note": "Share of held-out tasks answered, and as the user likes it; mean over the seeds.",
            "x_label": "sessions",
            "x": points,
            "series": [
                {"name": method, "values": [statistics.mean(each) for each in _values(arms, points)]}
                for method, arms in mine.items()
            ],
        }
    return found


def _points(arms: Sequence[Row]) -> list[int]:
    return sorted({point["sessions"] for arm in arms for point in arm["curve"]})


def _values(arms: Sequence[Row], points: Sequence[int]) -> list[list[float]]:
    """Every arm's value at these session counts; a finished arm keeps its last value."""
    return [[[p for p in arm["curve"] if p["sessions"] <= x][-1]["strict"] for arm in arms] for x in points]


def _curve(axis: Any, method: str, arms: Sequence[Row]) -> None:
    points = _points(arms)
    values = _values(arms, points)
    middle = [statistics.mean(each) for each in values]
    colour = COLOURS.get(method, "#444")
    axis.plot(points, middle, color=colour, label=method, lw=2)
    axis.fill_between(
        points, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.12, lw=0
    )
