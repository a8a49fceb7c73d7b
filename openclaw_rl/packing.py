"""Runs sequences packed end to end in one row through transformers' own modules, without mixing them.

Everything in a decoder looks at one position at a time except attention and recurrent layers. Attention runs
here, per sequence, over its own part of the row and its own past; a recurrent layer runs once per sequence,
with that sequence's state. So each sequence in a row gets the same results as alone, for any family that
transformers implements through its attention interface.

Sequences with a common prefix (the same system prompt) may share it: it is in the row once, with the first of
them, and the others attend to it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

ATTENTION = "openclaw_packed"
#: Lengths in tokens of the sequences that a model is verified with.
_PROOF = (23, 9)
#: Largest difference from plain transformers: of any log-prob in fp32, of the average in half precision.
_MAX_ERROR, _MEAN_ERROR = 1e-3, 0.1
#: Supported types of layers; others may mix positions in ways that packing does not handle.
_LAYER_TYPES = {"full_attention", "sliding_attention", "linear_attention"}


class Past(Protocol):
    """One sequence's state from earlier passes."""

    @property
    def recurrent(self) -> Any:
        """The states of its recurrent layers, in a transformers cache."""

    def append(self, layer: int, k_1HTD: torch.Tensor, v_1HTD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Store a layer's new keys and values; returns all of them, old ones first."""


class Packing:
    """Describes the row that a model is run on. Set before each pass; also read when a layer is recomputed
    for the backward pass, in any thread."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.pasts: Sequence[Past] | None = None
        self.shared = 0
        """Tokens at the beginning of the first sequence that the others share."""
        self.can_share = True
        """False if a recurrent layer needs those tokens in each sequence."""
        self.only: int | None = None
        """Inside a recurrent layer: index of the sequence that it is run for."""
        self.seen: list[tuple[torch.Tensor, ...]] = []
        """Keys and values of the current layer, one pair per sequence; used if there are pasts."""
        self.windows: dict[int, int | None] = {}
        """Per layer, the sliding window passed to its attention."""

    def describe(self, lengths: Sequence[int], pasts: Sequence[Past] | None = None, shared: int = 0) -> None:
        self.lengths, self.pasts, self.shared, self.only = list(lengths), pasts, shared, None


def attach(model: torch.nn.Module) -> Packing:
    """Make a model that was loaded with ``attn_implementation=ATTENTION`` take packed rows."""
    packing = Packing()
    for module in model.modules():
        module.packing = packing  # type: ignore[assignment]
        if "cache_params" in signature(module.forward).parameters:
            module.forward = _one_by_one(module.forward, packing)
            packing.can_share = False
    return packing


def _one_by_one(run: Callable[..., torch.Tensor], packing: Packing) -> Callable[..., torch.Tensor]:
    def forward(hidden_states: torch.Tensor, cache_params: Any = None, **others: Any) -> torch.Tensor:
        parts = []
        for index, part in enumerate(hidden_states.split(packing.lengths, 1)):
            packing.only = index
            past = packing.pasts[index].recurrent if packing.pasts else None
            parts.append(run(hidden_states=part, cache_params=past, **others))
        packing.only = None
        return torch.cat(parts, dim=1)

    return forward


def _attend(
    module: torch.nn.Module,
    query_1NTD: torch.Tensor,
    key_1HTD: torch.Tensor,
    value_1HTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention interface."""
    packing: Packing = module.packing  # type: ignore[assignment]
    packing.windows[int(getattr(module, "layer_idx", -1))] = sliding_window
    keys, values = (_with_shared(x.split(packing.lengths, 2), packing.shared) for x in (key_1HTD, value_1HTD))
    own = packing.seen if packing.pasts else list(zip(keys, values, strict=True))
    parts = [
        attend_one(q, k, v, scaling, sliding_window, softcap, s_aux)
        for q, (k, v) in zip(query_1NTD.split(packing.lengths, 2), own, strict=True)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _with_shared(parts: Sequence[torch.Tensor], shared: int) -> list[torch.Tensor]:
    """Each sequence's keys or values, shared prefix included."""
    if not shared:
        return list(parts)
    first, *others = parts
    return [first, *(torch.cat([first[:, :, :shared], part], dim=2) for part in others)]


def attend_one(
    q_1NTD: torch.Tensor,
    k_1HSD: torch.Tensor,
    v_1HSD: torch.Tensor,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of the last T of S positions, each over itself and what it may see before it."""
    count = q_1NTD.shape[2]
    if window is not None:
        reach = min(k_1HSD.shape[2], count + window - 1)
        k_1HSD, v_1HSD = (x[:, :, x.shape[2] - reach :] for x in (k_1HSD, v_1HSD))
    # Heads that share keys become a batch dimension, so that keys and values are views, not copies.
    shared = (k_1HSD.shape[1], q_1NTD.shape[1] // k_1HSD.shape[1])
    q = q_1NTD.reshape(*shared, *q_1NTD.shape[2:])
    k, v = (x[0].unsqueeze(1).expand(*shared, *x.shape[2:]) for x in (k_1HSD, v_1HSD))
    length = k.shape[2]
    is_whole = count == length and (window is None or length <= window)
    allowed_TS = None if is_whole or count == 1 else _allowed(count, length, window, q.device)
    if softcap is None and sinks_N is None:
        is_causal = is_whole and count > 1
        out = F.scaled_dot_product_attention(q, k, v, allowed_TS, is_causal=is_causal, scale=scaling)
    else:
        if is_whole and count > 1:
            allowed_TS = _allowed(count, length, None, q.device)
        out = _plain(q, k, v, scaling, allowed_TS, softcap, sinks_N)
    return out.reshape(*q_1NTD.shape[:-1], v.shape[-1])


def _allowed(count: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    behind_TS = torch.arange(length - count, length, device=device)[:, None]
    behind_TS = behind_TS - torch.arange(length, device=device)
    return (behind_TS >= 0) if window is None else (behind_TS >= 0) & (behind_TS < window)


def _plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float | None,
    allowed_TS: torch.Tensor | None,
    softcap: float | None,
    sinks_N: torch.Tensor | None,
) -> torch.Tensor:
    """For what torch's attention lacks: soft-capped scores, and attention sinks."""
    scores = (q @ k.transpose(-1, -2)).float() * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if allowed_TS is not None:
        scores = scores.masked_fill(~allowed_TS, float("-inf"))
    if sinks_N is not None:
        sink = sinks_N.float().view(*q.shape[:2], 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    return scores.softmax(dim=-1)[..., : k.shape[2]].to(v.dtype) @ v


# --- the proof -------------------------------------------------------------------------------


def prove(model: Any, packing: Packing, run: Callable[[list[list[int]]], torch.Tensor]) -> None:
    """ValueError, with the reason, unless ``run`` gives the log-probs that plain transformers gives.

    ``run`` takes a few sequences in one row and returns the log-probs of all their positions.
    """
    config = model.config.get_text_config()
    types = getattr(config, "layer_types", None) or ()
    if unknown := sorted(set(types) - _LAYER_TYPES):
        raise ValueError(f"it has layers of a kind that we do not know, {unknown[0]}")
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(config.vocab_size, (n,), generator=generator).tolist() for n in _PROOF]
    try:
        expected_TV, got_TV = _alone(model, packing, sequences), run(sequences)
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if any(kind == "sliding_attention" and packing.windows.get(i) is None for i, kind in enumerate(types)):
        raise ValueError("it does not tell attention how wide its window is")
    difference = (got_TV - expected_TV).abs()
    is_exact = model.dtype == torch.float32
    worst = float(difference.max() if is_exact else difference.mean())
    if not worst <= (_MAX_ERROR if is_exact else _MEAN_ERROR):
        raise ValueError(f"packed, its log-probs differ from those of transformers by {worst:.2g}")


@torch.inference_mode()
def _alone(model: Any, packing: Packing, sequences: list[list[int]]) -> torch.Tensor:
    model.set_attn_implementation("eager")
    rows = []
    for ids in sequences:
        packing.describe([len(ids)])
        logits_1TV = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
        rows.append(logits_1TV[0].float().log_softmax(-1))
    model.set_attn_implementation(ATTENTION)
    return torch.cat(rows)


AttentionInterface.register(ATTENTION, _attend)
