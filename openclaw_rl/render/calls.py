"""Parses tool calls out of text, one character at a time.

A scanner is a grammar written as a generator that is sent characters. It streams a call as soon as
its name and the first character of its arguments are known, and raises ``NotACall`` at the first
character that does not fit; ``raw`` then holds what no call has consumed, so nothing is lost.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TypeVar

from openclaw_rl.types import Delta

T = TypeVar("T")
#: A part of a grammar: receives characters, returns what it read.
Reader = Generator[None, str, T]

_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_CLOSER = {"{": "}", "[": "]"}
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.,: \t\r\n")
_VALUE_START = (_BARE - frozenset("+.,: \t\r\n")) | frozenset('"{[')
_SCALAR_END = frozenset(",}] \t\r\n")


class NotACall(Exception):
    """The text is not, or no longer, a tool call."""


class CallScanner(ABC):
    """Scans one stretch of text that may hold calls; the caller empties ``deltas``."""

    def __init__(self, first_index: int) -> None:
        self.deltas: list[Delta] = []
        self.next_index = first_index
        self.pending = True
        """Whether ``raw`` may be the beginning of a call, rather than the end of one."""
        self.done = False
        self._raw: list[str] = []
        self._grammar = self.grammar()
        next(self._grammar)

    @abstractmethod
    def grammar(self) -> Reader[None]: ...

    def feed(self, char: str) -> None:
        self._raw.append(char)
        try:
            self._grammar.send(char)
        except StopIteration:
            self.done = True

    def finish(self) -> None:
        """At the end of the text, emit what is held back inside a call that has begun."""
        return

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def begin(self, name: str, unread: str = "") -> None:
        """Announce a call; ``unread`` is a character already received but not yet consumed."""
        self.deltas.append(Delta(tool_index=self.next_index, tool_name=name))
        self.next_index += 1
        self.pending = False
        self._raw[:] = unread

    def arguments(self, text: str) -> None:
        if text:
            self.deltas.append(Delta(tool_index=self.next_index - 1, arguments=text))

    def settle(self) -> None:
        """Mark all characters so far as consumed."""
        self._raw.clear()


def skip_space() -> Reader[str]:
    """The next character that is not white space."""
    char = yield
    while char.isspace():
        char = yield
    return char


def expect(text: str, char: str) -> Reader[None]:
    """``char`` was already read and must be the first of ``text``."""
    for index, expected in enumerate(text):
        if index:
            char = yield
        if char != expected:
            raise NotACall


class JsonCalls(CallScanner):
    """``{"name": …, "arguments": …}`` or a list of these, up to ``</tool_call>``."""

    close_tag = "</tool_call>"

    def grammar(self) -> Reader[None]:
        try:
            yield from self._calls()
            char = yield from skip_space()
        except NotACall:
            # Arguments cut short by the closing tag are kept as they are.
            if self.pending or self.raw.strip() != self.close_tag[0]:
                raise
            char = self.close_tag[0]
        while char in "}]":  # an extra bracket is the most common mistake of small models
            char = yield from skip_space()
        yield from expect(self.close_tag, char)

    def _calls(self) -> Reader[None]:
        char = yield from skip_space()
        if char == "[":
            yield from self._list()
        else:
            yield from self._object(char)

    def _list(self) -> Reader[None]:
        char = ","
        while char == ",":
            char = yield from skip_space()
            yield from self._object(char)
            char = yield from skip_space()
        if char != "]":
            raise NotACall
        self.settle()

    def _object(self, char: str, *, needs_arguments: bool = False) -> Reader[None]:
        if char != "{":
            raise NotACall
        self.pending = True
        name: str | None = None
        early: str | None = None  # arguments that came before the name
        char = ","
        while char == ",":
            key = yield from self._key()
            char = yield from skip_space()
            is_arguments = key in _ARGUMENT_KEYS and early is None and self.pending
            if char not in _VALUE_START:
                raise NotACall
            if is_arguments and name is not None:
                self.begin(name, unread=char)
                _, char = yield from self._value(char, live=True)
            else:
                value, char = yield from self._value(char, live=False)
                early = value if is_arguments else early
                name = _name(value) if key == "name" and name is None else name
            if name is not None and early is not None and self.pending:
                self.begin(name, unread=char)
                self.arguments(early)
            if char.isspace():
                char = yield from skip_space()
        if char != "}" or name is None or (self.pending and needs_arguments):
            raise NotACall
        if self.pending:
            self.begin(name)
            self.arguments("{}")
        self.settle()

    def _key(self) -> Reader[str]:
        char = yield from skip_space()
        if char != '"':
            raise NotACall
        literal = yield from self._string(live=False)
        char = yield from skip_space()
        if char != ":":
            raise NotACall
        return _text(literal)

    def _value(self, char: str, *, live: bool) -> Reader[tuple[str, str]]:
        """The value as written, and the character after it."""
        if char == '"':
            self._stream(char, live)
            text = yield from self._string(live=live)
        elif char in _CLOSER:
            text = yield from self._container(char, live=live)
        else:
            return (yield from self._scalar(char, live=live))
        after = yield
        return text, after

    def _stream(self, char: str, live: bool) -> None:
        if live:
            self.arguments(char)
            self.settle()

    def _string(self, *, live: bool) -> Reader[str]:
        """The whole literal, quotes included; the opening quote was already read."""
        out, escaped = ['"'], False
        while True:
            char = yield
            out.append(char)
            self._stream(char, live)
            if char == '"' and not escaped:
                return "".join(out)
            escaped = char == "\\" and not escaped

    def _container(self, char: str, *, live: bool) -> Reader[str]:
        out, closers = [char], [_CLOSER[char]]
        self._stream(char, live)
        while closers:
            char = yield
            if char in _CLOSER:
                closers.append(_CLOSER[char])
            elif char == closers[-1]:
                closers.pop()
            elif char != '"' and char not in _BARE:
                raise NotACall
            self._stream(char, live)
            out.append((yield from self._string(live=live)) if char == '"' else char)
        return "".join(out)

    def _scalar(self, char: str, *, live: bool) -> Reader[tuple[str, str]]:
        out = []
        while char not in _SCALAR_END:
            if char not in _BARE:
                raise NotACall
            out.append(char)
            self._stream(char, live)
            char = yield
        return "".join(out), char


def _text(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except (ValueError, RecursionError):
        raise NotACall from None


def _name(literal: str) -> str:
    name = _text(literal) if literal.startswith('"') else ""
    if not name:
        raise NotACall
    return name
