"""Fit positive constants to published ratios, and judge the fit on rows that it never saw."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Model = Callable[[Floats, NDArray[np.intp]], Floats]  # (constants, rows) -> predictions
STEPS = 200
NUDGE = 1e-6  # of the logarithm of a constant, for derivatives
FAR = 25.0  # the logarithm of a constant stays within this of its start


@dataclass(frozen=True)
class Fit:
    """Fitted constants, and mean absolute relative errors on rows seen and on rows left out."""

    constants: Floats
    mean_error: float
    worst_error: float
    leave_one_out: float  # each row predicted from a fit on all others
    halves: float  # each half (odd and even rows) predicted from a fit on the other

    def as_dict(self, names: Sequence[str]) -> dict[str, float]:
        """Plain values for JSON, with a name for each constant."""
        values = asdict(self)
        return dict(zip(names, values.pop("constants").tolist(), strict=True)) | values


def least_squares(model: Model, measured: Floats, rows: NDArray[np.intp], start: Floats) -> Floats:
    """Positive constants with the least squared relative error on some rows.

    Levenberg-Marquardt on the logarithms of the constants, from `start`; the same numbers on
    every machine up to rounding.
    """

    def misfit(logs: Floats) -> Floats:
        errors: Floats = model(np.exp(logs), rows) / measured[rows] - 1
        return errors

    first = logs = np.log(start)
    damping, residual = 1e-2, misfit(logs)
    for _ in range(STEPS):
        nudges = NUDGE * np.eye(len(logs))
        slope = np.stack([(misfit(logs + n) - residual) / NUDGE for n in nudges], axis=1)
        normal = slope.T @ slope + damping * np.eye(len(logs)) * 1e-2
        step = np.clip(np.linalg.solve(normal, -slope.T @ residual), -1, 1)
        trial = np.clip(logs + step, first - FAR, first + FAR)
        after = misfit(trial)
        if after @ after < residual @ residual:
            logs, residual, damping = trial, after, damping / 4
            if np.abs(step).max() < 1e-10:
                break
        else:
            damping = min(damping * 4, 1e12)
    constants: Floats = np.exp(logs)
    return constants


def fit(model: Model, measured: Floats, start: Floats) -> Fit:
    """Fit all rows; then every row, and each half, from the others alone."""
    everything = np.arange(len(measured))
    constants = least_squares(model, measured, everything, start)
    seen = errors(model, measured, everything, constants)
    single = [(np.delete(everything, i), everything[i : i + 1]) for i in everything]
    pair = [(everything[::2], everything[1::2]), (everything[1::2], everything[::2])]
    return Fit(
        constants,
        float(seen.mean()),
        float(seen.max()),
        *(
            float(np.concatenate(list(_blind(model, measured, splits, start))).mean())
            for splits in (single, pair)
        ),
    )


def errors(model: Model, measured: Floats, rows: NDArray[np.intp], constants: Floats) -> Floats:
    """Absolute relative errors of some rows."""
    relative: Floats = np.abs(model(constants, rows) / measured[rows] - 1)
    return relative


def _blind(
    model: Model,
    measured: Floats,
    splits: list[tuple[NDArray[np.intp], NDArray[np.intp]]],
    start: Floats,
) -> Iterator[Floats]:
    for seen, unseen in splits:
        if len(seen) and len(unseen):
            yield errors(model, measured, unseen, least_squares(model, measured, seen, start))
