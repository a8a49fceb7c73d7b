"""Reading a text in one pass gives the same result as these patterns, which may need many."""

from __future__ import annotations

import random
import re

import pytest

from openclaw_rl.capture import normalise
from openclaw_rl.capture.normalise import (
    fold_conversation,
    fold_instructions,
    meaning,
    reply_keys,
    setting_of,
)
from openclaw_rl.types import Message

FRAGMENTS = (
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>",
    "<reminder>", "</reminder>", "<system-reminder>", "</system-reminder>", "<environment_context>",
    "</environment_context>",
    "<think>", "</think>", "[Mon 10:11] ", "The previous attempt ",
    "did not produce a user-visible answer. Continue now",
    "[Queued user message from a previous active turn; sent]\n",
    "\n", " ", "word", "x1", "_2a", "½", "3.5,", "é",
    "\nContinue the current task from the existing transcript, preserving completed work. Go.",
    "\nRuntime: agent=main sessionId=abc", "[", "]", "\u00a0",
)  # fmt: skip

EPHEMERAL = re.compile(
    r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    r"|<(?P<tag>(?:system-)?reminder|environment_context)>.*?</(?P=tag)>"
    r"|\A(?:\[[^\]\n]*\] )?The previous (?:attempt|assistant turn)\b[^.]{0,80}"
    r"\bdid not produce a user-visible answer\. Continue .*\Z",
    re.DOTALL,
)
REPEATED = re.compile(
    r"\[Queued user message from a previous active turn;[^\]\n]*\]\n"
    r"|\n+Continue the current task from the existing transcript, preserving completed work\..*\Z",
    re.DOTALL,
)
THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
TIMESTAMP = re.compile(r"^\s*\[[^\]\n]*\d{1,2}:\d{2}[^\]\n]*\]\s*")


def texts(number: int) -> list[str]:
    source = random.Random(0)
    return ["".join(source.choices(FRAGMENTS, k=source.randrange(1, 9))) for _ in range(number)]


def test_texts_are_what_the_patterns_leave_of_them() -> None:
    for text in texts(5000):
        plain = REPEATED.sub("", EPHEMERAL.sub("", text)).strip()
        assert normalise.strip_ephemeral(text) == plain
        words = THINKING.sub("", plain)
        words = normalise._RUNTIME.sub("", TIMESTAMP.sub("", words))
        expected = " ".join(words.split())
        folded = meaning({"role": "user", "content": text})
        assert folded == (f'["user",{normalise.to_json(expected)},[]]'.encode() if expected else b"")


def test_instructions_lose_their_numbered_words() -> None:
    for text in texts(5000):
        plain = normalise.strip_ephemeral(text)
        expected = " ".join(normalise._NUMBERED_WORD.sub("", plain).split())
        assert fold_instructions(text) == expected


def test_folded_instructions_are_kept_in_bounds() -> None:
    fold_instructions.cache_clear()
    for number in range(200):
        setting_of([{"role": "system", "content": f"You are agent {'x' * number}."}], {})
    kept = fold_instructions.cache_info()
    assert kept.currsize == kept.maxsize == 64
    long: list[Message] = [{"role": "system", "content": "word " * 30_000}]
    assert setting_of(long, {}) == setting_of(long, {})
    assert fold_instructions.cache_info().misses == kept.misses, "a long one is folded again each time"


@pytest.mark.parametrize("reply", ["Rome.", ""], ids=["words", "none"])
def test_a_reply_s_keys_hold_what_was_asked_before_it(reply: str) -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "The capital of Italy?"},
    ]  # fmt: skip
    keys = reply_keys("ann", messages, {"role": "assistant", "content": reply}, b"setting")
    asked = fold_conversation("ann", messages, b"setting").asked
    assert (keys["asked"], keys["context"]) == (asked.asked, asked.context)
    assert ("chain" in keys) == bool(reply)
