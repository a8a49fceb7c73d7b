"""Removes secrets before anything is stored: from turns, their events, and feedback.

A turn with a secret is stored with the secret masked and without its tokens, which would reveal it, and with
the kinds of secrets found; nothing is learned from it. Its look-up keys are hashes of the original text, so
that its session can still be continued. With ``drop`` it is not stored at all.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from openclaw_rl.capture import events
from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.serve_ledger import Entry
from openclaw_rl.secret_scan import find_secrets, mask
from openclaw_rl.types import Json, TurnRecord

#: Size of the cache of messages without secrets: a history is resent with every request.
_REMEMBERED = 50_000


class Redactor:
    """Returns what to store instead of an entry."""

    def __init__(self, drop: bool = False) -> None:
        find_secrets("loaded now, so that whatever is missing is said at the start")
        self._drop = drop
        self._clean: OrderedDict[bytes, None] = OrderedDict()

    def __call__(self, entry: Entry) -> list[Entry]:
        """ValueError if the search failed: an entry that was not searched is not stored."""
        try:
            if isinstance(entry, TurnRecord):
                return self._turn(entry)
            return self._event(entry) if isinstance(entry, TurnEvent) else [entry]
        except Exception as error:
            raise ValueError(f"the search for secrets failed: {type(error).__name__}") from error

    def _turn(self, turn: TurnRecord) -> list[Entry]:
        parts = {"messages": turn.messages, "tools": turn.tools, "params": turn.params, "reply": turn.reply}
        kinds = self._kinds(*turn.messages, *(turn.tools or ()), turn.params, turn.reply)
        if not kinds:
            return [turn]
        if self._drop:
            return []
        masked: dict[str, Any] = {name: _masked(part) for name, part in parts.items()}
        return [replace(turn, **masked, prompt_ids=[], tokens=[], secrets=", ".join(sorted(kinds)))]

    def _event(self, event: TurnEvent) -> list[Entry]:
        if not self._kinds(*(event.messages or ()), event.data):
            return [event]
        if event.kind == events.FEEDBACK:
            # Keep the rating, but use no text with a secret as a hint.
            return [replace(event, data={**event.data, "text": None})]
        found = TurnEvent(event.turn_id, events.SECRET, event.at)
        if self._drop:
            return [found]
        return [found, replace(event, messages=_masked(event.messages), data=_masked(event.data))]

    def _kinds(self, *values: Json) -> set[str]:
        kinds: set[str] = set()
        for value in values:
            key = hashlib.blake2b(to_json(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if key in self._clean:
                self._clean.move_to_end(key)
            elif found := {kind for text in _texts(value) for kind in (f.kind for f in find_secrets(text))}:
                kinds |= found
            else:
                self._clean[key] = None
        while len(self._clean) > _REMEMBERED:
            self._clean.popitem(last=False)
        return kinds


def create_redactor(mode: str) -> Callable[[Entry], list[Entry]]:
    """``mode`` is the value of ``--redact``: off, mask or drop."""
    return (lambda entry: [entry]) if mode == "off" else Redactor(drop=mode == "drop")


def json_redactor(mode: str) -> Callable[[Json], Json]:
    """The same for JSON that is no turn, which is masked also where turns are dropped."""
    return (lambda value: value) if mode == "off" else _masked


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in (*value.items(),) for part in item for text in _texts(part)]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(key): _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value
