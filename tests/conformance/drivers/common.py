"""What every driver does: run scenarios with its client, and say as JSON what came of them.

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
    """Runs the scenarios that the command line names and says, a line each, what came of them.

    ``plain(text, key, model)`` answers one message; the others take nothing.
    """
    wrong: dict[str, tuple[str, str, str]] = {
        "plain": (HELLO, KEY, MODEL),
        "wrong_key": (HELLO, "wrong", MODEL),
        "unknown_model": (HELLO, KEY, "gpt-9"),
        "too_long": (TOO_LONG, KEY, MODEL),
    }
    for scenario in sys.argv[1:]:
        try:
            result = plain(*wrong[scenario]) if scenario in wrong else others[scenario]()
            said = {"result": result}
        except Exception as error:
            said = {"error": _causes(error)}
        print("\n" + json.dumps({"scenario": scenario, **said}), flush=True)  # some clients print, too


def _causes(error: BaseException) -> str:
    """Some clients' errors are each other's cause."""
    causes: dict[int, str] = {}
    now: BaseException | None = error
    while now is not None and id(now) not in causes:
        causes[id(now)] = f"{type(now).__name__}: {now}"[:2000]
        now = now.__cause__ or now.__context__
    return " | ".join(causes.values())
