"""fp32 master copies of the trained weights, whatever precision the model runs in.

A step changes a weight by about the learning rate; bf16 has eight significant bits, so for a weight of
ordinary size most steps would round to nothing. Gradients of micro-batches are summed in fp32 for the same
reason. Weights that are already fp32 are their own masters and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Masters:
    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.weights: list[torch.Tensor] = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in parameters
        ]

    @property
    def are_copies(self) -> bool:
        return any(master is not p for master, p in zip(self.weights, self._parameters, strict=True))

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Call after each backward pass."""
        for master, parameter in zip(self.weights, self._parameters, strict=True):
            if master is parameter or parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad.add_(parameter.grad)
            parameter.grad = None

    @torch.no_grad()
    def round_off(self) -> None:
        """After a step: copy the masters into the model's weights, rounded to its precision."""
        for master, parameter in zip(self.weights, self._parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    @torch.no_grad()
    def put(self, values: Sequence[torch.Tensor]) -> None:
        for master, value in zip(self.weights, values, strict=True):
            master.copy_(value.to(master.device))
        self.round_off()
