"""Whose keys and values a sequence may start from."""

from __future__ import annotations

import numpy as np
import torch

from openclaw_rl.engine.first_layers import FirstLayers
from openclaw_rl.engine.kv import CachePool, Reader, SequenceCache
from openclaw_rl.types import ScoreRequest

PROMPT = list(range(40))


def pool() -> CachePool:
    return CachePool(lambda: SequenceCache(1, 1, 2, torch.device("cpu"), torch.float32), 10_000)


def run(pool: CachePool, ids: list[int], reader: Reader, version: int = 1) -> SequenceCache:
    """A sequence that runs from its beginning to its end."""
    cache = pool.acquire(np.asarray(ids), len(ids) - 1, version, len(ids), 0.0, reader)
    missing = ids[cache.length :]
    cache.open(len(missing))
    cache.extend(missing)
    return cache


def shared(pool: CachePool, ids: list[int], reader: Reader, version: int = 1) -> int:
    return pool.best_prefix(np.asarray(ids), version, reader)[1]


def test_what_a_running_sequence_keeps_of_replaced_weights_is_continued_by_none() -> None:
    caches, ann = pool(), Reader("ann")
    cache = run(caches, PROMPT, ann)
    caches.drop_version(1)
    assert shared(caches, PROMPT, ann) == 0, "other weights have this number now"
    caches.release(cache, 1.0)
    assert shared(caches, PROMPT, ann) == 0
    assert caches.cached_tokens == 0


def test_what_the_system_reads_stays_its_owners_and_what_it_adds_is_nobodys() -> None:
    """Otherwise the time of a reply would tell Ann what the judge reads of Ben."""
    caches, ann, bens = pool(), Reader("ann"), [*PROMPT, 97, 98, 99]
    caches.release(run(caches, PROMPT, ann), 1.0)
    caches.release(run(caches, bens, Reader()), 2.0)
    assert shared(caches, PROMPT, ann) == len(PROMPT)
    assert shared(caches, bens, ann) == len(PROMPT)
    assert shared(caches, bens, Reader()) == len(bens)


def test_caches_of_the_first_layers_have_a_number_that_no_weights_have() -> None:
    class Base:
        def up_to(self, layer: int) -> Base:
            return self

    request = ScoreRequest([1, 2, 3], 1, hidden_layer=0, hidden_only=True)
    picked = FirstLayers(Base()).pick(request)  # type: ignore[arg-type]
    assert picked is not None
    assert picked[1] < -1, "-1 is the moving average"
