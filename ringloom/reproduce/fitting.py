"""Fits positive constants to published ratios and tests the fit on held-out rows."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.optional import needing

Floats = NDArray[np.float64]
Model = Callable[[Floats, NDArray[np.intp]], Floats]  # (constants, rows) -> predictions
FAR = 25.0  # maximum change of the logarithm of a constant from its start


@dataclass(frozen=True)
class Fit:
    """Fitted constants, with mean absolute relative errors on fitted and held-out rows."""

    constants: Floats
    mean_error: float
    worst_error: float
    leave_one_out: float  # each row predicted by a fit to all others
    halves: float  # each half (odd and even rows) predicted by a fit to the other

    def as_dict(self, names: Sequence[str]) -> dict[str, float]:
        """Returns plain values for JSON, with a name for each constant."""
        values = asdict(self)
        return dict(zip(names, values.pop("constants").tolist(), strict=True)) | values


def least_squares(model: Model, measured: Floats, rows: NDArray[np.intp], start: Floats) -> Floats:
    """Returns the positive constants with the least squared relative error on `rows`.

    Fits the logarithms of the constants, starting at `start`. Raises RingloomError without scipy.
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
    """Fits all rows; then predicts each row, and each half, from a fit to the others."""
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
