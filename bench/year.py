"""What grew in the weeks that ``tests.soak.year`` lived through: a table, line by line, and a picture.

    python -m tests.soak.year --out docs/results/year.json
    python bench/year.py            writes docs/img/year.svg, prints the table

Each line of the table compares two weeks that follow a prune, one early and the last one: a week after a
prune holds about half of what the one before held.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent.parent / "docs"
#: Caches are filled by then.
_SETTLED = 4
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 300, 110, 60, 34, 70
Week = dict[str, Any]

#: Name in the table -> what it is in a week's row, as a path.
LINES = (
    ("serve, resident MB", "serve_mb"),
    ("… SQLite's page caches", "serve_memory sqlite"),
    ("… allocated by C code", "serve_memory malloc_used"),
    ("… Python objects", "serve_memory objects"),
    ("learn, resident MB", "learn_mb"),
    ("… SQLite's page caches", "learn_memory sqlite"),
    ("… Python objects", "learn_memory objects"),
    ("open files of serve", "serve_files"),
    ("open files of learn", "learn_files"),
    ("threads of serve", "serve_threads"),
    ("serve.db, kB", "disk_kb serve.db"),
    ("… turns", "turns_there"),
    ("learn.db, kB", "disk_kb learn.db"),
    ("… verdicts", "verdicts_there"),
    ("… versions", "policies_there"),
    ("search.db, kB", "disk_kb search.db"),
    ("policies/, kB", "disk_kb policies"),
    ("logs, kB", "disk_kb log"),
    ("reply, median ms", "p50_ms"),
    ("reply, 99th percentile ms", "p99_ms"),
    ("status, ms", "status_ms"),
)
PANELS = {
    "memory of serve, MB": ("serve_mb", "serve_memory sqlite"),
    "memory of learn, MB": ("learn_mb", "learn_memory sqlite"),
    "serve.db and learn.db, kB": ("disk_kb serve.db", "disk_kb learn.db"),
    "reply, median and 99th percentile, ms": ("p50_ms", "p99_ms"),
}
COLOURS = ("#e4572e", "#6b8cae")


def value(week: Week, path: str) -> float | None:
    found: Any = week
    for part in path.split():
        found = found.get(part) if isinstance(found, dict) else None
    return None if found is None else float(found)


def table(weeks: list[Week]) -> str:
    pruned = [week for week in weeks if week["week"] % 2 == 0]
    early, last = next((w for w in pruned if w["week"] >= _SETTLED), pruned[0]), pruned[-1]
    between = max(1, last["week"] - early["week"])
    rows = [f"| | week {early['week'] + 1} | week {last['week'] + 1} | a week |", "|---|---|---|---|"]
    for name, path in LINES:
        one, other = value(early, path), value(last, path)
        if one is not None and other is not None:
            rows.append(f"| {name} | {one:,.0f} | {other:,.0f} | {(other - one) / between:+,.1f} |")
    return "\n".join(rows)


def per_row(tables: dict[str, dict[str, list[int]]]) -> str:
    """The largest tables at the end, and what a row of them takes."""
    rows = [(f"{file} {name}", *size) for file, each in tables.items() for name, size in each.items()]
    largest = sorted(rows, key=lambda row: -row[2])[:8]
    lines = [f"| {name} | {number:,} | {size // 1000:,} | {size / max(1, number):,.0f} |"
             for name, number, size in largest]  # fmt: skip
    return "\n".join(["| table with its indexes | rows | kB | bytes a row |", "|---|---|---|---|", *lines])


def chart(weeks: list[Week]) -> str:
    parts: list[str] = []
    for number, (title, paths) in enumerate(PANELS.items()):
        left = _LEFT + (number % 2) * (_WIDTH + _GAP)
        top = _TOP + (number // 2) * (_HEIGHT + _GAP)
        parts += _panel(weeks, title, paths, left, top)
    width, height = 2 * (_WIDTH + _GAP) + _LEFT, 2 * (_HEIGHT + _GAP) + _TOP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>\n"])


def _panel(weeks: list[Week], title: str, paths: tuple[str, ...], left: int, top: int) -> list[str]:
    found = [[value(week, path) or 0.0 for week in weeks] for path in paths]
    most = max(1.0, *(max(values) for values in found))
    parts = [
        _text(left, top - 10, title, "start"),
        f'<path d="M{left} {top}V{top + _HEIGHT}H{left + _WIDTH}" fill="none" stroke="#66707a"/>',
        _text(left - 6, top + 8, f"{most:,.0f}"), _text(left - 6, top + _HEIGHT, "0"),
        _text(left + _WIDTH, top + _HEIGHT + 16, f"week {weeks[-1]['week'] + 1}"),
    ]  # fmt: skip
    step = _WIDTH / max(1, len(weeks) - 1)
    for values, colour in zip(found, COLOURS, strict=False):
        points = " ".join(
            f"{left + n * step:.1f},{top + _HEIGHT * (1 - one / most):.1f}" for n, one in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return parts


def _text(x: float, y: float, text: str, anchor: str = "end") -> str:
    return f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}">{escape(text)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=DOCS / "results" / "year.json")
    result = json.loads(parser.parse_args().file.read_text())
    (DOCS / "img" / "year.svg").write_text(chart(result["weeks"]))
    print(table(result["weeks"]), per_row(result["tables"]), result["machine"], sep="\n\n")


if __name__ == "__main__":
    main()
