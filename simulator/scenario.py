"""Scenario: the conditions of a run, such as stragglers, slow links, a topology or a placement.

scenario_of(table)   a scenario from names and values, as in TOML and JSON files

    overlap = false
    speeds = { 3 = 0.5 }                  or a list with one number per rank
    links = { "6-7" = 0.1 }               0 or "cut" cuts a link
    topology = "nodes:nics=2"             or a JSON file of links, which is read immediately

value_of, text_of   a field's value from and to text, as on the command line and in a URL:
                    3=0.5, 6=0.8      6-7=0.1, 0-1=cut      1,0,2,3
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ringloom.planner.disk import is_file, parse_table, read
from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.given import parse_decimal, parse_integer, require_integer, require_number
from ringloom.planner.given import require_name as name_of_topology
from ringloom.planner.ir import ACCUMULATORS, Plan
from ringloom.planner.one_line import OneLine, shorten_middle
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware.schema import LARGEST, SMALLEST
from ringloom.simulator.network.placing import (
    MOST_PLACES,
    placed_topology,
    places_of,
    ranks_per_node,
)
from ringloom.simulator.network.routes import Links, Routes, ends_of, name_of
from ringloom.simulator.network.topology import Topology, graph_of, pod, topology

Speeds = Mapping[int, float] | Sequence[float]
LAUNCHES = tuple(
    f"attention.{way}{name}" for way in ("", "backward_") for name in ("launch", "host")
)
FARTHEST = 1 << 31  # the largest absolute number of a rank or a place
LONGEST_PATH = 4096  # characters
BY_NODES = ("nodes", "mesh", "pcie")  # topologies with the nodes of the hardware
CHUNK = 1 << 19  # bytes of a chunk in NCCL's point-to-point messages over NVLink


@dataclass(frozen=True, repr=False)
class Scenario(OneLine):
    """Conditions of a run that belong neither to the plan nor to the hardware.

    overlap   True if transfers and compute of a rank can run at the same time
    speeds    speed of each rank relative to the hardware: at 0.5, attending and merging take twice
              as long
    links     factors on the bandwidth of links in both directions, by their two places; 0 cuts a
              link
    topology  a word, a networkx graph or a topology; None: nodes as in the hardware's constants
    buffers   receive buffers per input that is sent, each for its widest message; "plan": the
              plan's own number; None: no limit
    late      True if a rank launches the transfers of a step after the step's first kernel call
    share     share of the chip that a transfer takes from compute at both ends
    chunk     bytes that one message sends over a shared link before the next message has its turn
    placement the place of each rank among all chips, such as 0, 8, 16, 24 of 32
    tensor_parallel  number of adjacent chips that share the heads of a rank, so rank r has place
              r * tensor_parallel; the workload has the heads of one chip
    launch    seconds of a kernel launch, instead of the hardware's

    Raises RingloomError for invalid values.
    """

    overlap: bool = True
    speeds: Speeds | None = None
    links: Links | None = None
    topology: Topology | nx.Graph | str | None = None
    buffers: int | Literal["plan"] | None = None
    late: bool = False
    share: float | None = None
    chunk: int = CHUNK
    placement: Sequence[int] | None = None
    launch: float | None = None
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        if self.buffers not in (None, "plan"):
            with _reading("buffers", self.buffers):
                require_integer("buffers", self.buffers, 1, FARTHEST)
        for name in ("overlap", "late"):
            if getattr(self, name) not in (True, False):
                raise _invalid(getattr(self, name), name, FORMS[name][1])
        with _reading("tensor_parallel", self.tensor_parallel):
            require_integer("tensor_parallel", self.tensor_parallel, 1, MOST_PLACES)
        for name in ("share", "chunk", "launch"):
            with _reading(name, value := getattr(self, name)):
                require_number(name, 0 if value is None else value)
        if isinstance(self.topology, str):
            name_of_topology("a topology", self.topology, LONGEST_PATH)
        if self.late and not self.overlap:
            raise RingloomError("late launches need overlap between transfers and compute")
        if self.share is not None and not 0 <= self.share < 1:
            raise RingloomError(f"a transfer takes a share of the chip below 1, not {self.share:g}")
        if self.launch is not None and self.launch < 0:
            raise RingloomError(f"a launch takes 0 seconds or more, not {self.launch:g}")
        with _reading("speeds", self.speeds, "numbers by rank, as {3: 0.5}, or one for each"):
            for rank, factor in self.speed_factors.items():
                require_integer("a rank", rank, -FARTHEST, FARTHEST)
                require_number("a speed", factor)
        links = self.links or {}
        with _reading("links", links, "factors by two places, as {(6, 7): 0.1}"):
            for ends, factor in links.items():
                require_number("a factor", factor)
                if not isinstance(ends, tuple) or len(ends) != 2:
                    raise TypeError(ends)
        if repeats := [(a, b) for a, b in links if a != b and (b, a) in links]:
            raise RingloomError(f"link {name_of(repeats[0])} is named twice, once from either end")
        with _reading("placement", self.placement):
            for place in self.placement or ():
                require_integer("a place", place, -FARTHEST, FARTHEST)
        if self.chunk is None or not self.chunk >= 1:
            raise RingloomError(f"a chunk has 1 byte or more, not {self.chunk}")

    @property
    def python(self) -> str:
        """The Python that builds the scenario, without default values."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        changed = [f"{k}={value!r}" for k, (value, default) in values.items() if value != default]
        return f"Scenario({', '.join(changed)})"

    def describe(self) -> list[str]:
        """Returns a phrase for each value that is not the default."""
        phrases = {
            "overlap": "transfers and compute one after the other",
            "late": "late transfers",
            "tensor_parallel": f"tensor parallelism of {self.tensor_parallel}",
        }
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return [
            phrases.get(name) or shorten_middle(f"{name} {text_of(value)}")
            for name, value, default in values
            if value != default
        ]

    @property
    def speed_factors(self) -> dict[int, float]:
        """The given speeds, by rank."""
        speeds = self.speeds or {}
        return dict(speeds if isinstance(speeds, Mapping) else enumerate(speeds))

    def speed(self, ranks: int) -> NDArray[np.float64]:
        """Returns the speed of each rank [ranks]; raises RingloomError for unknown ranks."""
        speed, factors = np.ones(ranks), self.speed_factors
        if factors and not isinstance(self.speeds, Mapping) and len(factors) != ranks:
            raise RingloomError(f"{len(factors)} speeds for {ranks} ranks")
        for rank, factor in factors.items():
            if not 0 <= rank < ranks:
                raise RingloomError(f"no rank {rank} to slow down: ranks are 0..{ranks - 1}")
            if not SMALLEST <= factor <= LARGEST:
                limits = f"{SMALLEST:g} to {LARGEST:g}"
                raise RingloomError(f"rank {rank}: a speed is {limits}, not {factor:g}")
            speed[rank] = factor
        return speed

    def routes(self, hardware: Hardware, ranks: int) -> Routes:
        """Returns the routes between ranks; raises RingloomError if the topology does not fit."""
        return Routes(self._placed(hardware, ranks), self.links)

    def _placed(self, hardware: Hardware, ranks: int) -> Topology:
        word, width = self.topology, self.tensor_parallel
        if self.placement is None and width == 1:
            return pod(hardware, ranks) if word is None else topology(word, hardware, ranks)
        return placed_topology(word, hardware, self._places(hardware, ranks), width)

    def _places(self, hardware: Hardware, ranks: int) -> list[int]:
        word = self.topology.partition(":")[0] if isinstance(self.topology, str) else ""
        by_nodes = self.topology is None or word in BY_NODES
        return places_of(self.placement, self.tensor_parallel, ranks, hardware, by_nodes=by_nodes)

    def nodes(self, hardware: Hardware, ranks: int) -> Hardware:
        """Returns the hardware with the ranks per node that follow from the placement."""
        if self.placement is None and self.tensor_parallel == 1:
            return hardware
        size = ranks_per_node(self._places(hardware, ranks), hardware)
        if size == ranks and self.tensor_parallel == 1:  # on one node
            return hardware
        return hardware.changed({"node.ranks": size}, "the scenario")

    def machine(self, hardware: Hardware) -> Hardware:
        """Returns the hardware with the launch time of kernels that the scenario sets."""
        if self.launch is None:
            return hardware
        keys = [LAUNCHES[0], *(key for key in hardware.constants if key in LAUNCHES)]
        return hardware.changed(dict.fromkeys(keys, self.launch), "the scenario")

    def settled(self, hardware: Hardware, ranks: int) -> "Scenario":
        """Returns the scenario with its topology built and the ranks of a plan placed in it.

        Nodes behind a switch need no topology: the hardware's constants are enough.
        """
        plain = self.tensor_parallel == 1 or hardware.node == "switch"
        if self.topology is None and self.placement is None and plain:
            return replace(self, tensor_parallel=1)
        built = self._placed(hardware, ranks)
        return replace(self, topology=built, placement=None, tensor_parallel=1)

    def room(self, plan: Plan) -> dict[str, int] | None:
        """Returns the limit on blocks of other ranks on a rank, by input; None without a limit."""
        if self.buffers is None:
            return None
        if self.buffers == "plan":
            return {t: n for t, n in plan.buffers if t not in ACCUMULATORS[plan.pass_]}
        widest = dict[str, int]()
        for _, move in plan.moves():
            for tensor in () if move.accumulates else move.tensors:
                widest[tensor] = max(widest.get(tensor, 1), move.blocks.shape[1])
        return {tensor: width * self.buffers for tensor, width in widest.items()}


# ---- scenarios from tables, values from and to text

FORMS: dict[str, tuple[tuple[type, ...], str]] = {  # types of a field's values, and their form
    "overlap": ((bool,), "true or false"),
    "speeds": ((dict, list), "a table like { 3 = 0.5, 6 = 0.8 }"),
    "links": ((dict,), "a table like { 6-7 = 0.1 }"),
    "topology": ((str,), "a name or a file"),
    "buffers": ((int,), "a whole number from 1 up, or plan"),
    "late": ((bool,), "true or false"),
    "share": ((int, float), "a number"),
    "chunk": ((int,), "a whole number"),
    "placement": ((list,), "a list like [0, 2, 1, 3]"),
    "launch": ((int, float), "a number"),
    "tensor_parallel": ((int,), "a whole number from 1 up"),
}
TEXTS = {  # the form of a value as text, if it differs
    "speeds": "like 3=0.5, 6=0.8",
    "links": "like 6-7=0.1, 0-1=cut",
    "placement": "like 0,2,1,3",
}


def scenario_of(table: Scenario | Mapping[str, Any]) -> Scenario:
    """Returns the scenario that a table describes; returns a scenario unchanged.

    Raises RingloomError for unknown names and for values of a wrong type.
    """
    if isinstance(table, Scenario):
        return table
    values = dict[str, Any]()
    if not isinstance(table, Mapping):
        raise RingloomError(f"a scenario is an object of names and values, not {brief(table)}")
    for name, value in table.items():
        if name not in FORMS:
            raise RingloomError(
                f"a scenario has no {brief(name)}: its values are {', '.join(FORMS)}"
            )
        try:
            values[name] = _read(name, value)
        except (TypeError, ValueError):
            raise _invalid(value, name, FORMS[name][1]) from None
    if is_file(path := values.get("topology", "")):
        values["topology"] = graph_of(Path(path))
    return Scenario(**values)


def _read(name: str, value: Any) -> Any:
    """Returns the value of a field; raises TypeError or ValueError if it is invalid."""
    if type(value) not in FORMS[name][0] and not (name == "buffers" and value == "plan"):
        raise TypeError
    if name == "links":
        factors = {ends_of(link): 0.0 if f == "cut" else _factor(f) for link, f in value.items()}
        if min(factors.values(), default=0) < 0:
            raise ValueError(value)
        return factors
    if name == "speeds" and isinstance(value, dict):
        return {parse_integer(str(rank)): _factor(factor) for rank, factor in value.items()}
    return tuple(map(_factor, value)) if name == "speeds" else value


def _factor(value: Any) -> float:
    return parse_decimal(value) if isinstance(value, str) else require_number("a factor", value)


def value_of(name: str, text: str) -> Any:
    """Returns the value of a field from text; raises RingloomError if it is invalid."""
    entries = text.replace(",", " ").split()
    try:
        match name:
            case "speeds" | "links":
                values = _read(name, {key: f for key, _, f in (e.partition("=") for e in entries)})
            case "placement":
                values = [*map(parse_integer, entries)]
            case "share" | "launch":
                return parse_decimal(text)
            case "buffers":
                return _read(name, text if text == "plan" else parse_integer(text))
            case _:
                return text
    except (TypeError, ValueError):
        raise _invalid(text, name, TEXTS.get(name, FORMS[name][1])) from None
    if len(values) < len(entries):
        raise RingloomError(f"{brief(text)} names a rank or a link twice")
    return values


def _invalid(value: Any, name: str, form: str) -> RingloomError:
    return RingloomError(f"{name} must be {form}, not {brief(value)}")


@contextmanager
def _reading(field: str, value: Any, form: str = "") -> Iterator[None]:
    """Raises RingloomError, with the valid form of a field, if its value cannot be read."""
    try:
        yield
    except (AttributeError, TypeError, ValueError):
        raise _invalid(value, field, form or FORMS[field][1]) from None


def text_of(value: Any) -> str:
    """Returns a field's value as text for `value_of`; "" for None, the name for a graph."""
    if isinstance(value, Mapping):
        links = {name_of(k): f or "cut" for k, f in value.items() if isinstance(k, tuple)}
        return ", ".join(f"{name}={factor}" for name, factor in (links or value).items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else getattr(value, "name", "") or str(value)


def scenario_file(path: str | Path) -> Scenario:
    """Reads a scenario from a file: JSON if its name ends in .json, otherwise TOML.

    Raises RingloomError, in one line, if the file is unreadable or not a scenario.
    """
    file, title = Path(path), f"scenario file {path}"
    return read(file, lambda content: scenario_of(parse_table(file, content)), title)
