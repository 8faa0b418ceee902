"""Estimates a common factor of a head's results on random inputs, and its allowed deviation.

A result r of n tokens is f t + e, where t is dense attention in float64. Rounding errors of single
numbers cancel in f, so f reveals errors in 16 bits that the largest difference hides:

    f - 1 = sum of (r - t) t / sum of t^2
    |f - 1| <= 8 u + 6 |e| / (|t| sqrt(n))

The first term allows for eight roundings in the same direction, by at most u each. The second term
is six standard errors of f: errors within a token may have a common cause (its maximum, its sum),
errors of different tokens are independent. Errors of dense attention itself are added to e.
"""

from dataclasses import replace

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.report import Measured

ROUNDINGS = 8  # of scores, weights, a partial result, its merge, a sum over ranks, and the result
DEVIATIONS = 6


def with_factor(
    measured: Measured, result: Array, truth: Array, rounded: Array, rounding: float
) -> Measured:
    """Adds the factor of the worst head; arrays are [batch, heads, tokens, dims].

    `rounded`: dense attention in the workload's dtype. `rounding`: the largest relative error of
    a rounding.
    """
    t = truth.astype(np.float64)
    size = np.maximum(np.sum(t * t, axis=(2, 3)), 1e-300)
    with np.errstate(invalid="ignore", over="ignore"):
        factor = 1 + np.sum((result - t) * t, axis=(2, 3)) / size
        error = np.sum((result - factor[..., None, None] * t) ** 2, axis=(2, 3))
        error += np.sum((rounded - t) ** 2, axis=(2, 3))
        slack = ROUNDINGS * rounding + DEVIATIONS * np.sqrt(error / size / max(1, t.shape[2]))
        worst = np.argmax(np.nan_to_num(np.abs(factor - 1) / slack, nan=np.inf))
    batch, head = np.unravel_index(worst, factor.shape)
    return replace(
        measured,
        factor=float(factor[batch, head]),
        slack=float(slack[batch, head]),
        batch=int(batch),
        head=int(head),
    )
