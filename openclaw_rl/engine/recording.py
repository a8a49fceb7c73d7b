"""Records kernels as a CUDA graph, without the pauses of ``torch.cuda.graph``: that empties the allocator's
cache and collects garbage first, for a tenth of a second or more, during which no stream gets a token."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

#: A graph, and where it leaves its result.
Recorded = tuple[torch.cuda.CUDAGraph, torch.Tensor]


def record(launch: Callable[[], torch.Tensor], pool: Any = None) -> Recorded:
    """``launch`` has run before, so that its kernels are compiled and libraries initialised."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    was_enabled = gc.isenabled()
    gc.disable()  # a graph or an event that is destroyed meanwhile would end the recording
    try:
        with torch.cuda.stream(side):
            # thread_local: other threads, such as one that loads an adapter, may allocate meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = launch()
            finally:
                graph.capture_end()
    finally:
        if was_enabled:
            gc.enable()
    torch.cuda.current_stream().wait_stream(side)
    return graph, result
