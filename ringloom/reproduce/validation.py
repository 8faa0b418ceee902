"""Tests the simulator on published rows: errors, intervals, order of schedules.

The constants of the presets were frozen together with their errors on fully stated rows, in
`simulator/hardware/residuals.csv`; `simulator/hardware/frozen.toml` has the date and the digest of
those rows. Rows of other files are tested in the same way.
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

APART = 1.1  # the order of schedules counts if their published times differ by more
CONTEXT = DATA / "context.csv"
FROZEN = RESIDUALS.with_name("frozen.toml")
UNITS = {"tflops": "TF/s per rank", "per_s": "runs/s", "ratio": "times as long"}
DIGITS = {"tflops": 0, "per_s": 1}
Verdict = Literal["right", "wrong", "too close"]


@dataclass(frozen=True)
class Errors:
    """Number of rows, with the mean and largest relative error of their times."""

    rows: int
    mean: float
    worst: float

    @staticmethod
    def of(logs: Iterable[float]) -> "Errors":
        """Returns the errors for logarithms of predicted over published times."""
        sizes = [abs(expm1(error)) for error in logs]
        return Errors(len(sizes), float(np.mean(sizes)), max(sizes))

    def as_dict(self) -> dict[str, float]:
        """Plain values for JSON."""
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
    """Returns the fully stated rows, without context."""
    return [row for row in rows if row.use != "context"]


def context() -> list[Line]:
    """Returns measurements that are not predicted, each with the reason."""
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
    """Returns pairs of schedules of one setting and source, published more than 10% apart."""
    pairs = [(row, row.other, *row.times) for row in rows if row.quantity == "ratio"]
    plain = [row for row in rows if row.ranks > 1 and row.quantity != "ratio"]
    for one, other in combinations(plain, 2):
        if (one.source, one.on, one.setting) == (other.source, other.on, other.setting):
            published, predicted = (a / b for a, b in zip(one.times, other.times, strict=True))
            pairs.append((one, other, published, predicted))
    made = list[Decision]()
    for one, other, published, predicted in pairs:
        if abs(log(published)) > log(APART):
            where, names = f"{one.source}, {one.on}: {one.setting}", (one.schedule, other.schedule)
            interval = ratio_interval(
                one.machine.name, one.pass_, predicted, one.spread, other.spread
            )
            made.append(Decision(where, *names, published, predicted, interval))
    return made


def by(rows: Sequence[Measured], *names: str) -> dict[tuple[str, ...], list[Measured]]:
    """Groups rows by attributes."""
    groups = dict[tuple[str, ...], list[Measured]]()
    for row in rows:
        key = tuple(str(getattr(row, name)) for name in names)
        groups.setdefault(key, []).append(row)
    return groups


def frozen() -> dict[str, Any]:
    """Returns the date of the fit of constants, and the rows it used."""
    return tomllib.loads(FROZEN.read_text(encoding="utf-8"))


# ---- as tables and as JSON


def tables(rows: Sequence[Measured] | None = None) -> list[Table]:
    """Returns a table of published and predicted values per source, then the order of schedules."""
    rows = published_rows() if rows is None else rows
    listed = list[Table]()
    for (source, on, quantity), own in by(rows, "source", "on", "quantity").items():
        lines = [_line(row, DIGITS.get(quantity, 3)) for row in own]
        title = f"{source} on {on}: {UNITS.get(quantity, quantity)}"
        listed.append(Table(title, lines))
    return [*listed, *order(decisions(rows))]


def _line(row: Measured, digits: int) -> Line:
    note = f"{row.use}: {row.why}" if row.why else row.use
    return Line(row.name, row.value, row.ours, digits, note, context=row.use == "context")


def order(made: Sequence[Decision]) -> Iterator[Table]:
    """Counts, per setting, the pairs in the published order and those too close to call."""
    if not made:
        return
    lines = list[Line]()
    for setting in dict.fromkeys(one.setting for one in made):
        verdicts = [one.verdict for one in made if one.setting == setting]
        note = ", ".join(
            f"{verdicts.count(v)} {v}" for v in ("wrong", "too close") if v in verdicts
        )
        lines.append(Line(setting, len(verdicts), verdicts.count("right"), 0, note))
    yield Table("Order of schedules more than 10% apart", lines)


def as_json(rows: Sequence[Measured]) -> dict[str, Any]:
    """Returns {"rows", "summary", "by", "decisions", "frozen"}: see docs/predictions.md."""
    judged = [_as_dict(row) for row in rows]
    plain = stated(rows)
    summary: dict[str, Any] = Errors.of(r.error for r in plain).as_dict() if plain else {"rows": 0}
    timed = [row for row in judged if row["inside"] is not None]
    if timed:
        summary["inside_interval"] = sum(row["inside"] for row in timed) / len(timed)
        summary["median_half_width"] = float(np.median([row["half_width"] for row in timed]))
    groups = {
        word: {
            "/".join(key): Errors.of(row.error for row in own).as_dict()
            for key, own in by(plain, name).items()
        }
        for word, name in (("hardware", "on"), ("schedule", "schedule"), ("pass", "pass_"))
    }
    made = decisions(rows)
    return {
        "rows": judged,
        "summary": summary,
        "by": {word: own or None for word, own in groups.items()},
        "decisions": [
            {"setting": d.setting, "first": d.first, "second": d.second, "verdict": d.verdict}
            | {"published_ratio": d.published, "predicted_ratio": d.predicted}
            for d in made
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
