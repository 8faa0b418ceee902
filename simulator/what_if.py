"""Times of schedules as functions of one value, and the values at which the fastest one changes.

The value is a constant of the hardware, such as intra.bandwidth, or a number in the scenario:
share, launch, the speed of a rank (speed:3) or the factor on the bandwidth of a link (link:6-7).
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.plans import Plans
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware.schema import OPTIONAL, UNITS
from ringloom.simulator.network.routes import ends_of
from ringloom.simulator.pictures import new_axes
from ringloom.simulator.prediction import seconds_of
from ringloom.simulator.scenario import LAUNCHES, Scenario

SCENARIO_KEYS = "share", "launch", "speed:RANK", "link:A-B"
POINTS = 9  # of a curve, at logarithmic distances
HALVINGS = 20  # bisections of the interval in which two schedules cross


@dataclass(frozen=True)
class Crossing:
    """A value at which another schedule becomes the fastest."""

    value: float
    below: str
    above: str


@dataclass(frozen=True)
class Curves:
    """Seconds of each schedule at each value, and the values at which the fastest one changes.

    Values and crossings are ascending; the values include the crossings.
    """

    key: str
    values: tuple[float, ...]
    seconds: Mapping[str, tuple[float, ...]]
    crossings: tuple[Crossing, ...]

    @property
    def sentences(self) -> list[str]:
        """Sentences such as "zigzag is the fastest from intra.bandwidth = 3.4e+10 to 1.2e+11."."""
        if not self.crossings:
            fastest = min(self.seconds, key=lambda name: self.seconds[name][0])
            low, high = self.values[0], self.values[-1]
            return [f"{fastest} is the fastest at every {self.key} from {low:.3g} to {high:.3g}."]
        ends = [f"{crossing.value:.3g}" for crossing in self.crossings]
        names = [self.crossings[0].below, *(crossing.above for crossing in self.crossings)]
        middle = (f"from {self.key} = {low} to {high}" for low, high in pairwise(ends))
        ranges = f"below {self.key} = {ends[0]}", *middle, f"above {self.key} = {ends[-1]}"
        return [f"{name} is the fastest {part}." for name, part in zip(names, ranges, strict=True)]

    def plot(self, axes: Any = None) -> Any:
        """Draws milliseconds over the value, with a dotted line where the fastest schedule changes.

        Returns the matplotlib `axes`, by default those of a new figure.
        """
        axes = new_axes(axes)
        for name, seconds in self.seconds.items():
            axes.loglog(self.values, 1e3 * np.array(seconds), label=name)
        for crossing in self.crossings:
            axes.axvline(crossing.value, color="0.6", linestyle=":")
            at = crossing.value, 0.02
            place = {"xycoords": ("data", "axes fraction"), "ha": "right", "rotation": 90}
            axes.annotate(f"{crossing.value:.3g}", at, **place)
        axes.set(xlabel=self.key, ylabel="time (ms)")
        axes.legend()
        return axes


def curves(
    plans: Mapping[str, Plans],
    hardware: Hardware,
    scenario: Scenario,
    key: str,
    low: float,
    high: float,
    points: int = POINTS,
) -> Curves:
    """Times schedules over a value from `low` to `high`.

    Raises RingloomError for an unknown key and for an empty range.
    """
    if not 0 < low < high or points < 2:
        raise RingloomError(f"a sweep needs 0 < low < high, not {low:g} to {high:g}")

    @cache  # without it, a sweep of four schedules over bandwidths takes six times as long
    def times(value: float) -> dict[str, float]:
        machine, what_if = changed(hardware, scenario, key, value)
        return {name: seconds_of(pair, machine, what_if) for name, pair in plans.items()}

    def fastest(value: float) -> str:
        return min(plans, key=times(value).__getitem__)

    values, crossings = np.geomspace(low, high, points).tolist(), list[Crossing]()
    for at, end in pairwise(values):
        while (below := fastest(at)) != fastest(end):
            high = end
            for _ in range(HALVINGS):
                middle = math.sqrt(at * high)
                at, high = (middle, high) if fastest(middle) == below else (at, middle)
            crossings.append(Crossing(high, below, fastest(high)))
            at = high
    values = sorted({*values, *(crossing.value for crossing in crossings)})
    seconds = {name: tuple(times(value)[name] for value in values) for name in plans}
    return Curves(key, tuple(values), seconds, tuple(crossings))


def changed(
    hardware: Hardware, scenario: Scenario, key: str, value: float
) -> tuple[Hardware, Scenario]:
    """Returns the hardware and the scenario with a new value of `key`."""
    name, _, place = key.partition(":")
    if key in UNITS or key in OPTIONAL:
        field = "launch" if key in LAUNCHES else "share" if key.endswith(".sm_share") else None
        if field and getattr(scenario, field) is not None:
            raise RingloomError(f"the scenario's {field} overrides {key}: sweep {field}")
        return hardware.changed({key: value}), scenario
    if key in ("share", "launch"):
        return hardware, replace(scenario, **{key: value})  # type: ignore[arg-type]
    if name == "speed" and place.isdecimal():
        return hardware, replace(scenario, speeds={**scenario.speed_factors, int(place): value})
    if name == "link":
        with suppress(ValueError):
            ends, links = ends_of(place), dict(scenario.links or {})
            links.pop(ends[::-1], None)
            return hardware, replace(scenario, links=links | {ends: value})
    keys = ", ".join(SCENARIO_KEYS)
    raise RingloomError(f"no value {brief(key)} to sweep: name a constant, {keys}")
