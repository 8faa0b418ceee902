"""Intervals of predictions, and what each constant of the hardware does to them.

Two things are uncertain. The model: published rows, beside what was predicted for them, scatter
(`hardware/residuals.csv`). The constants: those that were measured on the chip were part of that
scatter; those that were not may lie anywhere in their range. Effects are small enough to add up in
logarithms, as errors do that do not know each other: the root of the sum of their squares.

interval   the model, and all uncalibrated constants
ratio      of two plans on one machine: what rows of one source scatter about their mean, and all
           constants, each moved for both plans together, so that what slows both alike cancels

Rows of one source share what it does not say, and the next row to be predicted is of a source that
was never seen. So sources count alike, however many rows they have, and as few of them are known
their scatter is taken as Student's distribution has it. They are those that measured this pass on
this chip, or where these are fewer than three, those of all chips and passes.
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
NINE = 1.645  # standard deviations: nine of ten errors are smaller
# The same where the deviation is known from 2, 3, ... sources: Student's t, 1, 2, ... freedoms
STUDENT = 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812
SOURCES = 3  # that have to have measured a pass on a chip before its own rows count alone
LARGE = 1 << 14  # rows beyond which constants are not moved one by one, a quarter of the time
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Residual:
    """A published row: predicted over published time, as a logarithm. With one rank, of a call."""

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
    """The rows that an interval rests on; `chip` is None where they are those of all chips."""

    asked: str
    pass_: Passes
    chip: str | None
    rows: tuple[Residual, ...]

    @property
    def sources(self) -> dict[str, list[float]]:
        """The errors that each source shows."""
        errors = dict[str, list[float]]()
        for row in self.rows:
            errors.setdefault(row.source, []).append(row.error)
        return errors

    @property
    def error(self) -> float:
        """The most that nine of ten predictions are off by, as a logarithm."""
        squares = [np.mean(np.square(own)) for own in self.sources.values()]
        few = STUDENT[: max(1, len(squares) - 1)][-1]
        return few * math.sqrt(np.mean(squares))

    @property
    def words(self) -> str:
        """Which rows they are, and why."""
        counted = f"{len(self.rows)} rows of {len(self.sources)} sources"
        timed = "both passes together" if self.pass_ == "both" else f"{self.pass_} passes"
        if self.chip:
            return f"{counted} that timed {timed} on {self.chip}"
        fewer = f"fewer than {SOURCES} sources timed {timed} on {chip_of(self.asked)}"
        return f"{counted} on all chips: {fewer}"

    def as_dict(self) -> dict[str, str | int | None]:
        """Plain values for JSON."""
        counts = {"rows": len(self.rows), "sources": len(self.sources)}
        return {"chip": self.chip, **counts, "words": self.words}


def basis(name: str, pass_: Passes, rows: Sequence[Residual] | None = None) -> Basis:
    """Returns the rows of a pass on a chip if enough sources measured it, otherwise all rows."""
    rows = residuals() if rows is None else rows
    own = [row for row in rows if (chip_of(row.hardware), row.pass_) == (chip_of(name), pass_)]
    enough = len({row.source for row in own}) >= SOURCES
    return Basis(name, pass_, chip_of(name) if enough else None, tuple(own if enough else rows))


def ratio_error(name: str, pass_: Passes, rows: Sequence[Residual] | None = None) -> float:
    """Returns the error of the ratio of two schedules, from rows of the same source."""
    whole = [row for row in (residuals() if rows is None else rows) if row.ranks > 1]
    sources = basis(name, pass_, whole).sources.values()
    squares = sum(float(np.var(own)) * len(own) for own in sources)
    return NINE * math.sqrt(2 * squares / max(1, sum(len(own) - 1 for own in sources)))


def unvalidated(machine: Hardware) -> str:
    """Returns why the order of schedules is not validated, as a sentence; "" if it is."""
    on = {row.hardware for row in residuals() if row.ranks > 1}
    if machine.node in {hardware(name).node for name in on}:
        return ""
    alike = f"of chips joined as those of {machine.name}"
    return f"The order is not validated: no times of schedules are published {alike}."


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
    """Returns log(new time / old time) for a change of each constant alone.

    `seconds` is the old time, if it is known.
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
    """Returns each constant's effect at the end of its range; for large plans, an upper bound.

    Time grows at most in proportion to what a constant says that something takes; what incast does
    is asked, as it changes little of most plans. Without `calibrated`, only of uncalibrated ones.
    """
    ends = dict[str, float]()  # the farther one, as a factor, of each constant's range
    for key in constants_of(plans, hardware, scenario):
        constant = hardware.constants[key]
        if calibrated or not constant.calibrated:
            low, high = hardware.range(key)
            ends[key] = high if high / constant.value * low >= constant.value else low
    if ends and sum(plan.rows for plan in plans) > LARGE:
        exact = {key: end for key, end in ends.items() if not end or key == "inter.incast"}
        factors = {
            key: abs(math.log(end / hardware[key])) for key, end in ends.items() if key not in exact
        } | effects(plans, hardware, scenario, exact, seconds)
        worst = max(factors, key=factors.__getitem__)
        return {worst: factors[worst]}
    return effects(plans, hardware, scenario, ends, seconds)


def interval(
    machine: Hardware, pass_: Passes, seconds: float, own: Mapping[str, float]
) -> Interval:
    """Returns the 90% interval of the measured seconds of such a plan.

    `own` is the plan's `spread`, of which only uncalibrated constants count. What lies at an end of
    its range, as incast does, can make the plan slower, or faster, and not both.
    """
    parts = {key: part for key, part in own.items() if not machine.constants[key].calibrated}
    ends = {key for key in parts if machine[key] in machine.range(key)}
    model = basis(machine.name, pass_).error
    faster, slower = (
        [model, *(part for key, part in parts.items() if key not in ends or part * sign > 0)]
        for sign in (-1, 1)
    )
    return _around(seconds, faster)[0], _around(seconds, slower)[1]


def ratio_interval(
    name: str, pass_: Passes, ratio: float, one: Mapping[str, float], other: Mapping[str, float]
) -> Interval:
    """Returns the interval of the ratio of two times, with constants varied for both together.

    `one` and `other` are the plans' `spread`.
    """
    keys = sorted(one.keys() | other.keys())  # sums depend on the order, in the last digit
    parts = [one.get(key, 0.0) - other.get(key, 0.0) for key in keys]
    return _around(ratio, [ratio_error(name, pass_), *parts])


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
    """Returns what 10% of each constant does to schedules, and the schedules' seconds without.

    The constant to measure first is at the head: the uncalibrated one of the most doubt. Calibrated
    ones follow; constants that change nothing are left out.
    """

    def timed(machine: Hardware) -> dict[str, float]:
        return {name: seconds_of(one, machine, scenario) for name, one in plans.items()}

    times = timed(hardware)
    first = min(times, key=times.__getitem__)
    best, usual, rows = plans[first], times[first], list[Sensitivity]()
    for key in constants_of(best, hardware, scenario):
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
