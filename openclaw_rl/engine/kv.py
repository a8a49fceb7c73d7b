"""Keys and values of sequences, kept after use so that the next turn starts where this one ended.

Each sequence owns one contiguous buffer that grows by doubling: attention reads it in place,
nothing is gathered. A finished sequence's buffer stays, tagged with its policy version, until
the token budget needs it. A new prompt takes over the buffer it extends, or copies the shared
prefix of one that must stay intact. Versions never share contents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

_SMALLEST = 256
#: Taking over a buffer may discard up to this share of its tokens; else the prefix is copied.
_MAX_LOSS = 0.25
#: Prefixes shorter than this are cheaper to recompute than to track.
_MIN_PREFIX = 8
#: The version of caches in use whose own was dropped.
_DROPPED = -(1 << 31)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a cache: all of their own tokens, others' only as far as both declare them public.

    Otherwise reply latency would reveal to one user how another's prompt begins.
    """

    owner: str | None = None
    """None is the system itself, which may read everything."""
    num_public: int = 0


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Views per layer: the new keys and values, and all of them including the new ones."""

    new_2HTD: Sequence[torch.Tensor]
    keys_1HTD: Sequence[torch.Tensor]
    values_1HTD: Sequence[torch.Tensor]


class SequenceCache:
    """One sequence's keys and values, and the token ids they belong to."""

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
    ):
        self._dims = (num_layers, 2, num_kv_heads, head_dim)
        self._device, self._dtype = device, dtype
        self._kv_L2HTD = torch.empty(num_layers, 2, num_kv_heads, 0, head_dim, device=device, dtype=dtype)
        self._ids = np.empty(0, dtype=np.int64)
        self.length = 0
        self.version = 0
        self.of = Reader()
        """Whose tokens it holds."""
        self.in_use = True
        self.last_used = 0.0

    @property
    def capacity(self) -> int:
        return int(self._kv_L2HTD.shape[3])

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: self.length]

    @property
    def pointer(self) -> int:
        """Address of layer 0's keys; valid until the next ``reserve``."""
        return self._kv_L2HTD.data_ptr()

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens, keeping what is there."""
        if length <= self.capacity:
            return
        capacity = max(_SMALLEST, 1 << (length - 1).bit_length())
        layers, two, heads, dim = self._dims
        grown = torch.empty(layers, two, heads, capacity, dim, device=self._device, dtype=self._dtype)
        grown[:, :, :, : self.length] = self._kv_L2HTD[:, :, :, : self.length]
        ids = np.empty(capacity, dtype=np.int64)
        ids[: self.length] = self.ids
        self._kv_L2HTD, self._ids = grown, ids

    def open(self, count: int) -> OpenRows:
        """Room for the next ``count`` tokens, as views of every layer.

        Called per step, not per layer: on a CPU, creating a view costs as much as a small copy.
        """
        self.reserve(self.length + count)
        new = self._kv_L2HTD.narrow(3, self.length, count)
        seen = self._kv_L2HTD.narrow(3, 0, self.length + count).unsqueeze(2).flatten(0, 1).unbind(0)
        return OpenRows(new.unbind(0), seen[0::2], seen[1::2])

    def extend(self, token_ids: Sequence[int]) -> None:
        """Mark the rows written by a finished pass as valid."""
        end = self.length + len(token_ids)
        self._ids[self.length : end] = token_ids
        self.length = end

    def reusable(self, length: int) -> int:
        """How many of the first ``length`` tokens a sequence can continue from."""
        return length

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

    def copy_prefix(self, other: SequenceCache, length: int) -> None:
        self.reserve(length)
        self._kv_L2HTD[:, :, :, :length] = other._kv_L2HTD[:, :, :, :length]
        self._ids[:length] = other._ids[:length]
        self.length = length

    def common_prefix(self, ids: np.ndarray) -> int:
        n = min(len(ids), self.length)
        differs = np.flatnonzero(self._ids[:n] != ids[:n])
        return int(differs[0]) if len(differs) else n


def may_share(reader: Reader, of: Reader) -> int:
    """How many tokens of a cache that belongs to ``of`` the reader may reuse."""
    if reader.owner is None or reader.owner == of.owner:
        return sys.maxsize
    return min(reader.num_public, of.num_public)


class CachePool:
    """All sequence caches under one token budget; the least recently used is evicted first.

    Idle caches have a smaller budget of their own, ``idle_tokens``, so that they do not fill the memory
    meant for running sequences.
    """

    def __init__(
        self, new_cache: Callable[[], SequenceCache], budget_tokens: int, idle_tokens: int | None = None
    ) -> None:
        self._new = new_cache
        self.budget_tokens = budget_tokens
        self._idle_tokens = budget_tokens if idle_tokens is None else idle_tokens
        self._caches: list[SequenceCache] = []
        self._reserved: dict[int, int] = {}

    @property
    def cached_tokens(self) -> int:
        return sum(cache.length for cache in self._caches)

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of this final length can be admitted now (idle caches are evicted)."""
        return sum(self._reserved.values()) + num_tokens <= self.budget_tokens or not self._reserved

    def acquire(
        self, ids: np.ndarray, limit: int, version: int, num_tokens: int, now: float, reader: Reader
    ) -> SequenceCache:
        """A cache holding the longest known prefix of ``ids``, at most ``limit`` tokens of it."""
        source, shared = self.best_prefix(ids, version, reader)
        shared = source.reusable(min(shared, limit)) if source else 0
        cache = self._adopt(source, shared, reader) if source else self._new()
        if cache not in self._caches:
            self._caches.append(cache)
        cache.version, cache.in_use, cache.last_used, cache.of = version, True, now, reader
        self._reserved[id(cache)] = num_tokens
        self._evict()
        return cache

    def _adopt(self, source: SequenceCache, shared: int, reader: Reader) -> SequenceCache:
        if shared < _MIN_PREFIX:
            return self._new()
        # The system may read everybody's, but leaves it: its owner continues from it, and what the system
        # adds may be about somebody else.
        is_free = not source.in_use and (reader.owner is not None or source.of.owner is None)
        if is_free and shared >= source.length * (1 - _MAX_LOSS):
            source.truncate(shared)
            return source
        cache = self._new()
        cache.copy_prefix(source, shared)
        return cache

    def best_prefix(self, ids: np.ndarray, version: int, reader: Reader) -> tuple[SequenceCache | None, int]:
        best: tuple[SequenceCache | None, int] = (None, 0)
        for cache in list(self._caches):  # a copy: also called outside the engine's thread
            if cache.version != version:
                continue
            shared = cache.reusable(min(cache.common_prefix(ids), may_share(reader, cache.of)))
            if shared > best[1]:
                best = (cache, shared)
        return best

    def recent(self, version: int, limit: int) -> list[SequenceCache]:
        """A version's caches, most recently used first."""
        mine = [cache for cache in self._caches if cache.version == version and cache.length]
        return sorted(mine, key=lambda cache: -cache.last_used)[:limit]

    def release(self, cache: SequenceCache, now: float) -> None:
        cache.in_use, cache.last_used = False, now
        self._reserved.pop(id(cache), None)
        self.drop_version(_DROPPED)
        self._evict()

    def drop_version(self, version: int) -> None:
        """Caches in use go when they are released: other weights may get the same number meanwhile."""
        dropped = [cache for cache in self._caches if cache.version == version]
        for cache in dropped:
            cache.version = _DROPPED
        self._caches = [c for c in self._caches if c.in_use or c.version != _DROPPED]

    def _evict(self) -> None:
        idle = sorted((c for c in self._caches if not c.in_use), key=lambda c: c.last_used)
        kept = sum(c.capacity for c in idle)
        room = min(self._idle_tokens, self.budget_tokens - sum(self._reserved.values()))
        for cache in idle:
            if kept <= room:
                return
            kept -= cache.capacity
            self._caches.remove(cache)
