"""The weights being trained, in fp32, whatever precision the model runs in.

A step changes a weight by about its learning rate; bf16 keeps eight bits, so a weight of ordinary size rounds
most steps away. Gradients of micro-batches are summed here too, for the same reason. Weights that are fp32
already are their own masters and cost nothing.
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
        """After each backward pass."""
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
        """After a step: what the model runs with."""
        for master, parameter in zip(self.weights, self._parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    @torch.no_grad()
    def put(self, values: Sequence[torch.Tensor]) -> None:
        for master, value in zip(self.weights, values, strict=True):
            master.copy_(value.to(master.device))
        self.round_off()
