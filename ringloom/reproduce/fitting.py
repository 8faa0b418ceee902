"""Fit positive constants to published ratios, and judge the fit on rows that it never saw."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.optional import needing

Floats = NDArray[np.float64]
Model = Callable[[Floats, NDArray[np.intp]], Floats]  # (constants, rows) -> predictions
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

    The logarithms of the constants are fitted, from those of `start`. Raises RingloomError without
    scipy.
    """

    def misfit(logs: Floats) -> Floats:
        errors: Floats = model(np.exp(logs), rows) / measured[rows] - 1
        return errors

    first = np.log(start)
    bounds = first - FAR, first + FAR
    solved = needing("fit", "scipy.optimize").least_squares(
        misfit, first, bounds=bounds, xtol=1e-10
    )
    constants: Floats = np.exp(solved.x)
    return constants


def fit(model: Model, measured: Floats, start: Floats) -> Fit:
    """Fit all rows; then every row, and each half, from the others alone."""
    every = np.arange(len(measured))
    constants = least_squares(model, measured, every, start)

    def errors(rows: NDArray[np.intp], constants: Floats) -> Floats:
        relative: Floats = np.abs(model(constants, rows) / measured[rows] - 1)
        return relative

    def left_out(splits: list[tuple[NDArray[np.intp], NDArray[np.intp]]]) -> float:
        blind = [
            errors(unseen, least_squares(model, measured, seen, start))
            for seen, unseen in splits
            if len(seen) and len(unseen)
        ]
        return float(np.concatenate(blind).mean())

    seen, even, odd = errors(every, constants), every[::2], every[1::2]
    singles = [(np.delete(every, i), every[i : i + 1]) for i in every]
    halves = left_out([(even, odd), (odd, even)])
    return Fit(constants, float(seen.mean()), float(seen.max()), left_out(singles), halves)
