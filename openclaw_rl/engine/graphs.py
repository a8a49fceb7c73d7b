"""Decoding on a GPU with CUDA graphs: a step is recorded once per number of rows and replayed.

A decoding step is a few hundred kernels of a few microseconds each. Launched one by one from Python, they
leave the GPU mostly idle; in a CUDA graph they run back to back. Sequences, lengths and adapters are read
from tables on the device (``gpu_attention.py``, ``gpu_lora.py``), so one graph serves any mix of them.

A single row is limited by the speed at which the weights are read, so our own products do everything around
them too; several rows are multiplied by cuBLAS (``gpu_products.py``).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from openclaw_rl.engine.lora import PROJECTIONS, Adapter
from openclaw_rl.engine.recording import Recorded, record

if TYPE_CHECKING:
    from openclaw_rl.engine.gpu_sampler import GpuSampler
    from openclaw_rl.engine.model import Chunk, Decoder

log = logging.getLogger(__name__)
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
#: Adapters whose addresses are on the device at the same time.
_SLOTS = 64
#: Covers the default adapter: three times 16, for queries, keys and values.
_USUAL_RANKS = 64
#: As in ``gpu_lora.py``, which is imported only on a GPU.
_GROUP_ROWS = 16
#: What the table of adapters holds of ``LowRank.record``.
_A_B_RANKS = [0, 1, 4]


def recorded(decoder: Decoder) -> GraphDecode | None:
    """None, with a warning in the log, where a step cannot be recorded."""
    dim = decoder.shape.head_dim
    if dim & (dim - 1):
        log.warning(
            "decoding without CUDA graphs, which is slower: the head size, %d, is not a power of two", dim
        )
        return None
    try:
        import triton  # noqa: F401
    except ImportError:
        log.warning("decoding without CUDA graphs, which is slower: triton is not installed")
        return None
    return GraphDecode(decoder)


def sampler_on(device: torch.device) -> GpuSampler | None:
    """Samples on a GPU; None where that is impossible."""
    if device.type != "cuda":
        return None
    try:
        from openclaw_rl.engine.gpu_sampler import GpuSampler
    except ImportError:  # no triton
        return None
    return GpuSampler(device)


class GraphDecode:
    """Runs one decoder's decoding steps. Without a GPU, as in tests, nothing is recorded."""

    def __init__(self, decoder: Decoder) -> None:
        from openclaw_rl.engine.gpu_attention import Attention, BatchRows
        from openclaw_rl.engine.gpu_prompts import Prompts
        from openclaw_rl.engine.gpu_steps import Steps, stack_norms

        self._decoder, shape = decoder, decoder.shape
        most, device, like = _ROWS[-1], decoder.device, decoder.embedding_VH
        self._is_gpu = device.type == "cuda"
        self._where = BatchRows(most, device)
        self._host_8R = torch.zeros(8, most, dtype=torch.int64, pin_memory=self._is_gpu)
        self._host = self._host_8R.numpy()
        #: Marks the end of the last copy of that table: until then the GPU may still be reading it.
        self._copied = torch.cuda.Event() if self._is_gpu else None
        #: Dummy cache that padding rows read and write.
        self._nowhere = like.new_zeros(shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim)
        self._slots = _Slots(shape.num_layers, device)
        attention = Attention(most, shape.num_heads, shape.num_kv_heads, shape.head_dim, like)
        norms = [stack_norms(layer) for layer in decoder.layers]
        self._steps = Steps(decoder, self._where, attention, norms, self._slots.table_SE3)
        self.prompts = Prompts(decoder, norms)
        self._graphs: dict[tuple[int, int], Recorded] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._is_gpu else None

    @staticmethod
    def suits(chunk: Chunk) -> bool:
        return len(chunk.token_ids) == 1 and chunk.num_logits == 1 and chunk.hidden_layer is None

    def __call__(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Run one token of each, extend the caches, return fp32 logits. The next call overwrites them."""
        if len(chunks) > _ROWS[-1]:
            parts = [chunks[at : at + _ROWS[-1]] for at in range(0, len(chunks), _ROWS[-1])]
            return torch.cat([self(part).clone() for part in parts])
        rows = next(count for count in _ROWS if count >= len(chunks))
        ranks = self._place(chunks, rows)
        logits_RV = self._play(rows, ranks) if self._is_gpu else self._steps(rows, ranks)
        for chunk in chunks:
            chunk.cache.extend(chunk.token_ids)
        return logits_RV[: len(chunks)]

    def forget(self, adapter: Adapter) -> None:
        """Drop an unloaded adapter, so that its memory can be freed."""
        self._slots.drop(adapter)

    def _place(self, chunks: Sequence[Chunk], rows: int) -> int:
        """Copy the step's rows to the device; returns an upper bound on their adapters' ranks, 0 for none."""
        slots = self._slots.place([chunk.adapter for chunk in chunks])
        if self._copied is not None:
            self._copied.synchronize()
        for chunk in chunks:
            chunk.cache.reserve(chunk.cache.length + 1)
        nothing = [(0, 0, self._nowhere.data_ptr(), 1, -1)] * (rows - len(chunks))
        placed = [
            (chunk.token_ids[0], chunk.cache.length, chunk.cache.pointer, chunk.cache.capacity, slot)
            for chunk, slot in zip(chunks, slots, strict=True)
        ]
        host = self._host
        host[:5, :rows] = np.array(placed + nothing).T
        groups = _groups(slots)
        host[5, :rows] = -1
        host[5:, : len(groups)] = np.array(groups, dtype=np.int64).reshape(-1, 3).T
        self._where.all_8R.copy_(self._host_8R, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return self._slots.ranks if groups else 0

    def _play(self, rows: int, ranks: int) -> torch.Tensor:
        if (rows, ranks) not in self._graphs:
            self._graphs[rows, ranks] = self._record(rows, ranks)
        graph, logits_RV = self._graphs[rows, ranks]
        graph.replay()
        return logits_RV

    def _record(self, rows: int, ranks: int) -> Recorded:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles kernels and initialises libraries before recording
            self._steps(rows, ranks)
        torch.cuda.current_stream().wait_stream(side)
        return record(partial(self._steps, rows, ranks), self._pool)


class _Slots:
    """Device addresses of the most recently used adapters; an adapter in a slot stays alive."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        num_entries = num_layers * len(PROJECTIONS)
        self.table_SE3 = torch.zeros(_SLOTS, num_entries, 3, dtype=torch.int64, device=device)
        self.ranks = _USUAL_RANKS
        """A power of two that no adapter exceeds."""
        self._held: OrderedDict[int, tuple[int, Adapter]] = OrderedDict()
        self._free = list(range(_SLOTS))

    def place(self, adapters: Sequence[Adapter | None]) -> list[int]:
        """Each adapter's slot; -1 for none. There are as many slots as the largest step has rows."""
        return [-1 if adapter is None else self._slot(adapter) for adapter in adapters]

    def drop(self, adapter: Adapter) -> None:
        if held := self._held.pop(id(adapter), None):
            self._free.append(held[0])

    def _slot(self, adapter: Adapter) -> int:
        if held := self._held.get(id(adapter)):
            self._held.move_to_end(id(adapter))
            return held[0]
        slot = self._free.pop() if self._free else self._held.popitem(last=False)[1][0]
        self._held[id(adapter)] = (slot, adapter)
        records = adapter.records(self.table_SE3.shape[1] // len(PROJECTIONS))
        rows = torch.from_numpy(records[:, _A_B_RANKS])
        while self.ranks < adapter.most_rank:
            self.ranks *= 2
        self.table_SE3[slot].copy_(rows)
        return slot


def _groups(slots: Sequence[int]) -> list[tuple[int, int, int]]:
    """(slot, first row, end) of neighbouring rows with the same adapter, a few rows at most."""
    groups: list[tuple[int, int, int]] = []
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        before, start, end = groups[-1] if groups else (-1, 0, 0)
        if slot == before and row == end and end - start < _GROUP_ROWS:
            groups[-1] = (slot, start, row + 1)
        else:
            groups.append((slot, row, row + 1))
    return groups
