"""Decoding on a GPU with CUDA graphs: a step is recorded once per number of rows and replayed.

A decoding step is a few hundred kernels of a few microseconds each. Launched one by one from Python, they
leave the GPU mostly idle; in a CUDA graph they run back to back. Sequences, lengths and adapters are read
from tables on the device (``gpu_kernels.py``), so one graph serves any mix of them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from openclaw_rl.engine.lora import PROJECTIONS, Adapter

if TYPE_CHECKING:
    from openclaw_rl.engine.model import Chunk, Decoder, Layer

log = logging.getLogger(__name__)
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
#: Adapters whose addresses are on the device at the same time.
_SLOTS = 64
#: Covers the default adapter: three times 16, for queries, keys and values.
_USUAL_RANKS = 64


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


class GraphDecode:
    """Runs one decoder's decoding steps. Without a GPU, as in tests, nothing is recorded."""

    def __init__(self, decoder: Decoder) -> None:
        from openclaw_rl.engine.gpu_kernels import Attention, BatchRows, add_low_rank

        self._add_low_rank = add_low_rank
        self._decoder, shape = decoder, decoder.shape
        most, device, like = _ROWS[-1], decoder.device, decoder.embedding_VH
        self._is_gpu = device.type == "cuda"
        self._where = BatchRows(most, device)
        self._host_5R = torch.zeros(5, most, dtype=torch.int64, pin_memory=self._is_gpu)
        #: Marks the end of the last copy of that table: until then the GPU may still be reading it.
        self._copied = torch.cuda.Event() if self._is_gpu else None
        self._attention = Attention(most, shape.num_heads, shape.num_kv_heads, shape.head_dim, like)
        #: Dummy cache that padding rows read and write.
        self._nowhere = like.new_zeros(shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim)
        self._slots = _Slots(shape.num_layers, device)
        self._low_RK = torch.empty(most, 1, device=device)
        self._norms = [_stack_norms(layer) for layer in decoder.layers]
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
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
        logits_RV = self._play(rows, ranks) if self._is_gpu else self._run(rows, ranks)
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
        host = self._host_5R.numpy()
        host[:, :rows] = [[0], [0], [self._nowhere.data_ptr()], [1], [-1]]
        for row, (chunk, slot) in enumerate(zip(chunks, slots, strict=True)):
            cache = chunk.cache
            cache.reserve(cache.length + 1)
            host[:, row] = (chunk.token_ids[0], cache.length, cache.pointer, cache.capacity, slot)
        self._where.all_5R.copy_(self._host_5R, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        ranks = self._slots.ranks if any(slot >= 0 for slot in slots) else 0
        if ranks > self._low_RK.shape[1]:
            self._low_RK = torch.empty(_ROWS[-1], ranks, device=self._decoder.device)
            self._graphs = {key: graph for key, graph in self._graphs.items() if not key[1]}
        return ranks

    def _play(self, rows: int, ranks: int) -> torch.Tensor:
        if (rows, ranks) not in self._graphs:
            self._graphs[rows, ranks] = self._record(rows, ranks)
        graph, logits_RV = self._graphs[rows, ranks]
        graph.replay()
        return logits_RV

    def _record(self, rows: int, ranks: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles kernels and initialises libraries before recording
            self._run(rows, ranks)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads, such as one that loads an adapter, may allocate meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits_RV = self._run(rows, ranks)
        return graph, logits_RV

    def _run(self, rows: int, ranks: int) -> torch.Tensor:
        decoder, where, eps = self._decoder, self._where, self._decoder.shape.norm_eps
        hidden_RH = decoder.embedding_VH[where.ids_R[:rows]]
        for index, layer in enumerate(decoder.layers):
            normed = _norm(hidden_RH, layer.input_norm.weight, eps)
            qkv = self._project(layer, index, "qkv", normed, ranks)
            attended = self._attention(qkv, decoder.rope_tables, self._norms[index], eps, where, index)
            hidden_RH = hidden_RH + self._project(layer, index, "o", attended, ranks)
            normed = _norm(hidden_RH, layer.post_norm.weight, eps)
            gate, up = self._project(layer, index, "gate_up", normed, ranks).chunk(2, dim=-1)
            gated = (F.silu(gate) * up).contiguous()
            hidden_RH = hidden_RH + self._project(layer, index, "down", gated, ranks)
        normed = _norm(hidden_RH, decoder.final_norm.weight, eps)
        return decoder.head(normed).float()

    def _project(self, layer: Layer, index: int, name: str, x_RI: torch.Tensor, ranks: int) -> torch.Tensor:
        y_RO = layer.projections[name](x_RI)
        if ranks:
            table, slots = self._slots.table_SE3, self._where.slot_R
            self._add_low_rank(y_RO, x_RI, self._low_RK, table, slots, _entry(index, name), ranks)
        return y_RO


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
        rows = torch.zeros(self.table_SE3.shape[1:], dtype=torch.int64)
        for (layer, name), low_rank in adapter.items():
            rank = low_rank.a_KI.shape[0]
            rows[_entry(layer, name)] = torch.tensor([*low_rank.record[:2], rank])
            self.ranks = max(self.ranks, 1 << (rank - 1).bit_length())
        self.table_SE3[slot].copy_(rows)
        return slot


def _entry(layer: int, name: str) -> int:
    return layer * len(PROJECTIONS) + list(PROJECTIONS).index(name)


def _norm(x_RH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x_RH, (x_RH.shape[-1],), weight_H, eps)


def _stack_norms(layer: Layer) -> torch.Tensor | None:
    if layer.q_norm is None or layer.k_norm is None:
        return None
    return torch.stack([layer.q_norm.weight, layer.k_norm.weight])
