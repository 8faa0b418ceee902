"""Sweeps: the times of schedules over one value, and where one overtakes another.

The value is a constant of the hardware, such as intra.bandwidth, or a number of the scenario:
share, launch, or the speed of a rank, such as speed:3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import RingloomError
from planner.plans import Plans
from simulator.hardware import Hardware
from simulator.hardware.schema import OPTIONAL, UNITS
from simulator.prediction import makespans
from simulator.scenario import Scenario

POINTS = 9  # of a sweep, evenly in the logarithm
HALVINGS = 20  # of the interval in which two schedules cross


@dataclass(frozen=True)
class Crossing:
    """The value at which another schedule becomes the fastest."""

    value: float
    below: str
    above: str


@dataclass(frozen=True)
class Sweep:
    """Seconds of each schedule at each value, and the crossings of the fastest one, ascending."""

    key: str
    values: tuple[float, ...]
    seconds: Mapping[str, tuple[float, ...]]
    crossings: tuple[Crossing, ...]

    @property
    def sentences(self) -> list[str]:
        """zigzag is the fastest above intra.bandwidth = 3.4e+10"""
        if not self.crossings:
            fastest = min(self.seconds, key=lambda name: self.seconds[name][0])
            return [f"{fastest} is the fastest at every {self.key}."]
        first = self.crossings[0]
        lines = [f"{first.below} is the fastest below {self.key} = {first.value:.3g}."]
        return lines + [
            f"{crossing.above} is the fastest above {self.key} = {crossing.value:.3g}."
            for crossing in self.crossings
        ]


def sweep(
    plans: Mapping[str, Plans],
    hardware: Hardware,
    scenario: Scenario,
    key: str,
    low: float,
    high: float,
    points: int = POINTS,
) -> Sweep:
    """Time schedules over a value from `low` to `high`; raises RingloomError for no such value."""
    if not 0 < low < high or points < 2:
        raise RingloomError(f"a sweep goes from more than 0 up, not from {low:g} to {high:g}")

    def times(value: float) -> dict[str, float]:
        machine, what_if = changed(hardware, scenario, key, value)
        return makespans(plans, machine, what_if)

    values = tuple(np.geomspace(low, high, points).tolist())
    rows = [times(value) for value in values]
    best = [min(row, key=row.__getitem__) for row in rows]
    crossings = list[Crossing]()
    for n in range(points - 1):
        if best[n] != best[n + 1]:
            at, end = values[n], values[n + 1]
            for _ in range(HALVINGS):
                middle = math.sqrt(at * end)
                row = times(middle)
                at, end = (
                    (middle, end) if min(row, key=row.__getitem__) == best[n] else (at, middle)
                )
            crossings.append(Crossing(end, best[n], best[n + 1]))
    seconds = {name: tuple(row[name] for row in rows) for name in plans}
    return Sweep(key, values, seconds, tuple(crossings))


def changed(
    hardware: Hardware, scenario: Scenario, key: str, value: float
) -> tuple[Hardware, Scenario]:
    """Return the hardware and the scenario with another value."""
    name, _, rank = key.partition(":")
    if key in UNITS or key in OPTIONAL:
        return hardware.changed({key: value}), scenario
    if key == "share":
        return hardware, replace(scenario, share=value)
    if key == "launch":
        return hardware, replace(scenario, launch=value)
    if name == "speed" and rank.isdecimal():
        given = scenario.speeds or {}
        speeds = given if isinstance(given, Mapping) else dict(enumerate(given))
        return hardware, replace(scenario, speeds={**speeds, int(rank): value})
    raise RingloomError(f"no value {key!r} to sweep: a constant, share, launch or speed:RANK")
