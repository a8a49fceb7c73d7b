"""The engine on the trainer's GPU: the base's weights are in memory once, and users' requests come first.

Shared weights are the engine's own memory. LoRA only reads them; a trainer of all weights gets a copy. Where
sharing is not possible (another machine, precision or form of weights), the trainer reads its own copy, and
the log says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.packing import ATTENTION
from openclaw_rl.types import GpuOffer

log = logging.getLogger(__name__)
#: Training is delayed at most this long before each row, so that it ends even on a busy server.
_MOST_WAIT_S, _POLL_S = 1.0, 0.01
#: Of how many tensors the beginnings are compared with those in the model's files.
_COMPARED = 8


class Beside:
    def __init__(
        self,
        on_gpu: Callable[[], GpuOffer | None] | None = None,
        num_live: Callable[[], int] | None = None,
        most_wait_s: float = _MOST_WAIT_S,
    ) -> None:
        self._on_gpu, self._num_live, self._most_wait_s = on_gpu, num_live, most_wait_s
        self.offer: GpuOffer | None = None

    def base(self, folder: Path, dtype: torch.dtype, device: torch.device) -> Any | None:
        """The transformers model over the engine's weights; None, and a line in the log, if not possible."""
        if self._on_gpu is None:
            return None
        try:
            self.offer = self._on_gpu()
            if self.offer is None:
                return None
            return model_over(folder, self.offer.weights, dtype, device)
        except Exception as error:  # CUDA IPC fails in many ways: in containers, by driver, by allocator
            log.warning("the trainer keeps its own copy of the base on the GPU: %s", error)
            return None

    def wait_for_users(self) -> None:
        """Returns once no user's request is running; in any case after a while."""
        if self._num_live is None or not self._num_live():
            return
        torch.cuda.synchronize()  # rows are queued faster than they run
        end = time.monotonic() + self._most_wait_s
        while self._num_live() and time.monotonic() < end:
            time.sleep(_POLL_S)


def model_over(
    folder: Path, weights: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
) -> Any:
    """A transformers model whose parameters are the given tensors; ValueError if they are not its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if not weights:
        raise ValueError("the engine stores the weights in a form of its own")
    if {(w.dtype, w.device.type) for w in weights.values()} != {(dtype, device.type)}:
        raise ValueError(f"the engine's weights are not in {dtype} on {device.type}")
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    known = model.state_dict().keys()
    model.load_state_dict({n: w for n, w in weights.items() if n in known}, strict=False, assign=True)
    model.tie_weights()
    rotary = model.get_decoder().rotary_emb
    model.get_decoder().rotary_emb = type(rotary)(config=config.get_text_config()).to(device)
    _check(model, folder)
    return model.requires_grad_(False)


def _check(model: Any, folder: Path) -> None:
    missing = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    missing += [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if missing:
        raise ValueError(f"the engine shares no {missing[0]}")
    stored = _beginnings(folder)
    for name, tensor in model.state_dict().items():
        if name in stored and not torch.equal(tensor[:1].flatten().cpu(), stored[name].to(tensor.dtype)):
            raise ValueError(f"the engine's {name} is not that of {folder}")


def _beginnings(folder: Path) -> dict[str, torch.Tensor]:
    """The first rows of some of the stored tensors, spread over the whole model."""
    from safetensors import safe_open

    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names = sorted(opened.keys())
            for name in {*names[:: max(1, len(names) // _COMPARED)], names[-1]}:
                found[name] = opened.get_slice(name)[:1].flatten()
    return found
