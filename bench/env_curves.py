"""Plots held-out success while agents train, with 95 % intervals.

    python bench/env_curves.py LABEL=HOME/train/terminal/log.jsonl … --out curves.svg

Logs with the same label are runs of one kind with different seeds and share a colour. Writes plain SVG.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

COLOURS = ("#e4572e", "#6b8cae", "#76b041", "#8e6bbf", "#c79a2b")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 380, 56, 24, 62
Point = tuple[float, float, float, float]


def points(log: Path) -> list[Point]:
    """(groups done, share solved, low, high) of each evaluation."""
    rows = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    looks = [row for row in rows if row["type"] == "evaluation" and row["of"]]
    return [(row["groups"], row["solved"] / row["of"], row["low"], row["high"]) for row in looks]


def chart(runs: Sequence[tuple[str, list[Point]]], across: str = "groups of attempts") -> str:
    most = max((point[0] for _, run in runs for point in run), default=1) or 1
    labels = list(dict.fromkeys(label for label, _ in runs))

    def x(groups: float) -> float:
        return LEFT + groups / most * (WIDTH - LEFT - 20)

    def y(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tenth in range(0, 11, 2):
        at = y(tenth / 10)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - 20}" stroke="#dde2e7"/>')
        parts.append(_text(LEFT - 8, at + 4, f"{tenth * 10} %", "end"))
    for tick in range(0, int(most) + 1, max(1, round(most / 5))):
        parts.append(_text(x(tick), HEIGHT - BOTTOM + 18, str(tick), "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - BOTTOM + 36, across, "middle"))
    for label, run in runs:
        colour = COLOURS[labels.index(label) % len(COLOURS)]
        for groups, share, low, high in run:
            parts.append(
                f'<path d="M{x(groups):.1f} {y(low):.1f}V{y(high):.1f}" stroke="{colour}" opacity=".4"/>'
                f'<circle cx="{x(groups):.1f}" cy="{y(share):.1f}" r="3.5" fill="{colour}"/>'
            )
        line = " ".join(f"{x(groups):.1f},{y(share):.1f}" for groups, share, _, _ in run)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for number, label in enumerate(labels):
        at, colour = LEFT + number * (WIDTH - LEFT) / max(4, len(labels)), COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{at}" y="{HEIGHT - 18}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(at + 18, HEIGHT - 8, label, "start"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    style = f'font-family="sans-serif" font-size="12" fill="#333" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", nargs="+", metavar="LABEL=LOG")
    parser.add_argument("--out", type=Path, default=Path("curves.svg"))
    options = parser.parse_args()
    named: list[Any] = [each.partition("=") for each in options.logs]
    if not all(log for _, _, log in named):
        parser.error("a log is named by LABEL=PATH")
    runs = [(label, points(Path(log))) for label, _, log in named]
    options.out.write_text(chart(runs))
    print(f"{options.out}: {', '.join(f'{label} {len(run)} points' for label, run in runs)}")


if __name__ == "__main__":
    main()
