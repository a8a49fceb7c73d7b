"""Exports captured turns as JSONL, one session per line, and imports them.

``session_id`` and ``turns[]`` with ``type``, ``prompt``, ``response``, ``next_state`` and
``trainable`` are the common trajectory format; ``exact`` holds what is needed to restore a ledger
bit for bit. Lines without ``exact`` cannot be imported: text is no substitute for the sampled
tokens. docs/lab/ledger.md describes every field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TextIO

from openclaw_rl.capture.normalise import is_ephemeral
from openclaw_rl.capture.schema import FACTS
from openclaw_rl.capture.serve_ledger import Delivery, Entry, ServeLedger
from openclaw_rl.types import Json, SamplingParams, Token, TurnRecord

_BATCH = 200
_TOKEN_COLUMNS = ("id", "logprob", "sampled_logprob", "top_ids", "top_logprobs", "forced")
#: Fields of a turn stored under their own names in ``exact``; the others are stored elsewhere.
_EXACT = (
    "session_id", "user", "dialect", "tools", "params", "prompt_ids", "policy_version", "finish_reason",
    "created_at", "timings", "continues", "keys",
)  # fmt: skip


def export_sessions(ledger: ServeLedger, file: TextIO, user: str | None = None) -> int:
    """Write every session, or those of one user, oldest first; returns how many."""
    number = 0
    for turns, deliveries in ledger.iter_sessions():
        if user not in (None, turns[0].user):
            continue
        lines = _describe_turns(turns, deliveries)
        session = {"session_id": turns[0].session_id, "user": turns[0].user, "turns": lines}
        # ASCII, because a client's lone surrogate cannot be written as UTF-8.
        file.write(json.dumps(session, separators=(",", ":")) + "\n")
        number += 1
    return number


def _describe_turns(turns: list[TurnRecord], deliveries: Mapping[str, Delivery]) -> list[Json]:
    following = {turn.continues: turn for turn in reversed(turns) if turn.continues}
    return [_describe_turn(turn, following.get(turn.id), deliveries.get(turn.id)) for turn in turns]


def _describe_turn(turn: TurnRecord, following: TurnRecord | None, delivery: Delivery | None) -> Json:
    return {
        "id": turn.id,
        "type": turn.kind,
        "prompt": turn.messages,
        "response": turn.reply,
        "next_state": _next_state(following) if following else None,
        "trainable": turn.finish_reason != "cancelled",
        "exact": {
            **{name: getattr(turn, name) for name in (*_EXACT, *FACTS)},
            "sampling": asdict(turn.sampling),
            "tokens": {name: [getattr(t, name) for t in turn.tokens] for name in _TOKEN_COLUMNS},
            "engine_finish": turn.tokens[-1].finish_reason if turn.tokens else None,
            "delivery": None if delivery is None else [delivery.delivered, delivery.at],
        },
    }


def _next_state(following: TurnRecord) -> list[Json]:
    """The messages after the newest reply in the request that continues it, without injected context."""
    added: list[Json] = []
    for message in reversed(following.messages):
        if message.get("role") == "assistant":
            break
        if not (isinstance(message.get("content"), str) and is_ephemeral({"role": "", **message})):
            added.append(message)
    return added[::-1]


def import_sessions(
    ledger: ServeLedger, lines: Iterable[str], redact: Callable[[Entry], list[Entry]] = lambda entry: [entry]
) -> int:
    """Add turns that are not stored yet; returns the number read. Stops at the first bad line."""
    number = 0
    batch: list[Entry] = []
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            session = [entry for turn in json.loads(line)["turns"] for entry in _read_turn(turn)]
            number += _num_turns(session)
            session = [kept for entry in session for kept in redact(entry)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _append(ledger, batch)
            raise ValueError(
                f"line {line_number} is no exported session ({type(error).__name__}: {error}); "
                f"{number} turns before it were imported"
            ) from None
        batch += session
        if len(batch) >= _BATCH:
            _append(ledger, batch)
            batch = []
    _append(ledger, batch)
    return number


def _append(ledger: ServeLedger, batch: list[Entry]) -> None:
    ledger.append(batch)
    ledger.checkpoint()


def _num_turns(entries: list[Entry]) -> int:
    return sum(isinstance(entry, TurnRecord) for entry in entries)


def _read_turn(data: dict[str, Any]) -> list[Entry]:
    exact = data["exact"]
    turn = TurnRecord(
        id=data["id"],
        kind=data["type"],
        messages=data["prompt"],
        reply=data["response"],
        sampling=SamplingParams(**exact["sampling"]),
        tokens=_read_tokens(exact),
        **{name: exact[name] for name in _EXACT},
        **{name: exact.get(name, default) for name, default in FACTS.items()},
    )
    if exact["delivery"] is None:
        return [turn]
    return [turn, Delivery(turn.id, *exact["delivery"])]


def _read_tokens(exact: Json) -> list[Token]:
    columns = zip(*(exact["tokens"][name] for name in _TOKEN_COLUMNS), strict=True)
    tokens = [
        Token(token_id, logprob, sampled, tuple(top_ids), tuple(values), exact["policy_version"], forced)
        for token_id, logprob, sampled, top_ids, values, forced in columns
    ]
    if tokens:
        last = asdict(tokens[-1]) | {"finish_reason": exact["engine_finish"]}
        tokens[-1] = Token(**last)
    return tokens
