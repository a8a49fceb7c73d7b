"""What every driver does: run one scenario with its client, and say as JSON what came of it.

Scenarios: plain, streamed, tools, structured, turns, wrong_key, unknown_model, too_long. A driver has a
function for each of the first five; the last three are ``plain`` with something wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

URL, KEY, MODEL = (os.environ[f"OPENAI_{name}"] for name in ("BASE_URL", "API_KEY", "MODEL"))
HELLO = "Name three colours."
TURNS = ("My name is Ada.", "What is my name?", "Thanks, that was right.")
TOO_LONG = "word " * 9000
SIZE: dict[str, Any] = {"temperature": 0, "max_tokens": 150}

Scenario = Callable[..., Any]


def main(plain: Scenario, **others: Scenario) -> None:
    """``plain(text, key, model)`` answers one message; the others take nothing."""
    scenario = sys.argv[1]
    wrong: dict[str, tuple[str, str, str]] = {
        "plain": (HELLO, KEY, MODEL),
        "wrong_key": (HELLO, "wrong", MODEL),
        "unknown_model": (HELLO, KEY, "gpt-9"),
        "too_long": (TOO_LONG, KEY, MODEL),
    }
    try:
        result = plain(*wrong[scenario]) if scenario in wrong else others[scenario]()
        print(json.dumps({"result": result}))
    except Exception as error:
        causes, now = [], error
        while now is not None:
            causes.append(f"{type(now).__name__}: {now}"[:2000])
            now = now.__cause__ or now.__context__  # type: ignore[assignment]
        print(json.dumps({"error": " | ".join(causes)}))
