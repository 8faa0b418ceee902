"""Intervals of predictions, and what each constant of the hardware does to them.

Two things are uncertain. The model: published rows, beside what was predicted for them, scatter
(`hardware/residuals.csv`; of the rows of a chip, or of all where fewer than three sources measured
it). The constants: those that were measured on the chip were part of that scatter; those that were
not may lie anywhere in their range. Effects are small enough to add up in logarithms, as errors do
that do not know each other: the root of the sum of their squares.

interval   the model, and all uncalibrated constants
ratio      of two plans on one machine: what rows of one source scatter about their mean, and all
           constants, each moved for both plans together, so that what slows both alike cancels
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.plans import Plans
from simulator.hardware import Hardware
from simulator.hardware.schema import chip_of, unit_of
from simulator.prediction import seconds_of
from simulator.scenario import Scenario

RESIDUALS = Path(__file__).parent / "hardware" / "residuals.csv"
NINE = 1.645  # standard deviations: nine of ten errors are smaller
SOURCES = 3  # that have to have measured a chip before its own rows count alone
LARGE = 1 << 14  # rows beyond which constants are not moved one by one, a quarter of the time
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Residual:
    """A published row: predicted over published time, as a logarithm."""

    hardware: str
    source: str
    what: str
    error: float


def residuals() -> tuple[Residual, ...]:
    """Return what was predicted for all published rows when constants were last fitted."""
    rows = csv.DictReader(RESIDUALS.read_text(encoding="utf-8").splitlines())
    return tuple(
        Residual(row["hardware"], row["source"], row["what"], float(row["error"])) for row in rows
    )


def rows_for(name: str, rows: Sequence[Residual]) -> list[Residual]:
    """Return the rows of a chip where enough sources measured it, otherwise all."""
    own = [row for row in rows if chip_of(row.hardware) == chip_of(name)]
    return own if len({row.source for row in own}) >= SOURCES else list(rows)


def model_error(name: str, rows: Sequence[Residual] | None = None) -> float:
    """Return what nine of ten predictions for a chip are off by at the most, as a logarithm."""
    errors = [row.error for row in rows_for(name, residuals() if rows is None else rows)]
    return NINE * float(np.sqrt(np.mean(np.square(errors))))


def ratio_error(name: str, rows: Sequence[Residual] | None = None) -> float:
    """Return the same of the ratio of two plans: what rows of one source differ by."""
    errors, count = list[float](), 0
    by_source = dict[str, list[float]]()
    for row in rows_for(name, residuals() if rows is None else rows):
        by_source.setdefault(row.source, []).append(row.error)
    for own in by_source.values():
        errors += (np.array(own) - np.mean(own)).tolist()
        count += len(own) - 1
    return NINE * math.sqrt(2 * sum(e * e for e in errors) / max(1, count))


# ---- constants


def constants_of(plans: Plans, hardware: Hardware) -> list[str]:
    """Return the constants with a range that the time of some plans may depend on."""
    work, passes = plans.first.workload, {plan.pass_ for plan in plans}
    one_node = plans.first.ranks <= hardware.ranks_per_node
    unused = {f"attention.{p}" for p in ("forward", "backward") if p not in passes}

    def used(key: str) -> bool:
        section, name = key.split(".")
        if section == "peak":
            return name == work.dtype
        if key == "memory.capacity" or (section == "inter" and one_node):
            return False
        return not any(key == own or key.startswith(f"{own}_") for own in unused)

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
    """Return log(time / time before) where each constant alone has the given value.

    `seconds` is the time before, where it is known.
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
    """Return each constant's effect at the end of its range; of a large plan, the most it can be.

    Time grows at most in proportion to what a constant says that something takes. Without
    `calibrated`, only of uncalibrated constants.
    """
    ends = dict[str, float]()  # the farther one, as a factor, of each constant's range
    for key in constants_of(plans, hardware):
        constant = hardware.constants[key]
        if calibrated or not constant.calibrated:
            low, high = hardware.range(key)
            ends[key] = high if high / constant.value * low >= constant.value else low
    if ends and sum(plan.rows for plan in plans) > LARGE:
        nothing = {key: end for key, end in ends.items() if not end}
        factors = {
            key: abs(math.log(end / hardware[key])) for key, end in ends.items() if end
        } | effects(plans, hardware, scenario, nothing, seconds)
        worst = max(factors, key=factors.__getitem__)
        return {worst: factors[worst]}
    return effects(plans, hardware, scenario, ends, seconds)


def interval(hardware: Hardware, seconds: float, own: Mapping[str, float]) -> Interval:
    """Return the seconds between which nine of ten such plans would be measured.

    `own` is the plan's `spread`, of which only uncalibrated constants count.
    """
    parts = [part for key, part in own.items() if not hardware.constants[key].calibrated]
    return _around(seconds, [model_error(hardware.name), *parts])


def ratio_interval(
    name: str, ratio: float, one: Mapping[str, float], other: Mapping[str, float]
) -> Interval:
    """Return the range of one time / the other on a chip, constants moved for both together.

    `one` and `other` are the plans' `spread`.
    """
    keys = sorted(one.keys() | other.keys())  # sums depend on the order, in the last digit
    parts = [one.get(key, 0.0) - other.get(key, 0.0) for key in keys]
    return _around(ratio, [ratio_error(name), *parts])


def _around(value: float, parts: Sequence[float]) -> Interval:
    half = math.sqrt(sum(part * part for part in parts))
    return value * math.exp(-half), value * math.exp(half)


# ---- sensitivity


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A constant, and each schedule's seconds with 10% less and with 10% more of it.

    `fastest` names the schedule that is fastest with less, and with more. `doubt` is how much the
    time of the fastest changes over the range that the constant may lie in, as a share.
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
    """Return what 10% of each constant does to schedules, and the schedules' seconds without.

    The constant to measure first is at the head: the uncalibrated one of the most doubt. Calibrated
    ones follow; constants that change nothing are left out.
    """

    def timed(machine: Hardware) -> dict[str, float]:
        return {name: seconds_of(one, machine, scenario) for name, one in plans.items()}

    times = timed(hardware)
    first = min(times, key=times.__getitem__)
    best, usual, rows = plans[first], times[first], list[Sensitivity]()
    for key in constants_of(best, hardware):
        constant, limits = hardware.constants[key], hardware.range(key)
        values = (unit_of(key).clip(share * constant.value) for share in (0.9, 1.1))
        less, more = (timed(hardware.changed({key: value})) for value in values)
        if less == more:
            continue
        ends = ({key: end} for end in limits)
        doubt = max(abs(effects(best, hardware, scenario, e, usual)[key]) for e in ends)
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
