"""grid ::= (KEY = VALUE | KEY = [VALUE, ...])*      every combination of values is a point

Keys and values are those of the options of the command line. The last key changes fastest.

ranks = 8
seq = ["64k", "256k"]
mask = ["causal", "window:4096"]
hardware = ["h100", "here.toml"]
schedule = ["ring", "zigzag", "usp:ulysses=8"]
scenario.ordinary = {}
scenario.straggler = { speeds = { 3 = 0.5 } }
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from platform import node
from typing import Any

import numpy as np

from ringloom.comparison import PASSES
from ringloom.planner.disk import from_toml, read
from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.given import parse_tokens, require_integer, require_name
from ringloom.planner.masks import Mask, parse
from ringloom.planner.one_line import python
from ringloom.planner.planning import PASS_PIPELINES, Trim, find_schedule, plan
from ringloom.planner.plans import Passes
from ringloom.planner.schedules import SCHEDULES, Schedule
from ringloom.planner.version import VERSION
from ringloom.planner.workload import DTYPES, Workload
from ringloom.rows import shortage
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.network.topology import Topology
from ringloom.simulator.prediction import simulate
from ringloom.simulator.scenario import Scenario, scenario_of

MAX_POINTS = 2**18
MAX_LABEL = 2000  # characters: a mask may list documents
REQUIRED = ("ranks", "seq", "hardware", "schedule")
Row = dict[str, Any]


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule as typed, with its definition, which a remote worker may not have registered."""

    text: str
    schedule: Schedule = field(repr=False)


@dataclass(frozen=True)
class Grid:
    """All combinations of the values of its axes, numbered from 0 with the last axis fastest.

    `axes`: for each key, the parsed values by label.
    """

    axes: dict[str, dict[Any, Any]]

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def point(self, number: int) -> tuple[Row, dict[str, Any]]:
        """Returns the labels of a point's row, and the arguments of `predict`."""
        indices = np.unravel_index(number, [len(axis) for axis in self.axes.values()])
        pairs = zip(self.axes.items(), indices, strict=True)
        labels = {key: list(axis)[index] for (key, axis), index in pairs}
        values = {key.replace("pass", "pass_"): self.axes[key][labels[key]] for key in self.axes}
        return labels, values

    @property
    def digest(self) -> str:
        """Returns a hash of everything that determines the results, including file contents."""
        lines = [f"ringloom {VERSION}"]
        for key, axis in self.axes.items():
            lines += [f"{key} {label!r} {fingerprint(value)}" for label, value in axis.items()]
        return sha256("\n".join(lines).encode()).hexdigest()


def fingerprint(value: Any) -> str:
    """Returns a text that differs for different values; graphs are compared by their links."""
    if isinstance(value, Hardware):
        return repr(dict(value.constants))
    if isinstance(value, Mask):
        return str(value)
    if not isinstance(value, Scenario) or isinstance(value.topology, str | None):
        return python(value)
    graph = value.topology.graph if isinstance(value.topology, Topology) else value.topology
    return f"{replace(value, topology=None).python} {sorted(map(repr, graph.edges(data=True)))}"


def read_grid(path: str | Path) -> Grid:
    """Reads the TOML file of a grid; raises RingloomError, in one line, if it is invalid."""
    return read(path, lambda content: grid_of(from_toml(content.decode())), f"grid {path}")


def grid_of(table: Mapping[str, Any]) -> Grid:
    """Returns the grid of a table of keys and values; a scenario may be an `rl.Scenario`.

    Raises RingloomError for unknown and missing keys, for values that are invalid or listed twice,
    and for more than `MAX_POINTS` points.
    """
    if unknown := [key for key in table if key not in READERS]:
        raise RingloomError(f"unknown key {brief(unknown[0])}: the keys are {', '.join(READERS)}")
    if missing := [key for key in REQUIRED if key not in table]:
        raise RingloomError(f"missing {' and '.join(missing)}")
    grid = Grid({key: parse_axis(key, value) for key, value in table.items()})
    if len(grid) > MAX_POINTS:
        raise RingloomError(f"grid has {len(grid)} points; the limit is {MAX_POINTS}")
    return grid


def parse_axis(key: str, entry: Any) -> dict[Any, Any]:
    """Returns the parsed values of a key by label; `entry`: a value, a list, or named scenarios."""
    if isinstance(entry, Mapping) != (key == "scenario"):
        raise RingloomError(f"{key} cannot be {brief(entry)}")
    values = entry if isinstance(entry, list) else [entry]
    labelled = entry.items() if key == "scenario" else zip(values, values, strict=True)
    axis = dict[Any, Any]()
    for label, value in labelled:
        try:
            parsed = READERS[key](value)
        except (TypeError, AttributeError):
            raise RingloomError(f"{key} cannot be {brief(value)}") from None
        except RingloomError as error:
            raise RingloomError(f"{key}: {error}") from None
        label = parsed if isinstance(parsed, int) else require_name(key, label, MAX_LABEL)
        if label in axis:
            raise RingloomError(f"{key} lists {brief(label)} twice")
        axis[label] = parsed
    if not axis:
        raise RingloomError(f"{key} has no value")
    return axis


def size(value: Any) -> int:
    """Returns a size from an integer or a text such as 256k."""
    return parse_tokens(value) if isinstance(value, str) else require_integer("a size", value)


def choice(options: Sequence[Any]) -> Callable[[Any], Any]:
    """Returns a reader that accepts only these values."""

    def read(value: Any) -> Any:
        if value not in options:
            raise RingloomError(f"{brief(value)} is not one of {', '.join(map(str, options))}")
        return value

    return read


SIZES = ("ranks", *(field.name for field in fields(Workload) if field.type is int))
READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(SIZES, size),
    "sinks": choice((False, True)),
    "mask": parse,
    "dtype": choice([*DTYPES]),
    "pass": choice(PASSES),
    "trim": choice([*PASS_PIPELINES]),
    "hardware": hardware,
    "schedule": lambda text: NamedSchedule(text, find_schedule(text)[0]),
    "scenario": scenario_of,
}


# ---- results of a point


def outcome(labels: Row, values: dict[str, Any], version: str) -> dict[str, Any]:
    """Returns the row of a point, with the host and the seconds for the log.

    Raises RingloomError on a host with another version of ringloom.
    """
    if version != VERSION:
        raise RingloomError(f"{node()} has ringloom {VERSION}, this machine has {version}")
    start = time.perf_counter()
    try:
        row = labels | predict(**values)
    except Exception as error:
        error.add_note(f"at the point {labels}")
        raise
    return {"row": row, "host": node(), "seconds": time.perf_counter() - start}


def predict(
    schedule: NamedSchedule,
    ranks: int,
    hardware: Hardware,
    scenario: Scenario | None = None,
    pass_: Passes = "forward",
    trim: Trim = "messages",
    **sizes: Any,
) -> Row:
    """Returns the numbers of `simulate`, or only a `reason` if the point cannot run.

    `sizes`: arguments of the workload. A plan that needs more memory than the chip has cannot run.
    """
    SCHEDULES.setdefault(schedule.schedule.name, schedule.schedule)
    try:
        plans = plan(schedule.text, Workload(**sizes), ranks, pass_=pass_, trim=trim)
        prediction = simulate(plans, hardware, scenario)
    except RingloomError as error:
        return {"reason": " ".join(str(error).split())}
    lack = shortage(prediction.peak_bytes, hardware["memory.capacity"])
    return {"reason": lack} if lack else dict(prediction.as_row())
