"""Captured turns as JSONL, one session a line, and back.

``session_id`` and ``turns[]`` with ``type``, ``prompt``, ``response``, ``next_state`` and
``trainable`` are the common trajectory format; ``exact`` beside them holds what a ledger needs to
be restored to the last bit. Lines without ``exact`` cannot be imported: text is no substitute for
the sampled tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from typing import Any, TextIO

from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.ledger import Ledger
from openclaw_rl.types import Json, SamplingParams, Token, TurnRecord

_BATCH = 200


def export_sessions(ledger: Ledger, file: TextIO) -> int:
    """Write every session; returns how many."""
    number = 0
    for session_id, turns in groupby(ledger.iter_turns(), key=lambda turn: turn.session_id):
        lines = list(turns)
        user = lines[0].user
        file.write(to_json({"session_id": session_id, "user": user, "turns": _turns(lines)}) + "\n")
        number += 1
    return number


def _turns(turns: list[TurnRecord]) -> list[Json]:
    """A turn's next state is what its continuation added after the reply."""
    following = {turn.continues: turn for turn in reversed(turns) if turn.continues}
    return [_turn(turn, following.get(turn.id)) for turn in turns]


def _turn(turn: TurnRecord, following: TurnRecord | None) -> Json:
    added = following.messages[len(turn.messages) + 1 :] if following else None
    return {
        "id": turn.id,
        "type": turn.kind,
        "prompt": turn.messages,
        "response": turn.reply,
        "next_state": added,
        "trainable": turn.finish_reason != "cancelled",
        "exact": {
            name: value for name, value in asdict(turn).items() if name not in ("messages", "reply", "kind")
        },
    }


def import_sessions(ledger: Ledger, lines: Iterable[str]) -> int:
    """Add what is not there yet; returns the number of turns read. Stops at the first bad line."""
    number = 0
    batch: list[TurnRecord] = []
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            batch += [_read_turn(turn) for turn in json.loads(line)["turns"]]
        except (ValueError, KeyError, TypeError) as error:
            ledger.append(batch)
            raise ValueError(
                f"line {line_number} is no exported session ({type(error).__name__}: {error}); "
                f"{number + len(batch)} turns before it were imported"
            ) from None
        if len(batch) >= _BATCH:
            ledger.append(batch)
            number, batch = number + len(batch), []
    ledger.append(batch)
    return number + len(batch)


def _read_turn(data: dict[str, Any]) -> TurnRecord:
    exact = dict(data["exact"])
    tokens = [
        Token(**{**token, "top_ids": tuple(token["top_ids"]), "top_logprobs": tuple(token["top_logprobs"])})
        for token in exact.pop("tokens")
    ]
    return TurnRecord(
        **{**exact, "sampling": SamplingParams(**exact["sampling"])},
        tokens=tokens,
        kind=data["type"],
        messages=data["prompt"],
        reply=data["response"],
    )
