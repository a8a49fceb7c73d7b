"""Multinomial logistic regression in numpy, from evidence to class probabilities.

Features are standardised with the training mean and standard deviation. Weights are fitted by Newton-like
steps with an L2 penalty, deterministically, so the same cases give the same file. If features come in groups
(countable evidence, a hidden state), each group has the same weight whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CLASSES = (1, 0, -1)


@dataclass(frozen=True, slots=True)
class Calibration:
    mean_F: Array
    scale_F: Array
    weights_FC: Array
    bias_C: Array

    def probabilities(self, features: Sequence[float]) -> tuple[float, float, float]:
        """The probabilities of +1, 0 and −1."""
        x_F = np.asarray(features, dtype=np.float64)
        if x_F.shape != self.mean_F.shape:
            raise ValueError(f"{len(x_F)} features for a calibration of {len(self.mean_F)}")
        # Clipped, so that a feature far outside the training range does not decide alone.
        z_F = np.clip((x_F - self.mean_F) / self.scale_F, -3.5, 3.5)
        p_C = _softmax((z_F @ self.weights_FC + self.bias_C)[None])[0]
        return float(p_C[0]), float(p_C[1]), float(p_C[2])

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": _rounded(self.mean_F),
            "scale": _rounded(self.scale_F),
            "weights": [_rounded(row) for row in self.weights_FC],
            "bias": _rounded(self.bias_C),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        return cls(*(np.asarray(data[key], dtype=np.float64) for key in ("mean", "scale", "weights", "bias")))


def fit(
    features: Sequence[Sequence[float]], labels: Sequence[int], penalty: float, groups: Sequence[int] = ()
) -> Calibration:
    """Classes have equal weight, however many cases each has; so do groups, given by their sizes."""
    x_NF = np.asarray(features, dtype=np.float64)
    y_N = np.array([CLASSES.index(label) for label in labels])
    mean_F, scale_F = x_NF.mean(axis=0), np.maximum(x_NF.std(axis=0), 0.05)
    share_F = np.concatenate([np.full(size, size**-0.5) for size in groups or (1,) * x_NF.shape[1]])
    z_NF = np.clip((x_NF - mean_F) / scale_F, -3.5, 3.5) * share_F
    target_NC = np.eye(len(CLASSES))[y_N]
    counts_C = np.maximum(target_NC.sum(axis=0), 1)
    weight_N = (len(y_N) / (len(CLASSES) * counts_C))[y_N]
    # The optimal weights lie in the span of the cases, far smaller if there are more features than cases.
    basis_FR = np.linalg.svd(z_NF, full_matrices=False)[2].T
    z1_NR = np.hstack([z_NF @ basis_FR, np.ones((len(z_NF), 1))])
    decay_R = np.full(z1_NR.shape[1], penalty)
    decay_R[-1] = 1e-6
    # Böhning's bound on the Hessian gives one matrix to factor and monotone convergence.
    bound_RR = 0.5 * (z1_NR.T * weight_N) @ z1_NR + np.diag(decay_R)
    inverse_RR = np.linalg.inv(bound_RR)
    weights_RC = np.zeros((z1_NR.shape[1], len(CLASSES)))
    for _ in range(3000):
        residual_NC = (_softmax(z1_NR @ weights_RC) - target_NC) * weight_N[:, None]
        step_RC = inverse_RR @ (z1_NR.T @ residual_NC + decay_R[:, None] * weights_RC)
        weights_RC -= step_RC
        if np.abs(step_RC).max() < 1e-7:
            break
    return Calibration(mean_F, scale_F, basis_FR @ weights_RC[:-1] * share_F[:, None], weights_RC[-1])


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _softmax(logits_NC: Array) -> Array:
    exp_NC: Array = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    total_N1: Array = exp_NC.sum(axis=1, keepdims=True)
    return exp_NC / total_N1
