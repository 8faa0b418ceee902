"""Constants from measurements: least squares on relative errors, numpy alone.

    alpha-beta    seconds = alpha + bytes / bandwidth
    curve         TF(S)   = Tmax S / (S + S_half)
    kernels       seconds = launch + pairs x seconds per pair + bytes x seconds per byte

All constants are times, so none is negative: of all subsets of constants, the best whose values are
all positive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from planner.errors import RingloomError
from simulator.hardware.schema import LARGEST, SMALLEST

Floats = NDArray[np.float64]
ROUNDS = 20  # of reweighting
FLOOR = 0.01  # relative error below which a row counts no more than others


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted constants by name, and what they make of each measured value."""

    form: str
    constants: dict[str, float]
    measured: Floats
    fitted: Floats

    @property
    def errors(self) -> Floats:
        """Relative error of each row."""
        errors: Floats = self.fitted / self.measured - 1
        return errors

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error."""
        return float(np.abs(self.errors).mean())

    @property
    def worst_error(self) -> float:
        """Largest absolute relative error."""
        return float(np.abs(self.errors).max())


def positive(columns: Floats, values: Floats, weights: Floats | None = None) -> Floats:
    """Return x >= 0 with least sum of weights x (columns x / values - 1)^2; columns: [rows, n]."""
    rows, count = columns.shape
    root = np.ones(rows) if weights is None else np.sqrt(weights)
    scaled, target = columns / values[:, None] * root[:, None], root
    size = np.linalg.norm(scaled, axis=0)
    scaled = scaled / np.where(size > 0, size, 1.0)
    best, least = np.zeros(count), float(target @ target)
    for width in range(1, count + 1):
        for chosen in combinations(range(count), width):
            part = scaled[:, chosen]
            x = np.linalg.lstsq(part, target, rcond=None)[0]
            misfit = part @ x - target
            if (x >= 0).all() and misfit @ misfit < least:
                least, best = float(misfit @ misfit), np.zeros(count)
                best[list(chosen)] = x
    solution: Floats = best / np.where(size > 0, size, 1.0)
    return solution


def robust(columns: Floats, values: Floats) -> Floats:
    """Return x >= 0 with the least sum of absolute errors: a disturbed row matters little."""
    x = positive(columns, values)
    for _ in range(ROUNDS):
        error = np.abs(columns @ x / values - 1)
        x = positive(columns, values, 1 / np.maximum(error, FLOOR))
    return x


def fit_link(size: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit alpha [s] and bandwidth [bytes/s] to messages of some bytes."""
    n, t = _rows(size, seconds)
    alpha, beta = positive(np.stack([np.ones_like(n), n], axis=1), t)
    if not beta:
        raise RingloomError("the times do not grow with the bytes: no bandwidth fits them")
    constants = {"alpha": float(alpha), "bandwidth": float(1 / beta)}
    return Fit("alpha-beta", constants, t, alpha + beta * n)


def fit_curve(size: Sequence[float], rate: Sequence[float]) -> Fit:
    """Fit Tmax, in the unit of `rate`, and S_half, in that of `size`."""
    s, rates = _rows(size, rate)
    columns = np.stack([np.ones_like(s), 1 / s], axis=1)
    slow = 1 / rates
    for _ in range(ROUNDS):  # 1 / rate is linear; the weights turn its errors into those of rates
        least, half = positive(columns, 1 / rates, (1 / rates / slow) ** 2)
        slow = columns @ np.array([least, half])
    if not least:
        raise RingloomError("the rates grow in step with the size: no Tmax fits them")
    constants = {"tmax": float(1 / least), "s_half": float(half / least)}
    return Fit("curve", constants, rates, 1 / slow)


def _rows(first: Sequence[float], second: Sequence[float]) -> tuple[Floats, Floats]:
    a, b = np.array(first, float), np.array(second, float)
    if len(a) < 2 or len(np.unique(a)) < 2:
        raise RingloomError(f"two constants need two rows of different size, not {len(a)}")
    if not all((x >= SMALLEST).all() and (x <= LARGEST).all() for x in (a, b)):
        limits = f"{SMALLEST:g} to {LARGEST:g}"
        raise RingloomError(f"sizes, times and rates must be numbers from {limits}")
    return a, b
