"""Tests the simulator on published rows: errors, intervals, order of schedules.

The constants of the presets are frozen. Their errors on rows with a fully known setting are in
`simulator/hardware/residuals.csv`; `simulator/hardware/frozen.toml` has the date of the fit and the
digest of those rows. Rows of users are tested in the same way.
"""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, expm1, log
from typing import Any, Literal

import numpy as np

from ringloom.csv_rows import records
from ringloom.reproduce import DATA
from ringloom.reproduce.measured import Measured, published_rows
from ringloom.reproduce.tables import Line, Table
from ringloom.simulator.confidence import RESIDUALS, ratio_interval

APART = 1.1  # pairs of schedules are compared if their published times differ by more
CONTEXT = DATA / "context.csv"
FROZEN = RESIDUALS.with_name("frozen.toml")
UNITS = {"tflops": "TF/s per rank", "per_s": "runs/s", "ratio": "times as long"}
DIGITS = {"tflops": 0, "per_s": 1}
Verdict = Literal["right", "wrong", "too close"]


@dataclass(frozen=True)
class Errors:
    """Number of rows, and the mean and largest relative error of their times."""

    rows: int
    mean: float
    worst: float

    @staticmethod
    def of(logs: Iterable[float]) -> "Errors":
        """Returns the errors for logarithms of predicted over published times."""
        sizes = [abs(expm1(error)) for error in logs]
        return Errors(len(sizes), float(np.mean(sizes)), max(sizes))

    def as_dict(self) -> dict[str, float]:
        """Returns plain values for JSON."""
        return {"rows": self.rows, "mean_error": self.mean, "worst_error": self.worst}


@dataclass(frozen=True)
class Decision:
    """Two schedules of one setting: published and predicted time of the first over the second."""

    setting: str
    first: str
    second: str
    published: float
    predicted: float
    interval: tuple[float, float]

    @property
    def verdict(self) -> Verdict:
        """Returns "too close" if the interval of the ratio contains 1."""
        low, high = self.interval
        if low <= 1 <= high:
            return "too close"
        return "right" if (self.published > 1) == (self.predicted > 1) else "wrong"


def stated(rows: Sequence[Measured]) -> list[Measured]:
    """Returns the rows with a fully known setting."""
    return [row for row in rows if row.use != "context"]


def context() -> list[Line]:
    """Returns the measurements without a prediction, each with the reason."""
    columns = ("source", "setting", "unit", "value", "why")
    return [
        Line(
            f"{row['source']}: {row['setting']}" + (f" ({row['unit']})" if row["unit"] else ""),
            float(row["value"]) if row["value"] else None,
            None,
            len(row["value"].partition(".")[2]),
            row["why"],
            context=True,
        )
        for row in records(CONTEXT, columns)
    ]


def decisions(rows: Sequence[Measured]) -> list[Decision]:
    """Returns pairs of schedules in one setting whose published times are over 10% apart."""
    pairs = [(row, row.versus_row, *row.times) for row in rows if row.quantity == "ratio"]
    timed = [row for row in rows if row.ranks > 1 and row.quantity != "ratio"]
    for first, second in combinations(timed, 2):
        if (first.source, first.on, first.setting) == (second.source, second.on, second.setting):
            published, predicted = (a / b for a, b in zip(first.times, second.times, strict=True))
            pairs.append((first, second, published, predicted))
    decided = list[Decision]()
    for first, second, published, predicted in pairs:
        if abs(log(published)) > log(APART):
            setting = f"{first.source}, {first.on}: {first.setting}"
            names = first.schedule, second.schedule
            interval = ratio_interval(
                first.machine.name, first.pass_, predicted, first.spread, second.spread
            )
            decided.append(Decision(setting, *names, published, predicted, interval))
    return decided


def group_by(rows: Sequence[Measured], *names: str) -> dict[tuple[str, ...], list[Measured]]:
    """Groups rows by the values of attributes."""
    groups = dict[tuple[str, ...], list[Measured]]()
    for row in rows:
        key = tuple(str(getattr(row, name)) for name in names)
        groups.setdefault(key, []).append(row)
    return groups


def frozen() -> dict[str, Any]:
    """Returns the date of the fit of the constants, and its rows."""
    return tomllib.loads(FROZEN.read_text(encoding="utf-8"))


# ---- as tables and as JSON


def tables(rows: Sequence[Measured] | None = None) -> list[Table]:
    """Returns a table of published and predicted values per source, then the order of schedules."""
    rows = published_rows() if rows is None else rows
    by_source = list[Table]()
    for (source, on, quantity), group in group_by(rows, "source", "on", "quantity").items():
        lines = [_line(row, DIGITS.get(quantity, 3)) for row in group]
        title = f"{source} on {on}: {UNITS.get(quantity, quantity)}"
        by_source.append(Table(title, lines))
    return [*by_source, *order(decisions(rows))]


def _line(row: Measured, digits: int) -> Line:
    note = f"{row.use}: {row.why}" if row.why else row.use
    return Line(row.name, row.value, row.ours, digits, note, context=row.use == "context")


def order(decisions: Sequence[Decision]) -> Iterator[Table]:
    """Yields, if there are pairs, a table of those predicted in the published order."""
    if not decisions:
        return
    lines = list[Line]()
    for setting in dict.fromkeys(decision.setting for decision in decisions):
        verdicts = [decision.verdict for decision in decisions if decision.setting == setting]
        note = ", ".join(
            f"{verdicts.count(v)} {v}" for v in ("wrong", "too close") if v in verdicts
        )
        lines.append(Line(setting, len(verdicts), verdicts.count("right"), 0, note))
    yield Table("Order of schedules more than 10% apart", lines)


def as_json(rows: Sequence[Measured]) -> dict[str, Any]:
    """Returns {"rows", "summary", "by", "decisions", "frozen"}: see docs/predictions.md."""
    entries = [_as_dict(row) for row in rows]
    known = stated(rows)
    summary: dict[str, Any] = Errors.of(r.error for r in known).as_dict() if known else {"rows": 0}
    timed = [entry for entry in entries if entry["inside"] is not None]
    if timed:
        summary["inside_interval"] = sum(entry["inside"] for entry in timed) / len(timed)
        summary["median_half_width"] = float(np.median([entry["half_width"] for entry in timed]))
    groups = {
        key: {
            "/".join(values): Errors.of(row.error for row in group).as_dict()
            for values, group in group_by(known, attribute).items()
        }
        for key, attribute in (("hardware", "on"), ("schedule", "schedule"), ("pass", "pass_"))
    }
    return {
        "rows": entries,
        "summary": summary,
        "by": {key: errors or None for key, errors in groups.items()},
        "decisions": [
            {"setting": d.setting, "first": d.first, "second": d.second, "verdict": d.verdict}
            | {"published_ratio": d.published, "predicted_ratio": d.predicted}
            for d in decisions(rows)
        ],
        "frozen": frozen(),
    }


def _as_dict(row: Measured) -> dict[str, Any]:
    published, predicted = row.times
    timed = row.quantity != "ratio"
    low, high = row.interval if timed else (None, None)
    return {
        "source": row.source,
        "hardware": row.on,
        "pass": row.pass_,
        "schedule": row.schedule,
        "ranks": row.ranks,
        "setting": row.setting,
        "use": row.use,
        "why": row.why,
        "quantity": row.quantity,
        "published": row.value,
        "predicted": row.ours,
        "published_s": published if timed else None,
        "predicted_s": predicted if timed else None,
        "error": expm1(row.error),
        "interval_s": [low, high] if timed else None,
        "inside": low <= published <= high if low is not None and high is not None else None,
        "half_width": exp(log(high / low) / 2) - 1 if low and high else None,
        "baselines": {k: v / published - 1 for k, v in row.baselines.items()} if timed else {},
    }
