"""Verdicts that need no judge: users' decisions about a turn, and turns with a secret."""

from __future__ import annotations

from openclaw_rl.capture.events import EXCLUDE, FEEDBACK, INCLUDE, SECRET
from openclaw_rl.types import Json, Verdict

#: An ordinary verdict, so that a sample waiting for a step is settled again; it teaches nothing.
EXCLUDED = Verdict(0, 1.0, EXCLUDE, reason="a person excluded it from training")
#: The one verdict that nothing overrides.
HELD_SECRET = Verdict(0, 1.0, SECRET, trainable=False, reason="a secret was found in it or after it")
#: Only revokes an exclusion; never the verdict that counts.
INCLUDED = Verdict(0, 1.0, INCLUDE, reason="a person took it back in")


def feedback_verdict(data: Json) -> Verdict:
    """A user's own rating, with full confidence; a complaint's text is the hint."""
    text = str(data.get("text") or "").strip()
    score = int(data["score"])
    return Verdict(
        score, 1.0, FEEDBACK, hints=(text,) if text and score < 0 else (), reason="the user rated this reply"
    )
