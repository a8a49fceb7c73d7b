"""Countable cues in a user's words, in tool results, and in how they match the request.

Every cue is a named number. Weights are fitted on labelled cases; no cue decides alone. A user's cues come
from the user's own words only, never from tool results or quotations.
"""

from __future__ import annotations

import json
import re
from functools import cache

from openclaw_rl.judge.exchange import CaseTexts, own_words
from openclaw_rl.patterns import read_patterns

_WORD = re.compile(r"[^\W\d_]{3,}|\d+")
_STOP = frozenset(
    word
    for line in (
        "the and for with that this from what how which when where who does did are was were you your",
        "have has can could would should please give get find show tell make all any some not into about",
        "than them they then there der die das und ist wie was les des une est que los las una del per che",
    )
    for word in line.split()
)
USER_CUES: tuple[str, ...] = (
    *("thanks", "praise", "works", "adopts", "wrong", "change", "said", "contrast", "follow", "terse"),
    *("question_end", "exclaims", "log_words", "asks_again", "first_good", "first_bad", "is_question_only"),
)
_BAD_NAMES, _GOOD_NAMES = ("wrong", "change", "said", "contrast"), ("thanks", "praise", "works", "adopts")


@cache
def cue_table(name: str = "cues") -> dict[str, list[re.Pattern[str]]]:
    table = read_patterns(name, "openclaw_rl.judge")
    return {name: [re.compile(form, re.IGNORECASE) for form in forms] for name, forms in table.items()}


def user_cues(exchange: CaseTexts) -> list[float]:
    text = own_words(exchange.user_text).strip().replace("’", "'")
    table = cue_table()
    spans = {name: [m.start() for cue in cues for m in cue.finditer(text)] for name, cues in table.items()}
    counts = [min(3.0, float(len(found))) ** 0.5 for found in spans.values()]
    good = min((start for name in _GOOD_NAMES for start in spans[name]), default=10_000)
    bad = min((start for name in _BAD_NAMES for start in spans[name]), default=10_000)
    any_side = good < 10_000 or bad < 10_000
    words = _WORD.findall(text)
    return [
        *counts,
        float(text.endswith("?")),
        float("!" in text),
        _log(len(words)),
        float(len(words) > 3 and _overlap(exchange.request, text) >= 0.7),
        float(good < bad),
        float(bad < good),
        float(text.endswith("?") and not any_side),
    ]


def tool_cues(exchange: CaseTexts) -> list[float]:
    results = exchange.results
    joined = "\n".join(results).strip()
    calls = " ".join(f"{name} {arguments}" for name, arguments in exchange.calls)
    idle = any(_count("idle", _plain(name, arguments)) for name, arguments in exchange.calls)
    reach = _overlap(exchange.request, f"{joined} {calls}")
    return [
        float(not joined),
        min(2.0, _count("nothing", joined)),
        min(1.0, _count("wall", joined)),
        min(2.0, _count("did", joined)),
        0.0 if _shows_text(exchange) else min(2.0, _count("bad", joined)),
        float(idle),
        _log(len(joined)),
        float(bool(re.search(r"[1-9]", joined))),
        _overlap(exchange.request, joined),
        _overlap(exchange.request, calls),
        reach,
        _overlap(calls, joined),
        float(bool(re.search(r"\[\s*\]|\{\s*\}", joined))),
    ]


def _count(name: str, text: str) -> float:
    return float(sum(len(cue.findall(text)) for cue in cue_table("tool_cues")[name]))


def _shows_text(exchange: CaseTexts) -> bool:
    """Whether the result is several lines of a file or page, whose words say nothing about the call."""
    reads = any(_count("readers", name) for name, _ in exchange.calls)
    return reads and any("\n" in text.strip() for text in exchange.results)


def _plain(name: str, arguments: str) -> str:
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return name
    texts = [value for value in values.values() if isinstance(value, str)] if isinstance(values, dict) else []
    if name.startswith("think"):
        return "think"
    return (
        texts[0] if len(texts) == 1 and texts[0].startswith("import ") else " ".join(f'"{t}"' for t in texts)
    )


def _stems(text: str) -> set[str]:
    return {word[:5] for word in _WORD.findall(text.lower().replace("_", " ")) if word not in _STOP}


def _overlap(first: str, second: str) -> float:
    """The share of the first text's content words that also occur in the second."""
    stems = _stems(first)
    return len(stems & _stems(second)) / len(stems) if stems else 0.0


def _log(count: int) -> float:
    return (count + 1).bit_length() / 4
