"""Keeps text from users and tools from turning into control tokens.

A mark is put after the first character of every control token's text found in a message. The
template then renders as usual, and the rendered prompt is split at the marks and encoded piece by
piece: no control token can form across a split, and the text the model reads is unchanged. Text
without control tokens is not changed, so its ids are those of the plain template.

Not covered: control tokens of one character, and text that a template joins into a control token.
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Iterable
from typing import Any


class TextGuard:
    """Marks the given token texts wherever they occur in strings, lists and dicts."""

    def __init__(self, tokens: Iterable[str], mark: str) -> None:
        self._pattern = _starts_of(tokens)
        self.mark = mark

    def protect(self, value: Any) -> Any:
        """A copy of ``value`` with marks; keys of dicts count as text too."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def _protect_text(self, text: str) -> str:
        return self._pattern.sub(lambda match: match.group() + self.mark, text) if self._pattern else text


def new_mark() -> str:
    """Random, so that no message can contain it on purpose; only letters and digits, so that no
    template's JSON or HTML escaping changes it."""
    return f"x{secrets.token_hex(12)}x"


def _starts_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Matches the first character of each occurrence, overlapping ones included."""
    rests: defaultdict[str, list[str]] = defaultdict(list)
    for token in tokens:
        if len(token) > 1:
            rests[token[0]].append(re.escape(token[1:]))
    parts = [f"{re.escape(first)}(?={'|'.join(sorted(rest))})" for first, rest in sorted(rests.items())]
    return re.compile("|".join(parts)) if parts else None
