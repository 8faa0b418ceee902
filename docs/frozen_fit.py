"""Freezes the fit of the constants, and finds the rows to which each constant was fitted.

    python docs/frozen_fit.py 2026-01-31

Run this after fitting constants or adding published rows: it writes the current errors, the digest
of the rows, and the fitted constants, with the given date.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringloom.reproduce.measured import ROWS, Measured, published_rows
from ringloom.reproduce.validation import FROZEN, stated
from ringloom.simulator.confidence import RESIDUALS, Residual
from ringloom.simulator.hardware import hardware, machines
from ringloom.simulator.prediction import simulate


def current_errors() -> list[Residual]:
    """Returns the current errors of all published times whose setting is fully stated."""
    rows = [row for row in stated(published_rows()) if row.quantity != "ratio"]
    return [Residual(r.on, r.source, r.pass_, r.ranks, r.name, r.error) for r in rows]


def digest(path: Path = ROWS) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def freeze(date: str) -> None:
    """Writes the current errors and the fitted constants, from which intervals are computed."""
    lines = [
        f'{r.hardware},{r.source},{r.pass_},{r.ranks},"{r.what}",{r.error:.4f}'
        for r in current_errors()
    ]
    RESIDUALS.write_text("\n".join(["hardware,source,pass,ranks,what,error", *lines, ""]))
    comment = "# The fit that predictions rest on; written by docs/frozen_fit.py."
    parts = [
        comment,
        f'date = "{date}"',
        f"rows = {len(published_rows())}",
        f'sha256 = "{digest()}"',
    ]
    for name in machines():
        if constants := fitted_constants(name):
            parts += ["", f'[constants."{name}"]']
            parts += [f'"{key}" = {value!r}' for key, value in constants.items()]
    FROZEN.write_text("\n".join([*parts, ""]))


def fitted_constants(name: str) -> dict[str, float]:
    """Returns the constants of a preset that were fitted to rows of its own chip."""
    constants = hardware(name).constants.items()
    return {k: c.value for k, c in constants if c.calibrated and c.source.startswith("fitted to ")}


@dataclass(frozen=True)
class Fit:
    """A fitted constant, which chips may share, and the fitted rows whose times it changes."""

    constant: str
    chips: tuple[str, ...]
    rows: tuple[Measured, ...]


def find_fits(rows: Sequence[Measured]) -> list[Fit]:
    """Returns the constants that were fitted to rows; each fit counts once."""
    chips = dict[tuple[str, str], list[str]]()
    for name in dict.fromkeys(row.on for row in rows):
        for key in fitted_constants(name):
            chips.setdefault((key, hardware(name).constants[key].source), []).append(name)
    return [
        Fit(key, tuple(names), tuple(r for r in rows if r.on in names and _depends_on(r, key)))
        for (key, _), names in chips.items()
    ]


def _depends_on(row: Measured, key: str) -> bool:
    """Returns True if constants were fitted to a row, and its time depends on this constant."""
    if row.use != "fitted":
        return False
    changed = row.machine.changed({key: row.machine[key] * 1.01})
    return simulate(row.plans, changed, record=False).makespan != row.predicted.makespan


if __name__ == "__main__":
    freeze(sys.argv[1])
