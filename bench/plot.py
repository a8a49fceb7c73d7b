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


if __name__ == "__main__":
    main()
