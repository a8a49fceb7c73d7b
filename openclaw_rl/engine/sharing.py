"""Shares an engine's GPU with a trainer: one copy of the base's weights, and one limit of memory.

Handles of the weights (CUDA IPC) go to the learn process over the private socket; there they become tensors
on the same memory. The engine must keep its weights for as long as that process lives, which it does: they
are the base. Nothing protects them from being written to, so trainers that change base weights get none.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from openclaw_rl.engine.kernels import FloatKernel, Kernel
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.lora import PROJECTIONS
from openclaw_rl.engine.model import Decoder, Network
from openclaw_rl.engine.scheduler import Scheduler
from openclaw_rl.types import GpuOffer, Json, Priority

_CLASSES = {
    kind.__name__: kind
    for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, torch.storage.TypedStorage)
}
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def base_weights(network: Network) -> dict[str, torch.Tensor]:
    """The tensors of a decoder by their names in transformers; empty if they have another form."""
    if not isinstance(network, Decoder):
        return {}
    try:
        return _named(network)
    except TypeError:
        return {}


def cache_bytes(device: torch.device, part: float) -> int:
    """The limit of the KV cache: on a GPU, training gets as much."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(part * total) - (total - free)) // 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8


def _named(decoder: Decoder) -> dict[str, torch.Tensor]:
    named = {
        "model.embed_tokens.weight": decoder.embedding_VH,
        "model.norm.weight": decoder.final_norm.weight,
        "lm_head.weight": _matrix(decoder.head)[0],
    }
    for index, layer in enumerate(decoder.layers):
        prefix = f"model.layers.{index}"
        norms = {
            "input_layernorm": layer.input_norm,
            "post_attention_layernorm": layer.post_norm,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
        }
        named |= {f"{prefix}.{n}.weight": norm.weight for n, norm in norms.items() if norm is not None}
        for projection, modules in PROJECTIONS.items():
            weight_OI, bias_O = _matrix(layer.projections[projection])
            widths = decoder.widths[projection]
            for module, rows in zip(modules, weight_OI.split(widths), strict=True):
                named[f"{prefix}.{module}.weight"] = rows
            for module, part in zip(modules, () if bias_O is None else bias_O.split(widths), strict=False):
                named[f"{prefix}.{module}.bias"] = part
    return named


def _matrix(kernel: Kernel) -> tuple[torch.Tensor, torch.Tensor | None]:
    """TypeError if the kernel stores its weights in a form of its own."""
    if type(kernel) is not FloatKernel:
        raise TypeError(f"{type(kernel).__name__} has no plain matrix")
    return kernel.joined()


class SharesGpu:
    """What an engine on a GPU offers a trainer there."""

    device: torch.device
    _decoder: Network
    _scheduler: Scheduler
    _options: LocalEngineOptions
    _token_bytes: int
    """Of a token in the KV cache."""

    def on_gpu(self) -> GpuOffer | None:
        """For a trainer on the same GPU; None on a CPU."""
        if self.device.type != "cuda":
            return None
        pool = self._scheduler.pool
        taken_later = (pool.budget_tokens - pool.cached_tokens) * self._token_bytes
        return GpuOffer(base_weights(self._decoder), max(0, taken_later), self._options.gpu_memory)

    def num_live(self) -> int:
        """Users' requests that run or wait."""
        jobs = [*self._scheduler.running, *self._scheduler.waiting]
        return sum(job.priority == Priority.LIVE for job in jobs)


# --- on the private socket -------------------------------------------------------------------


def offer_to_json(offer: GpuOffer) -> Json:
    handles = {name: _encoded(reduce_tensor(tensor)[1]) for name, tensor in offer.weights.items()}
    return {"weights": handles, "taken_later": offer.taken_later, "part": offer.part}


def offer_from_json(data: Json) -> GpuOffer:
    """RuntimeError if this process cannot open the memory."""
    handles: Mapping[str, Any] = data["weights"]
    weights = {name: rebuild_cuda_tensor(*map(_decoded, handle)) for name, handle in handles.items()}
    return GpuOffer(weights, data["taken_later"], data["part"])


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, type):
        return {"class": value.__name__}
    return [_encoded(part) for part in value] if isinstance(value, tuple | list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(part) for part in value)
    if not isinstance(value, dict):
        return value
    [(kind, stated)] = value.items()
    if kind == "bytes":
        return b64decode(stated)
    return _DTYPES[stated] if kind == "dtype" else _CLASSES[stated]
