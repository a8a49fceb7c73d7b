"""Linear layers that read the same input, with their adapters, as one product.

PEFT runs an adapter of a half-precision model in fp32 and as kernels of its own, which takes longer than the
layer under it. Here ``x W' + x A' B'`` is two products: the first, thin one is written, the second is added
to it. A backward pass needs ``x`` and ``x A'``; the frozen weights get no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Factors:
    """A group's adapters as one: ``A`` has the rows of all of them, ``B`` is block diagonal and scaled."""

    a_RI: torch.Tensor
    b_OR: torch.Tensor


class Group:
    """The linear layers ``modules``, which PEFT may have given adapters, one below the other."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = list(modules)
        self._frozen = [getattr(module, "base_layer", module) for module in modules]
        self._rows = _rows([module.out_features for module in modules])
        self._joined = _join(self._frozen)
        self.bias_O = _join_biases(self._frozen, self._rows)

    @property
    def weight_OI(self) -> torch.Tensor:
        if self._joined is not None:
            return self._joined
        if len(self._frozen) == 1:
            return _dense(self._frozen[0])
        first = self._frozen[0]
        joined_OI: torch.Tensor = first.scales.new_empty(
            self._rows[-1].stop, first.in_features, dtype=first.dtype
        )
        for layer, rows in zip(self._frozen, self._rows, strict=True):
            layer.dequantised(joined_OI[rows])
        return joined_OI

    def tensors(self) -> list[torch.Tensor]:
        """A and B of each adapter that is in use, in order."""
        found = []
        for module in self._modules:
            if (name := _active(module)) is not None:
                found += [module.lora_A[name].weight, module.lora_B[name].weight]
        return found

    def factors(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> Factors | None:
        if not tensors:
            return None
        a_RI = torch.cat([a.detach() for a in tensors[::2]]).to(dtype)
        b_OR = a_RI.new_zeros(self._rows[-1].stop, len(a_RI))
        for place, b, scale in zip(self._blocks(tensors), tensors[1::2], self._scales(), strict=True):
            b_OR[place] = b.detach() * scale
        return Factors(a_RI, b_OR)

    def split_gradients(
        self, tensors: Sequence[torch.Tensor], to_a_RI: torch.Tensor, to_b_OR: torch.Tensor
    ) -> list[torch.Tensor]:
        """The gradients of ``factors``, in the order of ``tensors``."""
        grads = []
        for place, a, b, scale in zip(
            self._blocks(tensors), tensors[::2], tensors[1::2], self._scales(), strict=True
        ):
            grads += [to_a_RI[place[1]].to(a.dtype), to_b_OR[place].to(b.dtype) * scale]
        return grads

    def _adapted(self) -> list[tuple[Any, slice]]:
        pairs = zip(self._modules, self._rows, strict=True)
        return [(module, rows) for module, rows in pairs if _active(module) is not None]

    def _blocks(self, tensors: Sequence[torch.Tensor]) -> list[tuple[slice, slice]]:
        columns = _rows([len(a) for a in tensors[::2]])
        return [(rows, column) for (_, rows), column in zip(self._adapted(), columns, strict=True)]

    def _scales(self) -> list[float]:
        return [module.scaling[_active(module)] for module, _ in self._adapted()]


def multiply(
    x_TI: torch.Tensor, group: Group, factors: Factors | None, onto_TO: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The group's results, added to ``onto_TO``; and ``x A'``, which the backward pass needs."""
    start = _sum(onto_TO, group.bias_O)
    weight_IO = group.weight_OI.T
    if factors is None:
        return x_TI @ weight_IO if start is None else torch.addmm(start, x_TI, weight_IO), None
    inner_TR = x_TI @ factors.a_RI.T
    thin = factors.b_OR.T
    y_TO = inner_TR @ thin if start is None else torch.addmm(start, inner_TR, thin)
    return y_TO.addmm_(x_TI, weight_IO), inner_TR


def input_gradient(
    grad_TO: torch.Tensor, group: Group, factors: Factors | None, needs_x: bool = True
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradient of a group's input, unless it needs none; and that of ``x A'``."""
    back_TR = None if factors is None else grad_TO @ factors.b_OR
    if not needs_x:
        return None, back_TR
    if factors is None or back_TR is None:
        return grad_TO @ group.weight_OI, None
    return (back_TR @ factors.a_RI).addmm_(grad_TO, group.weight_OI), back_TR


def adapter_gradients(
    grad_TO: torch.Tensor,
    back_TR: torch.Tensor | None,
    x_TI: torch.Tensor,
    inner_TR: torch.Tensor | None,
    group: Group,
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    if back_TR is None or inner_TR is None:
        return []
    return group.split_gradients(tensors, back_TR.T @ x_TI, grad_TO.T @ inner_TR)


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _active(module: Any) -> str | None:
    """The adapter in use; None without one, and inside PEFT's ``disable_adapter``."""
    if not hasattr(module, "lora_A") or module.disable_adapters:
        return None
    return next((name for name in module.active_adapters if name in module.lora_A), None)


def _dense(layer: Any) -> torch.Tensor:
    weight: torch.Tensor = layer.dequantised() if hasattr(layer, "dequantised") else layer.weight
    return weight


def _rows(sizes: Sequence[int]) -> list[slice]:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


@torch.no_grad()
def _join(layers: Sequence[Any]) -> torch.Tensor | None:
    """The layers' weights as one matrix, of which they become views; None if they are quantised."""
    if any(hasattr(layer, "dequantised") for layer in layers):
        return None
    weights = [layer.weight for layer in layers]
    if len(weights) == 1:
        only: torch.Tensor = weights[0].detach()
        return only
    if (adjacent := _adjacent(weights)) is not None:
        return adjacent
    joined = torch.cat([weight.detach() for weight in weights])
    for weight, rows in zip(weights, _rows([len(weight) for weight in weights]), strict=True):
        weight.data = joined[rows]
    return joined


def _adjacent(weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The matrix that the weights are consecutive rows of, if they are: no copy is needed."""
    first, offset = weights[0].detach(), weights[0].storage_offset()
    for weight in weights:
        is_next = weight.storage_offset() == offset and weight.is_contiguous()
        if not is_next or weight.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
        offset += weight.numel()
    num_rows = sum(len(weight) for weight in weights)
    return first.as_strided((num_rows, first.shape[1]), (first.shape[1], 1))


def _join_biases(layers: Sequence[Any], rows: Sequence[slice]) -> torch.Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    known = next(layer.bias for layer in layers if layer.bias is not None)
    bias_O: torch.Tensor = known.new_zeros(rows[-1].stop)
    for layer, place in zip(layers, rows, strict=True):
        if layer.bias is not None:
            bias_O[place] = layer.bias.detach()
    return bias_O
