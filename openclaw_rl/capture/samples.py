"""The tables of what was learned from, and how a sample is kept in one."""

from __future__ import annotations

import json
import zlib
from io import BytesIO

import numpy as np
import sqlalchemy as sa

from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.journal import Number, metadata
from openclaw_rl.types import Sample

#: ``ready`` waits for a step, ``trained`` and ``excluded`` are final.
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
    sa.Index("samples_by_status", "status", "created_at"),
    sa.Index("samples_by_step", "step"),
    sa.Index("samples_by_version", "policy_version", "created_at"),
    # Whole curves are read from these two alone.
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
    sa.Index("policies_by_status", "status"),
)

#: Append-only: which version served from when on, and why.
swaps = sa.Table(
    "swaps",
    metadata,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)


def encode_sample(sample: Sample) -> bytes:
    file = BytesIO()
    np.savez(
        file,
        ids=sample.ids_NK,
        old=sample.old_NK,
        signal=sample.signal_NK,
        prompt=np.array(sample.prompt_ids or [], np.int32),
        facts=np.frombuffer(to_json({"strength": sample.strength, "hint": sample.hint}).encode(), np.uint8),
    )
    return zlib.compress(file.getvalue(), 1)


def decode_sample(data: bytes) -> Sample:
    arrays = np.load(BytesIO(zlib.decompress(data)), allow_pickle=False)
    facts = json.loads(arrays["facts"].tobytes())
    prompt = (arrays["prompt"].tolist() if "prompt" in arrays else []) or None
    return Sample(arrays["ids"], arrays["old"], arrays["signal"], facts["strength"], facts["hint"], prompt)
