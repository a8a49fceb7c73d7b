"""The tables of samples, policies, swaps and attempts, and the encoding of a sample's examples."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
import sqlalchemy as sa

from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.learn_ledger import Number, metadata
from openclaw_rl.types import EVERYONE, Example, Json, Kind, Source, TurnRecord


def scope_column() -> sa.Column[str]:
    """The scope whose policy a row concerns."""
    return sa.Column("scope", sa.Text, nullable=False, server_default=EVERYONE)


TRAINED = "trained"
GATE_REJECTED = "the version trained on it did not pass its checks"
#: Also as older releases stored it.
GATE_REJECTIONS = (GATE_REJECTED, "gate_rejected: the version it was trained into did not pass the checks")

#: ``ready`` waits for a step, ``claimed`` is in one, ``trained`` and ``excluded`` are final.
samples = sa.Table(
    "samples",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("verdict", sa.Integer, nullable=False, comment="verdicts.seq it was made from"),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False, comment="the turn's"),
    sa.Column("policy_version", sa.Integer, nullable=False, comment="that answered"),
    sa.Column("score", sa.Integer, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("strength", sa.Double, nullable=False, default=0.0),
    sa.Column("step", sa.Integer, comment="policies.version it was claimed for"),
    sa.Column("data", sa.LargeBinary),
    scope_column(),
    sa.Column(
        "fingerprint", sa.Text, nullable=False, server_default="", comment="of the model that answered"
    ),
    sa.Index("samples_by_status", "status", "created_at"),
    # For a step's samples, those it replays, and those that the gate holds out.
    sa.Index("samples_by_scope", "scope", "status", "created_at", "turn_id"),
    sa.Index("samples_by_score", "scope", "status", "score", "user", "created_at"),
    sa.Index("samples_by_reason", "scope", "reason", "created_at"),
    sa.Index("samples_by_step", "step"),
    sa.Index("samples_by_version", "policy_version", "created_at"),
    # Covering indexes: curves are read from these two alone.
    sa.Index("samples_by_time", "created_at", "policy_version", "score"),
    sa.Index("samples_by_user", "user", "created_at", "policy_version", "score"),
)

#: ``training`` → ``candidate`` → ``serving`` → ``retired``, or ``rejected``. Version 0 is the base.
policies = sa.Table(
    "policies",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("parent", sa.Integer),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("published_at", sa.Double),
    sa.Column("num_samples", sa.Integer, nullable=False),
    sa.Column("config_hash", sa.Text, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False, comment="JSON, like the next"),
    sa.Column("gate", sa.Text, nullable=False),
    scope_column(),
    sa.Index("policies_by_status", "status"),
)

#: Append-only: which version serves from when, and why.
swaps = sa.Table(
    "swaps",
    metadata,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    scope_column(),
)


#: One row per episode, under its last turn.
attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True),
    scope_column(),
    sa.Column("group_id", sa.Text, nullable=False),
    sa.Column("group_size", sa.Integer, nullable=False),
    sa.Column("reward", sa.Double, comment="null where something else than the model failed"),
    sa.Column("failure", sa.Text, nullable=False, comment="whose, where the reward is null"),
    sa.Column("policy_version", sa.Integer, nullable=False, comment="that gave the last reply"),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("settled", sa.Integer, nullable=False, comment="1 once its group was learned from or given up"),
    sa.Index("attempts_by_group", "settled", "scope", "group_id"),
    sa.Index("attempts_by_time", "scope", "created_at"),
)


_ARRAYS = ("ids", "old", "signal")


def encode_examples(examples: Sequence[Example], turn: TurnRecord) -> bytes:
    """Leaves out the prompt and reply if they are the turn's own, which are stored with it."""
    arrays: dict[str, np.ndarray] = {}
    facts = []
    for n, example in enumerate(examples):
        for name in _ARRAYS:
            arrays[f"{name}{n}"] = getattr(example, f"{name}_NK")
        if example.prompt_ids != turn.prompt_ids:
            arrays[f"prompt{n}"] = np.array(example.prompt_ids, np.int32)
        if example.reply_ids != [token.id for token in turn.tokens]:
            arrays[f"reply{n}"] = np.array(example.reply_ids, np.int32)
        source = asdict(example.source)
        facts.append({**{name: getattr(example, name) for name in _FACTS}, "source": source})
    return _pack(arrays, facts)


_FACTS = ("num_free", "weight", "strength", "scope", "is_told")


def _pack(arrays: Mapping[str, Any], facts: Sequence[Json]) -> bytes:
    file = BytesIO()
    np.savez(file, **arrays, facts=np.frombuffer(to_json(facts).encode(), np.uint8))
    return zlib.compress(file.getvalue(), 1)


def keep_examples(data: bytes, keep: Callable[[Json], bool]) -> tuple[bytes | None, float]:
    """The examples whose source ``keep`` accepts, or None if none is left; and their strength."""
    arrays = np.load(BytesIO(zlib.decompress(data)), allow_pickle=False)
    facts = json.loads(arrays["facts"].tobytes())
    if isinstance(facts, dict):  # written by release 0.1, always from its own turn alone
        return data, facts["strength"]
    kept = [n for n, fact in enumerate(facts) if keep(fact["source"])]
    moved = {
        f"{name}{new}": arrays[f"{name}{old}"]
        for new, old in enumerate(kept)
        for name in (*_ARRAYS, "prompt", "reply")
        if f"{name}{old}" in arrays
    }
    strength = max((facts[n]["strength"] for n in kept), default=0.0)
    return _pack(moved, [facts[n] for n in kept]) if kept else None, strength


def change_sources(data: bytes, change: Callable[[Json, list[int] | None], Json]) -> bytes:
    """The same examples from other sources: ``change`` gets each, and its prompt unless it is the turn's."""
    arrays = np.load(BytesIO(zlib.decompress(data)), allow_pickle=False)
    facts = json.loads(arrays["facts"].tobytes())
    if isinstance(facts, dict):
        return data
    for n, fact in enumerate(facts):
        prompt = arrays[f"prompt{n}"].tolist() if f"prompt{n}" in arrays else None
        fact["source"] = change(fact["source"], prompt)
    return _pack({name: arrays[name] for name in arrays.files if name != "facts"}, facts)


def decode_examples(data: bytes, turn: TurnRecord, score: int) -> list[Example]:
    arrays = np.load(BytesIO(zlib.decompress(data)), allow_pickle=False)
    facts = json.loads(arrays["facts"].tobytes())
    if isinstance(facts, dict):
        return [_decode_sample(arrays, facts, turn, score)]
    return [_decode(arrays, n, fact, turn) for n, fact in enumerate(facts)]


def _decode(arrays: Mapping[str, Any], n: int, fact: Json, turn: TurnRecord) -> Example:
    lists = {name: tuple(fact["source"].get(name, ())) for name in ("turn_ids", "wish_ids")}
    source = Source(**{**fact["source"], **lists})
    prompt, reply = f"prompt{n}", f"reply{n}"
    fact = {"is_told": fact.get("in_every_step", False), **fact}  # its name before
    return Example(
        arrays[prompt].tolist() if prompt in arrays else turn.prompt_ids,
        arrays[reply].tolist() if reply in arrays else [token.id for token in turn.tokens],
        arrays[f"ids{n}"],
        arrays[f"old{n}"],
        arrays[f"signal{n}"],
        source,
        **{name: fact[name] for name in _FACTS if name in fact},
    )


def _decode_sample(arrays: Mapping[str, Any], facts: Json, turn: TurnRecord, score: int) -> Example:
    """The format of release 0.1: one example per turn, always on the turn's own reply."""
    prompt = arrays["prompt"].tolist() if "prompt" in arrays else []
    kind: Kind = "accepted" if prompt else "own"
    return Example(
        prompt or turn.prompt_ids,
        [token.id for token in turn.tokens],
        arrays["ids"],
        arrays["old"],
        arrays["signal"],
        Source(kind, (turn.id,), turn.user, score, facts["hint"], turn.policy_version),
        num_free=sum(not token.forced for token in turn.tokens),
        strength=facts["strength"],
    )
