"""Texts that lead a pattern over the same characters again and again.

A search in a pattern holds up everything else in its process, so one such message would stop the server for
everybody. What is done in one pass has read all of these in seconds; what goes over them again for each of
their characters would take hours, and is given up after minutes.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from openclaw_rl.capture import classify, normalise
from openclaw_rl.judge.hints import verbatim_hints
from openclaw_rl.judge.rules import apply_rules
from openclaw_rl.secret_scan import find_secrets
from openclaw_rl.types import JudgeCase

#: Characters of each text, and seconds for all of them.
_LENGTH, _DEADLINE_S = 300_000, 600
PIECES = (
    "a", " ", "\n", "a ", "\n\n", ".", "...", "[", "[12:00", "<", "<think>", "<reminder>", "1", "a1", "`",
    "-",
    "<environment_context>", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "[a cut", "(truncat", "call0", "__",
    "[Queued user message from a previous active turn;", "The previous attempt ", "Runtime: agent=",
    "<system-reminder>",
    "\nContinue the current task from the existing transcript, preserving completed work", "=", "password: ",
    "{", '"', "\\", "4111 ", "a@", "http://a.", "-----BEGIN ", "<conversation>", "summarize ", "title ",
)  # fmt: skip


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def rewritten(text: str) -> None:
    normalise.is_rewritten(said("assistant", f"{text}!"), said("assistant", f"{'a' * 50}{text}"))
    normalise.is_rewritten(said("assistant", f"a reply that was cut{text}"), said("assistant", "a" * 20))


def folded(text: str) -> None:
    messages = [said("system", text), said("user", text), said("assistant", text), said("user", "Go on")]
    normalise.fold_conversation("ann", messages)
    normalise.setting_of(messages, {})
    normalise.own_words_keys("ann", messages)


def classified(text: str) -> None:
    messages = [said("system", text), said("user", text)]
    classify.classify(messages, {}, has_tools=False)
    classify.classify([*messages, said("user", text)], {}, has_tools=False, continued_had_tools=True)


def judged(text: str) -> None:
    call = {"id": "c", "name": "f", "arguments": text}
    reply = {"role": "assistant", "content": text, "tool_calls": [call]}
    for said_next in (said("user", f"No. {text}"), said("tool", text)):
        case = JudgeCase([said("user", text)], reply, [said_next])
        apply_rules(case)
        verbatim_hints(case)


#: What the server does with what it is sent, and (of fewer texts) the judge.
READERS = {"rewritten": rewritten, "folded": folded, "classified": classified, "secrets": find_secrets}
JUDGED = (".", "a ", "__", "[", '{"a":', "<think>")


def read_all(reader: str) -> None:
    for piece in PIECES if reader in READERS else JUDGED:
        text = (piece * (_LENGTH // len(piece) + 1))[:_LENGTH]
        if reader not in READERS:
            judged(text)
            continue
        for each in (text, f"{text}!", f"\n{text}\n</think></reminder>]x", f"12:00 {text}"):
            READERS[reader](each)


@pytest.mark.parametrize("reader", [*READERS, "judged"])
def test_long_texts_are_read_in_one_pass(reader: str) -> None:
    command = f"from tests.security.test_slow_texts import read_all; read_all({reader!r})"
    run = partial(subprocess.run, [sys.executable, "-c", command], timeout=_DEADLINE_S, capture_output=True)
    assert run(text=True).stderr == ""
