"""Pictures of the docs, from the figures the benchmarks saved.

    python bench/plot.py            reads docs/results/*.json, writes docs/img/*.svg

Plain SVG, so that a chart needs no library and reads well in a diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = {"transformers": "#9aa5b1", "llama.cpp": "#6b8cae", "ours": "#e4572e"}
LABELS = {"ours": "OpenClaw-RL", "transformers": "transformers generate", "llama.cpp": "llama.cpp"}
PANELS = (
    ("decode_1", "tokens/s, 1 stream", "{:.0f}"),
    ("decode_8", "tokens/s, 8 streams", "{:.0f}"),
    ("first_next_s", "seconds to the next turn's first token (lower is better)", "{:.2f}"),
)
WIDTH, ROW, GAP, LEFT, BAR = 760, 26, 34, 190, 400


def chart(results: dict[str, dict[str, float]], caption: str) -> str:
    """One group of bars per figure, each on its own scale."""
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 16}" '
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
    order = [name for name in ("ours", "llama.cpp", "transformers") if name in saved["medians"]]
    picture = chart({name: saved["medians"][name] for name in order}, saved["machine"])
    (DOCS / "img/serve.svg").write_text(picture)


if __name__ == "__main__":
    main()
