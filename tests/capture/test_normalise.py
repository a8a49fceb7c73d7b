"""Shortcuts of the normalisation give the same result as the patterns alone."""

from __future__ import annotations

import random

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


def texts(number: int) -> list[str]:
    source = random.Random(0)
    return ["".join(source.choices(FRAGMENTS, k=source.randrange(1, 9))) for _ in range(number)]


def test_text_without_a_hint_is_left_alone_by_the_pattern() -> None:
    for text in texts(5000):
        plain = normalise._REPEATED.sub("", normalise._EPHEMERAL.sub("", text)).strip()
        assert normalise.strip_ephemeral(text) == plain
        words = normalise._THINKING.sub("", plain)
        words = normalise._RUNTIME.sub("", normalise._TIMESTAMP.sub("", words))
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
