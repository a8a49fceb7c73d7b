"""Draws the charts in the docs, from the results that the benchmarks saved.

    python bench/plot.py            reads docs/results/*.json, writes docs/img/*.svg

Plain SVG, so that a chart needs no library and is readable in a diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = {
    "transformers": "#9aa5b1",
    "llama.cpp": "#6b8cae",
    "ours": "#e4572e",
    "ours native@avx2": "#f0a58f",
}
LABELS = {
    "ours": "OpenClaw-RL",
    "ours native@avx2": "… with AVX2",
    "llama.cpp": "llama.cpp",
    "transformers": "transformers generate",
}
PANELS = (
    ("decode_1", "tokens/s, 1 stream", "{:.0f}"),
    ("decode_8", "tokens/s, 8 streams", "{:.0f}"),
    ("first_next_s", "seconds to the next turn's first token (lower is better)", "{:.2f}"),
)
#: The upstream model's version number, and how many conversations a point is the mean of.
_UPSTREAM, _WINDOW = -1, 40
WIDTH, ROW, GAP, LEFT, BAR = 760, 26, 34, 190, 400


def chart(results: dict[str, dict[str, float]], caption: str) -> str:
    """One group of bars per metric, each on its own scale."""
    parts, y = [], 34
    for key, title, form in PANELS:
        parts.append(_text(16, y, title, size=14, weight="600"))
        y += 12
        largest = max(figures[key] for figures in results.values())
        for name, figures in results.items():
            width = max(2.0, BAR * figures[key] / largest)
            parts.append(_text(LEFT - 10, y + 17, LABELS[name], anchor="end"))
            parts.append(
                f'<rect x="{LEFT}" y="{y + 4}" width="{width:.1f}" height="{ROW - 8}" rx="3" '
                f'fill="{COLOURS[name]}"/>'
            )
            parts.append(_text(LEFT + width + 8, y + 17, form.format(figures[key]), weight="600"))
            y += ROW
        y += GAP
    parts.append(_text(16, y, caption, size=11, colour="#66707a"))
    return _svg(parts, y + 16)


def learning_chart(saved: dict[str, Any]) -> str:
    """Share of short replies against conversations, one line per run, with one answer before and after."""
    runs, left, top, width, height = saved["runs"], 70, 60, 620, 180
    last = max(point["conversations"] for point in runs[0]["points"])

    def place(point: dict[str, Any]) -> tuple[float, float]:
        return left + width * point["conversations"] / last, top + height * (1 - point["short"])

    parts = [_text(16, 30, "Short answers to questions it was never asked before", size=15, weight="600")]
    for share in (0, 0.5, 1):
        y = top + height * (1 - share)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e7eb"/>')
        parts.append(_text(left - 10, y + 4, f"{share:.0%}", anchor="end", size=12))
    for point in runs[0]["points"]:
        x = place(point)[0]
        label = f"after {point['conversations']} conversations" if point["conversations"] else "before"
        parts.append(_text(x, top + height + 22, label, anchor="end" if x > left else "start", size=12))
    for run in runs:
        line = " ".join(f"{x:.0f},{y:.0f}" for x, y in map(place, run["points"]))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS["ours"]}" stroke-width="2.5"/>')
        for x, y in map(place, run["points"]):
            parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{COLOURS["ours"]}"/>')
    question = "What is a volcano?"
    before, after = (runs[0]["points"][i]["replies"][question] for i in (0, -1))
    y = top + height + 58
    for label, text in (("asked", question), ("before", before), ("after", after)):
        shown = text if len(text) <= 84 else f"{text[:84].rpartition(' ')[0]} … ({len(text.split())} words)"
        parts.append(_text(16, y, label, size=12, weight="600", colour="#66707a"))
        parts.append(_text(70, y, " ".join(shown.split()), size=12))
        y += 22
    caption = f"SmolLM2-135M, {len(runs)} runs, {saved['machine']}; nobody rated anything"
    parts.append(_text(16, y + 6, caption, size=11, colour="#66707a"))
    return _svg(parts, y + 22)


def takeover_chart(saved: dict[str, Any]) -> str:
    """Share of conversations answered here, and satisfaction, against conversations."""
    rows = saved["conversations"]
    left, top, width, height = 70, 60, 640, 200
    x = lambda n: left + width * n / max(1, len(rows) - 1)  # noqa: E731
    y = lambda share: top + height * (1 - share)  # noqa: E731
    parts = [_text(16, 30, "The default model takes over from itself, told more", size=15, weight="600")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            f'<line x1="{left}" x2="{left + width}" y1="{y(share)}" y2="{y(share)}" stroke="#e3e7eb"/>'
        )
        parts.append(_text(left - 10, y(share) + 4, f"{share:.0%}", anchor="end", size=12))
    here = [float(row["version"] != _UPSTREAM) for row in rows]
    met = [float(row["met"]) for row in rows]
    lines = (([row["share"] for row in rows], "#e4572e"), (_means(here), "#f0a58f"), (_means(met), "#6b8cae"))
    for values, colour in lines:
        line = " ".join(f"{x(n):.0f},{y(value):.1f}" for n, value in enumerate(values))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for event in saved["events"]:
        if event["what"].startswith(("a spoiled", "the cloud")):
            at = x(event["after"])
            parts.append(
                f'<line x1="{at:.0f}" x2="{at:.0f}" y1="{top}" y2="{top + height}" stroke="#20262c"/>'
            )
            parts.append(_text(at, top - 8, event["what"], anchor="middle", size=11))
    parts.append(_text(left + width, top + height + 20, f"{len(rows)} conversations", anchor="end", size=12))
    labels = ("share that the ledger gives the local model", f"conversations it answered (mean of {_WINDOW})",
              f"replies as people wish, whoever answered (mean of {_WINDOW})")  # fmt: skip
    for n, ((_, colour), label) in enumerate(zip(lines, labels, strict=True)):
        parts.append(
            f'<rect x="16" y="{top + height + 34 + 20 * n}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(_text(36, top + height + 45 + 20 * n, label, size=12))
    end = top + height + 112
    parts.append(_text(16, end, f"SmolLM2-135M, one run, {saved['machine']}", size=11, colour="#66707a"))
    return _svg(parts, end + 16)


def _means(values: list[float]) -> list[float]:
    return [
        sum(part) / len(part) for n in range(len(values)) if (part := values[max(0, n - _WINDOW + 1) : n + 1])
    ]


def _svg(parts: list[str], height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def _text(
    x: float, y: float, text: str, *, size: int = 13, weight: str = "400", anchor: str = "start",
    colour: str = "#20262c",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def main() -> None:
    saved = json.loads((DOCS / "results/serve.json").read_text())
    order = [name for name in LABELS if name in saved["medians"]]
    picture = chart({name: saved["medians"][name] for name in order}, saved["machine"])
    (DOCS / "img/serve.svg").write_text(picture)
    if (learned := DOCS / "results/learning.json").exists():
        (DOCS / "img/learning.svg").write_text(learning_chart(json.loads(learned.read_text())))
    if (taken := DOCS / "results/takeover.json").exists():
        (DOCS / "img/takeover.svg").write_text(takeover_chart(json.loads(taken.read_text())))


if __name__ == "__main__":
    main()
