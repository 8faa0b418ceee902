"""Intervals of predictions, and the effect of each constant of the hardware.

Predictions have two sources of error. The model: its errors are the differences between published
and predicted times (`hardware/residuals.csv`). The constants: errors of constants measured on the
chip are part of these differences; other constants may lie anywhere in their range. All errors are
logarithms of ratios and small, and combine like independent errors: the root of the sum of squares.

interval   of a time: the model's error and all uncalibrated constants
ratio      of two plans on one machine: the scatter of rows around the mean of their source, and all
           constants; each constant changes for both plans, so that equal effects cancel

Rows of one source share its unpublished conditions, and the next prediction will be for an unknown
source. Therefore all sources have equal weight, regardless of their number of rows, and as they are
few, intervals follow Student's distribution. The sources are those that measured this pass on this
chip; if there are fewer than three, those of all chips and passes.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringloom.planner.plans import Passes, Plans
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.hardware.schema import chip_of, unit_of
from ringloom.simulator.prediction import seconds_of
from ringloom.simulator.scenario import Scenario

RESIDUALS = Path(__file__).parent / "hardware" / "residuals.csv"
NORMAL_90 = 1.645  # standard deviations that contain 90% of normal errors
# The same for a deviation that 2, 3, ... sources estimate: Student's t with 1, 2, ... degrees
STUDENT_90 = 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812
SOURCES = 3  # of a pass on a chip, from which on only these count
LARGE = 1 << 14  # rows of plans above which the effects of constants are only bounded
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Residual:
    """A published row, and log(predicted / published time); a row of one rank is a single call."""

    hardware: str
    source: str
    pass_: Passes
    ranks: int
    what: str
    error: float


def residuals() -> tuple[Residual, ...]:
    """Returns the predictions for all published rows from the last fit of constants."""
    rows = csv.DictReader(RESIDUALS.read_text(encoding="utf-8").splitlines())
    return tuple(
        Residual(
            *(row["hardware"], row["source"], row["pass"]),  # type: ignore[arg-type]
            int(row["ranks"]),
            row["what"],
            float(row["error"]),
        )
        for row in rows
    )


@dataclass(frozen=True, slots=True)
class Basis:
    """The rows on which an interval is based; `chip` is None for rows of all chips."""

    name: str
    pass_: Passes
    chip: str | None
    rows: tuple[Residual, ...]

    @property
    def sources(self) -> dict[str, list[float]]:
        """The errors of the rows of each source."""
        errors = dict[str, list[float]]()
        for row in self.rows:
            errors.setdefault(row.source, []).append(row.error)
        return errors

    @property
    def error(self) -> float:
        """The logarithm of the ratio within which 90% of predictions are right."""
        squares = [np.mean(np.square(errors)) for errors in self.sources.values()]
        student = STUDENT_90[: max(1, len(squares) - 1)][-1]
        return student * math.sqrt(np.mean(squares))

    @property
    def words(self) -> str:
        """The number of rows, and the reason why they were chosen."""
        number = f"{len(self.rows)} rows of {len(self.sources)} sources"
        timed = "both passes together" if self.pass_ == "both" else f"{self.pass_} passes"
        if self.chip:
            return f"{number} that timed {timed} on {self.chip}"
        fewer = f"fewer than {SOURCES} sources timed {timed} on {chip_of(self.name)}"
        return f"{number} on all chips: {fewer}"

    def as_dict(self) -> dict[str, str | int | None]:
        """Returns plain values for JSON."""
        counts = {"rows": len(self.rows), "sources": len(self.sources)}
        return {"chip": self.chip, **counts, "words": self.words}


def basis(name: str, pass_: Passes, rows: Sequence[Residual] | None = None) -> Basis:
    """Returns the rows of a pass on a chip if enough sources measured it, otherwise all rows."""
    rows = residuals() if rows is None else rows
    chip = chip_of(name)
    same = [row for row in rows if (chip_of(row.hardware), row.pass_) == (chip, pass_)]
    enough = len({row.source for row in same}) >= SOURCES
    return Basis(name, pass_, chip if enough else None, tuple(same if enough else rows))


def ratio_error(name: str, pass_: Passes, rows: Sequence[Residual] | None = None) -> float:
    """Returns the error of the ratio of two schedules, from rows of the same source."""
    plans = [row for row in (residuals() if rows is None else rows) if row.ranks > 1]
    sources = basis(name, pass_, plans).sources.values()
    squares = sum(float(np.var(errors)) * len(errors) for errors in sources)
    degrees = sum(len(errors) - 1 for errors in sources)
    return NORMAL_90 * math.sqrt(2 * squares / max(1, degrees))


def unvalidated(machine: Hardware) -> str:
    """Returns a sentence if the order of schedules is not validated; "" if it is."""
    names = {row.hardware for row in residuals() if row.ranks > 1}
    if machine.node in {hardware(name).node for name in names}:
        return ""
    chips = f"chips joined like those of {machine.name}"
    return f"The order is not validated: no times of schedules are published for {chips}."


# ---- constants


def constants_of(plans: Plans, hardware: Hardware, scenario: Scenario) -> list[str]:
    """Returns the constants with a range on which the time of the plans may depend."""
    hardware = scenario.nodes(hardware, plans.first.ranks)
    work, passes = plans.first.workload, {plan.pass_ for plan in plans}
    one_node = plans.first.ranks <= hardware.ranks_per_node
    unused = {f"attention.{p}" for p in ("forward", "backward") if p not in passes}

    def used(key: str) -> bool:
        section, name = key.split(".")
        if section == "peak":
            return name == work.dtype
        if key == "memory.capacity" or (section == "inter" and one_node):
            return False
        return not any(key == other or key.startswith(f"{other}_") for other in unused)

    return [
        key
        for key, constant in hardware.constants.items()
        if constant.value and not unit_of(key).whole and used(key)
    ]


def effects(
    plans: Plans,
    hardware: Hardware,
    scenario: Scenario,
    values: Mapping[str, float],
    seconds: float | None = None,
) -> dict[str, float]:
    """Returns log(new time / old time) for each constant, if only that constant changes.

    `values` are the new values; `seconds` is the old time, if known.
    """
    before = seconds_of(plans, hardware, scenario) if seconds is None else seconds
    if not before:
        return dict.fromkeys(values, 0.0)
    machines = {key: hardware.changed({key: value}) for key, value in values.items()}
    return {k: math.log(seconds_of(plans, m, scenario) / before) for k, m in machines.items()}


def spread(
    plans: Plans,
    hardware: Hardware,
    scenario: Scenario,
    seconds: float | None = None,
    *,
    calibrated: bool = True,
) -> dict[str, float]:
    """Returns the effect of each constant at the farther end of its range.

    For large plans, returns the largest of the upper bounds of all effects: time changes at most in
    proportion to a constant. Incast is simulated even then, because it changes most plans little.
    Without `calibrated`, only uncalibrated constants count.
    """
    ends = dict[str, float]()  # the end of each range that is farther from the value, as a factor
    for key in constants_of(plans, hardware, scenario):
        constant = hardware.constants[key]
        if calibrated or not constant.calibrated:
            low, high = hardware.range(key)
            ends[key] = high if high / constant.value * low >= constant.value else low
    if ends and sum(plan.rows for plan in plans) > LARGE:
        simulated = {key: end for key, end in ends.items() if not end or key == "inter.incast"}
        factors = {
            key: abs(math.log(end / hardware[key]))
            for key, end in ends.items()
            if key not in simulated
        } | effects(plans, hardware, scenario, simulated, seconds)
        worst = max(factors, key=factors.__getitem__)
        return {worst: factors[worst]}
    return effects(plans, hardware, scenario, ends, seconds)


def interval(
    machine: Hardware, pass_: Passes, seconds: float, changes: Mapping[str, float]
) -> Interval:
    """Returns the 90% interval of the measured seconds of a plan.

    `changes` is the plan's `spread`, of which only uncalibrated constants count. A constant at an
    end of its range, such as incast, makes the plan either slower or faster.
    """
    parts = {key: part for key, part in changes.items() if not machine.constants[key].calibrated}
    ends = {key for key in parts if machine[key] in machine.range(key)}
    model = basis(machine.name, pass_).error
    faster, slower = (
        [model, *(part for key, part in parts.items() if key not in ends or part * sign > 0)]
        for sign in (-1, 1)
    )
    return _interval_around(seconds, faster)[0], _interval_around(seconds, slower)[1]


def ratio_interval(
    name: str, pass_: Passes, ratio: float, first: Mapping[str, float], second: Mapping[str, float]
) -> Interval:
    """Returns the 90% interval of the ratio of two times on one machine.

    `first` and `second` are the plans' `spread`.
    """
    keys = sorted(first.keys() | second.keys())  # the last digit of a sum depends on the order
    parts = [first.get(key, 0.0) - second.get(key, 0.0) for key in keys]
    return _interval_around(ratio, [ratio_error(name, pass_), *parts])


def _interval_around(value: float, parts: Sequence[float]) -> Interval:
    half = math.sqrt(sum(part * part for part in parts))
    return value * math.exp(-half), value * math.exp(half)


# ---- sensitivity


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A constant, and each schedule's seconds if it is 10% smaller and 10% larger.

    `fastest` names the fastest schedule in both cases. `doubt` is the largest relative change of
    the time of the fastest schedule over the range of the constant.
    """

    constant: str
    value: float
    calibrated: bool
    range: Interval
    seconds: Mapping[str, Interval]
    fastest: tuple[str, str]
    doubt: float


def sensitivity(
    plans: Mapping[str, Plans],
    hardware: Hardware,
    scenario: Scenario = Scenario(),  # noqa: B008  frozen, so one shared instance is safe
) -> tuple[list[Sensitivity], dict[str, float]]:
    """Returns the effects of a 10% change of each constant, and each schedule's unchanged seconds.

    Uncalibrated constants come first, in the order of decreasing doubt, so the first one should be
    measured first. Constants that change nothing are left out.
    """

    def time_all(machine: Hardware) -> dict[str, float]:
        return {name: seconds_of(pair, machine, scenario) for name, pair in plans.items()}

    times = time_all(hardware)
    first = min(times, key=times.__getitem__)
    best, seconds, rows = plans[first], times[first], list[Sensitivity]()
    for key in constants_of(best, hardware, scenario):
        constant, limits = hardware.constants[key], hardware.range(key)
        values = (unit_of(key).clip(share * constant.value) for share in (0.9, 1.1))
        less, more = (time_all(hardware.changed({key: value})) for value in values)
        if less == more:
            continue
        ends = ({key: end} for end in limits)
        doubt = max(abs(effects(best, hardware, scenario, end, seconds)[key]) for end in ends)
        row = Sensitivity(
            constant=key,
            value=constant.value,
            calibrated=constant.calibrated,
            range=limits,
            seconds={name: (less[name], more[name]) for name in plans},
            fastest=(min(less, key=less.__getitem__), min(more, key=more.__getitem__)),
            doubt=math.expm1(doubt),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: (row.calibrated, -row.doubt)), times
