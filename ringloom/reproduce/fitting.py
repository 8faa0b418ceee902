"""Fits positive constants to published numbers, and tests the fits on held-out rows."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.optional import import_optional

Floats = NDArray[np.float64]
Model = Callable[[Floats, NDArray[np.intp]], Floats]  # (constants, rows) -> predictions
LOG_RANGE = 25.0  # maximum change of the logarithm of a constant from its initial value


@dataclass(frozen=True)
class Fit:
    """Fitted constants, with mean absolute relative errors on fitted and held-out rows."""

    constants: Floats
    mean_error: float
    worst_error: float
    leave_one_out: float  # each row predicted by a fit to all other rows
    halves: float  # odd rows predicted by a fit to even rows, and vice versa

    def as_dict(self, names: Sequence[str]) -> dict[str, float]:
        """Returns plain values for JSON, with a name for each constant."""
        values = asdict(self)
        return dict(zip(names, values.pop("constants").tolist(), strict=True)) | values


def least_squares(model: Model, measured: Floats, rows: NDArray[np.intp], start: Floats) -> Floats:
    """Returns the positive constants with the least squared relative error on `rows`.

    Fits the logarithms of the constants, starting at `start`. Raises RingloomError without scipy.
    """

    def relative_errors(logs: Floats) -> Floats:
        errors: Floats = model(np.exp(logs), rows) / measured[rows] - 1
        return errors

    initial = np.log(start)
    bounds = initial - LOG_RANGE, initial + LOG_RANGE
    solution = import_optional("fit", "scipy.optimize").least_squares(
        relative_errors, initial, bounds=bounds, xtol=1e-10
    )
    constants: Floats = np.exp(solution.x)
    return constants


def fit(model: Model, measured: Floats, start: Floats) -> Fit:
    """Fits all rows, and tests the model on single rows and on halves that are held out."""
    rows = np.arange(len(measured))
    constants = least_squares(model, measured, rows, start)

    def errors(rows: NDArray[np.intp], constants: Floats) -> Floats:
        relative: Floats = np.abs(model(constants, rows) / measured[rows] - 1)
        return relative

    def held_out_error(splits: list[tuple[NDArray[np.intp], NDArray[np.intp]]]) -> float:
        parts = [
            errors(held_out, least_squares(model, measured, fitted, start))
            for fitted, held_out in splits
            if len(fitted) and len(held_out)
        ]
        return float(np.concatenate(parts).mean())

    fit_errors, even, odd = errors(rows, constants), rows[::2], rows[1::2]
    singles = held_out_error([(np.delete(rows, i), rows[i : i + 1]) for i in rows])
    halves = held_out_error([(even, odd), (odd, even)])
    return Fit(constants, float(fit_errors.mean()), float(fit_errors.max()), singles, halves)
