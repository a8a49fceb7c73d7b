"""Multinomial logistic regression in numpy: evidence in, class probabilities out.

Features are standardised with the training mean and deviation; weights are fitted by Newton-like
steps with an L2 penalty, deterministically, so the same cases give the same file.
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
        """Of +1, 0 and −1."""
        x_F = np.asarray(features, dtype=np.float64)
        if x_F.shape != self.mean_F.shape:
            raise ValueError(f"{len(x_F)} features for a calibration of {len(self.mean_F)}")
        # A feature far outside what was seen in fitting must not decide alone.
        z_F = np.clip((x_F - self.mean_F) / self.scale_F, -3.5, 3.5)
        p_C = _softmax((z_F @ self.weights_FC + self.bias_C)[None])[0]
        return float(p_C[0]), float(p_C[1]), float(p_C[2])

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": [round(float(v), 5) for v in self.mean_F],
            "scale": [round(float(v), 5) for v in self.scale_F],
            "weights": [[round(float(v), 5) for v in row] for row in self.weights_FC],
            "bias": [round(float(v), 5) for v in self.bias_C],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        return cls(*(np.asarray(data[key], dtype=np.float64) for key in ("mean", "scale", "weights", "bias")))


def fit(features: Sequence[Sequence[float]], labels: Sequence[int], penalty: float) -> Calibration:
    """Classes weigh the same, however many cases each has."""
    x_NF = np.asarray(features, dtype=np.float64)
    y_N = np.array([CLASSES.index(label) for label in labels])
    mean_F, scale_F = x_NF.mean(axis=0), np.maximum(x_NF.std(axis=0), 0.05)
    z_NF = np.clip((x_NF - mean_F) / scale_F, -3.5, 3.5)
    target_NC = np.eye(len(CLASSES))[y_N]
    counts_C = np.maximum(target_NC.sum(axis=0), 1)
    weight_N = (len(y_N) / (len(CLASSES) * counts_C))[y_N]
    z1_NF = np.hstack([z_NF, np.ones((len(z_NF), 1))])
    decay_F = np.full(z1_NF.shape[1], penalty)
    decay_F[-1] = 1e-6
    # Böhning's bound on the Hessian gives one matrix to factor and monotone convergence.
    bound_FF = 0.5 * (z1_NF.T * weight_N) @ z1_NF + np.diag(decay_F)
    inverse_FF = np.linalg.inv(bound_FF)
    weights_FC = np.zeros((z1_NF.shape[1], len(CLASSES)))
    for _ in range(3000):
        residual_NC = (_softmax(z1_NF @ weights_FC) - target_NC) * weight_N[:, None]
        step_FC = inverse_FF @ (z1_NF.T @ residual_NC + decay_F[:, None] * weights_FC)
        weights_FC -= step_FC
        if np.abs(step_FC).max() < 1e-9:
            break
    return Calibration(mean_F, scale_F, weights_FC[:-1], weights_FC[-1])


def _softmax(logits_NC: Array) -> Array:
    exp_NC: Array = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    total_N1: Array = exp_NC.sum(axis=1, keepdims=True)
    return exp_NC / total_N1
