"""Content addressing: turns messages and token ids into rows that are stored once.

Nothing here touches a database. Hash chains make a prefix's identity the hash of its last link,
so recognising a known history needs no look-up and no comparison.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from openclaw_rl.capture import schema

BLOCK_TOKENS = 256
Row = dict[str, Any]


def digest(*parts: bytes) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(4, "little"))
        hashed.update(part)
    return hashed.digest()


#: Created once: ``json.dumps`` would create an encoder for every message.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def pack_ids(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> list[int]:
    values: list[int] = np.frombuffer(data, dtype="<i4").tolist()
    return values


class KnownHashes:
    """Hashes known to be stored already: a bounded memory that spares repeated inserts.

    Valid for one prune generation only; the writer starts a new cache with the next.
    """

    def __init__(self, generation: int = 0, capacity: int = 200_000) -> None:
        self.generation = generation
        self._capacity = capacity
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        if key not in self._hashes:
            return False
        self._hashes.move_to_end(key)
        return True

    def update(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._hashes[key] = None
        while len(self._hashes) > self._capacity:
            self._hashes.popitem(last=False)


@dataclass
class ContentRows:
    """New rows of the content tables, collected for one transaction."""

    seen: KnownHashes
    bodies: dict[bytes, Row] = field(default_factory=dict)
    nodes: dict[bytes, Row] = field(default_factory=dict)
    blocks: dict[bytes, Row] = field(default_factory=dict)

    def add_body(self, value: Any) -> bytes:
        body = to_json(value).encode("utf-8", "surrogatepass")
        key = digest(b"body", body)
        self._put(self.bodies, key, {"hash": key, "body": body})
        return key

    def add_messages(self, messages: Sequence[Any]) -> bytes | None:
        parent: bytes | None = None
        for message in messages:
            body = self.add_body(message)
            key = digest(b"node", parent or b"", body)
            self._put(self.nodes, key, {"hash": key, "parent": parent, "body": body})
            parent = key
        return parent

    def add_prompt(self, ids: Sequence[int]) -> tuple[bytes | None, bytes]:
        """The chain of full blocks, and the ids after them."""
        packed, step = pack_ids(ids), 4 * BLOCK_TOKENS
        full = len(packed) // step
        parent: bytes | None = None
        for i in range(full):
            block = packed[i * step : (i + 1) * step]
            key = digest(b"block", parent or b"", block)
            self._put(self.blocks, key, {"hash": key, "parent": parent, "ids": block})
            parent = key
        return parent, packed[full * step :]

    def _put(self, rows: dict[bytes, Row], key: bytes, row: Row) -> None:
        if key not in self.seen:
            rows[key] = {**row, "epoch": self.seen.generation}

    def tables(self) -> list[tuple[sa.Table, dict[bytes, Row]]]:
        return [(schema.bodies, self.bodies), (schema.nodes, self.nodes), (schema.blocks, self.blocks)]

    def mark_stored(self) -> None:
        """Call after the transaction committed, never before: a rolled-back row is not stored."""
        self.seen.update([*self.bodies, *self.nodes, *self.blocks])
