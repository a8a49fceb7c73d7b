"""Finds out what a Tinker server does with gradients, on a throw-away model, before anything is trained.

The protocol says that losses are summed over rows and tokens, and gradients clipped. SkyRL's JAX backend
takes means instead, and no SkyRL backend clips at the client's norm. Neither says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from openclaw_rl.settings import TrainConfig
from openclaw_rl.types import Json

log = logging.getLogger(__name__)
Reduction = Literal["sum", "mean"]
_SKYRL = "skyrl.ai/"
#: Any text: a handful of tokens that every vocabulary has.
_TOKENS = [3, 4, 5, 6, 7, 8]
#: Between 1, where twice the same row has the gradient of one, and 2, where it has twice that.
_BETWEEN = 1.5


@dataclass(frozen=True, slots=True)
class Findings:
    reduction: Reduction | None
    """None if the server reports no norm of the gradient."""
    clips: bool
    """Whether it may clip gradients; False for servers known not to."""


def probe(client: Any, call: Callable[..., Any], sdk: Any) -> Findings:
    """``sdk`` is the client's package; ``call(function, *arguments)`` returns a call's result, or raises."""
    reports = [_gradient_of(client, call, sdk, number) for number in (1, 2)]
    one, two = (norm_in(report) for report in reports)
    reduction: Reduction | None = None
    if one > 0:
        reduction = "sum" if two / one > _BETWEEN else "mean"
    return Findings(reduction, not any(name.startswith(_SKYRL) for name in reports[0]))


def _gradient_of(client: Any, call: Callable[..., Any], sdk: Any, number: int) -> Json:
    """What the server reports of a step of size 0 on so many copies of one row."""
    inputs: dict[str, Any] = {"target_tokens": _TOKENS[1:], "weights": [1.0] * (len(_TOKENS) - 1)}
    row = sdk.Datum(sdk.ModelInput.from_ints(_TOKENS[:-1]), inputs)
    passing = client.forward_backward([row] * number, "cross_entropy")
    stepping = client.optim_step(sdk.AdamParams(learning_rate=0.0))
    call(lambda: passing)
    report: Json = call(lambda: stepping).metrics or {}
    return report


def norm_in(metrics: Json) -> float:
    """The gradient's norm in the server's own scale; 0 if it reports none."""
    return float(next((value for name, value in metrics.items() if name.endswith("grad_norm")), 0.0))


def settle(findings: Findings, stated: str, grad_clip: float) -> Reduction:
    """How to scale gradients for this server; ValueError with the remedy if the settings do not fit it."""
    measured = findings.reduction
    if measured is not None and stated not in ("auto", measured):
        raise ValueError(
            f"the Tinker server takes the {measured} over rows, and --trainer-options reduction={stated} "
            "says otherwise; leave reduction out"
        )
    if not findings.clips and grad_clip != TrainConfig().grad_clip:
        raise ValueError("SkyRL servers ignore --grad-clip; leave it out")
    if not findings.clips:
        log.warning("SkyRL servers do not clip gradients: --grad-clip has no effect")
    if measured is None and stated == "auto":
        log.warning(
            "the Tinker server reports no norm of gradients, so whether it sums them could not be checked: "
            "sum is assumed; if it takes means, say --trainer-options reduction=mean"
        )
    if measured is not None:
        return measured
    return "mean" if stated == "mean" else "sum"
