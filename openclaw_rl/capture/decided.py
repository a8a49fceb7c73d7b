"""Verdicts that need no judge: what people decide about a turn, and what a secret does to it."""

from __future__ import annotations

from openclaw_rl.capture.events import EXCLUDE, FEEDBACK, INCLUDE, SECRET
from openclaw_rl.types import Json, Verdict

#: A verdict like any other, so that what waits for a step is settled anew; it teaches nothing.
EXCLUDED = Verdict(0, 1.0, EXCLUDE, reason="a person excluded it from training")
#: The one verdict that nobody can overrule.
HELD_SECRET = Verdict(0, 1.0, SECRET, trainable=False, reason="a secret was found in it or after it")
#: Only takes an exclusion back; never the verdict that counts.
INCLUDED = Verdict(0, 1.0, INCLUDE, reason="a person took it back in")


def feedback_verdict(data: Json) -> Verdict:
    """A person's own rating counts outright; their words are the hint."""
    text = str(data.get("text") or "").strip()
    score = int(data["score"])
    return Verdict(
        score, 1.0, FEEDBACK, hints=(text,) if text and score < 0 else (), reason="the user rated this reply"
    )
