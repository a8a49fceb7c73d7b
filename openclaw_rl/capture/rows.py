"""Encodes turns as rows and decodes them, bit for bit.

Log-probs are stored as float32, which is what engines compute. A turn that could not be restored
exactly is rejected with a ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.content import ContentRows, Row, pack_ids, to_json, unpack_ids
from openclaw_rl.capture.database import batched
from openclaw_rl.types import SamplingParams, Token, TurnRecord

#: hash -> (parent's hash, value)
Links = dict[bytes, tuple[bytes | None, bytes]]


def encode_turn(turn: TurnRecord, content: ContentRows) -> Row:
    """The columns of ``turns`` except its numbers; what other turns share goes to ``content``."""
    _check(turn)
    block, tail = content.add_prompt(turn.prompt_ids)
    tokens = turn.tokens
    return {
        "id": turn.id, "user": turn.user, "dialect": turn.dialect, "kind": turn.kind,
        "continues": turn.continues, "created_at": turn.created_at,
        "policy_version": turn.policy_version, "finish_reason": turn.finish_reason,
        "engine_finish": tokens[-1].finish_reason if tokens else None,
        "prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(tokens),
        "node": content.add_messages(turn.messages),
        "tools": content.add_body(turn.tools) if turn.tools is not None else None,
        "params": content.add_body(turn.params),
        "reply": content.add_body(turn.reply),
        "block": block, "prompt_tail": tail,
        "sampling": to_json(asdict(turn.sampling)), "timings": to_json(turn.timings),
        "lookup_keys": to_json(turn.keys),
        "ids": pack_ids([token.id for token in tokens]),
        "logprobs": _pack_floats([token.logprob for token in tokens]),
        "sampled_logprobs": _pack_floats([token.sampled_logprob for token in tokens]),
        "forced": bytes(token.forced for token in tokens),
        "top_ids": pack_ids([i for token in tokens for i in token.top_ids]),
        "top_logprobs": _pack_floats([value for token in tokens for value in token.top_logprobs]),
        **{name: getattr(turn, name) for name in schema.FACTS},
    }  # fmt: skip


def _check(turn: TurnRecord) -> None:
    widths = {len(token.top_ids) for token in turn.tokens} | {len(t.top_logprobs) for t in turn.tokens}
    if len(widths) > 1:
        raise ValueError(f"turn {turn.id}: tokens carry top-k lists of different lengths {sorted(widths)}")
    versions = {token.policy_version for token in turn.tokens}
    if versions - {turn.policy_version}:
        raise ValueError(
            f"turn {turn.id}: tokens of versions {sorted(versions)} in version {turn.policy_version}"
        )
    if any(token.finish_reason for token in turn.tokens[:-1]):
        raise ValueError(f"turn {turn.id}: a token before the last has a finish reason")
    facts = [getattr(turn, name) for name, default in schema.FACTS.items() if isinstance(default, str)]
    names = (turn.id, turn.session_id, turn.user, turn.dialect, turn.kind, turn.continues or "", *facts)
    if not all(isinstance(name, str) and "\0" not in name for name in names):
        raise ValueError(f"turn {turn.id!r}: an id or a name is no text, or has a NUL character")


def decode_turns(connection: sa.Connection, rows: Sequence[Any]) -> list[TurnRecord]:
    """From rows of ``turns`` joined with ``session_id``; a handful of queries for any number of rows."""
    nodes = load_chains(connection, schema.nodes, "body", {row.node for row in rows})
    blocks = load_chains(connection, schema.blocks, "ids", {row.block for row in rows})
    hashes = {body for _, body in nodes.values()}
    hashes |= {key for row in rows for key in (row.tools, row.params, row.reply) if key is not None}
    bodies = load_bodies(connection, hashes)
    try:
        return [_decode_turn(row, nodes, blocks, bodies) for row in rows]
    except KeyError as error:
        raise LookupError(
            f"content {error.args[0].hex()} is missing; `openclaw-rl data check` says what is damaged"
        ) from None


def _decode_turn(row: Any, nodes: Links, blocks: Links, bodies: dict[bytes, bytes]) -> TurnRecord:
    return TurnRecord(
        id=row.id, session_id=row.session_id, user=row.user, dialect=row.dialect, kind=row.kind,
        messages=[json.loads(bodies[key]) for key in walk(nodes, row.node)],
        tools=json.loads(bodies[row.tools]) if row.tools is not None else None,
        params=json.loads(bodies[row.params]), reply=json.loads(bodies[row.reply]),
        prompt_ids=unpack_ids(b"".join(walk(blocks, row.block)) + row.prompt_tail),
        tokens=_decode_tokens(row), sampling=SamplingParams(**json.loads(row.sampling)),
        policy_version=row.policy_version, finish_reason=row.finish_reason, created_at=row.created_at,
        timings=json.loads(row.timings), continues=row.continues, keys=json.loads(row.lookup_keys),
        **{name: getattr(row, name) for name in schema.FACTS},
    )  # fmt: skip


def _decode_tokens(row: Any) -> list[Token]:
    count = row.completion_tokens
    if not count:
        return []
    top_ids = np.frombuffer(row.top_ids, dtype="<i4").reshape(count, -1).tolist()
    top_logprobs = np.frombuffer(row.top_logprobs, dtype="<f4").reshape(count, -1).tolist()
    logprobs = np.frombuffer(row.logprobs, dtype="<f4").tolist()
    sampled_logprobs = np.frombuffer(row.sampled_logprobs, dtype="<f4").tolist()
    return [
        Token(
            id=token_id, logprob=logprob, sampled_logprob=sampled,
            top_ids=tuple(top), top_logprobs=tuple(values),
            policy_version=row.policy_version, forced=bool(forced),
            finish_reason=row.engine_finish if i == count - 1 else None,
        )
        for i, (token_id, logprob, sampled, top, values, forced) in enumerate(
            zip(
                unpack_ids(row.ids), logprobs, sampled_logprobs, top_ids, top_logprobs, row.forced,
                strict=True,
            )
        )
    ]  # fmt: skip


def _pack_floats(values: Sequence[float]) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


def load_chains(
    connection: sa.Connection, table: sa.Table, column: str, ends: Iterable[bytes | None]
) -> Links:
    """All links of the chains with these ends; shared links are read once."""
    links: Links = {}
    for batch in batched(end for end in ends if end is not None):
        columns = (table.c.hash, table.c.parent, table.c[column])
        chain = sa.select(*columns).where(table.c.hash.in_(batch)).cte(recursive=True)
        chain = chain.union(sa.select(*columns).join(chain, table.c.hash == chain.c.parent))
        links.update((key, (parent, value)) for key, parent, value in connection.execute(sa.select(chain)))
    return links


def walk(links: Links, last: bytes | None) -> list[bytes]:
    """A chain's values from its first link to ``last``."""
    values: list[bytes] = []
    while last is not None:
        last, value = links[last]
        values.append(value)
    return values[::-1]


def load_bodies(connection: sa.Connection, keys: Iterable[bytes]) -> dict[bytes, bytes]:
    table = schema.bodies
    return {
        key: body
        for batch in batched(keys)
        for key, body in connection.execute(
            sa.select(table.c.hash, table.c.body).where(table.c.hash.in_(batch))
        )
    }
