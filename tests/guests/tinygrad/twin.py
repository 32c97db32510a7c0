"""Computes train.py's losses in NumPy (float64), to compare with."""

from __future__ import annotations

import numpy as np

FEATURES, HIDDEN, CLASSES, BATCH = 16, 32, 4, 64


def losses(steps: int) -> list[float]:
    """The loss of each step: two layers, cross-entropy, Adam (lr 0.01, 0.9, 0.999, eps 1e-8)."""
    rng = np.random.default_rng(7)
    weights = [_parameter(rng, FEATURES, HIDDEN), _parameter(rng, HIDDEN, CLASSES)]
    centres = rng.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    result = []
    for step in range(steps):
        labels = rng.integers(0, CLASSES, BATCH)
        noise = rng.standard_normal((BATCH, FEATURES), dtype=np.float32)
        loss, gradients = _backward(weights, (centres[labels] + noise).astype(np.float64), labels)
        result.append(loss)
        for weight, gradient, (first, second) in zip(weights, gradients, moments, strict=True):
            first[:] = 0.9 * first + 0.1 * gradient
            second[:] = 0.999 * second + 0.001 * gradient**2
            m, v = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
            weight -= 0.01 * m / (np.sqrt(v) + 1e-8)
    return result


def _parameter(rng: np.random.Generator, *shape: int) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5)
    return values.astype(np.float64)


def _backward(
    weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray
) -> tuple[float, list[np.ndarray]]:
    before = x @ weights[0]
    hidden = np.maximum(before, 0)
    logits = hidden @ weights[1]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    p = shifted / shifted.sum(1, keepdims=True)
    rows = np.arange(len(x))
    loss = float(-np.log(p[rows, labels]).mean())
    p[rows, labels] -= 1
    p /= len(x)
    back = (p @ weights[1].T) * (before > 0)
    return loss, [x.T @ back, hidden.T @ p]
