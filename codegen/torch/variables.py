"""variables(plan, loops, walk)   names of what a pass holds: inputs that travel, and running sums.

A value that is no longer read when another begins gives its name away: keys that start at home and
go around a ring are `kv` throughout. Sums likewise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from codegen.lowered.sums import Cell, Walk
from planner.errors import PlanError
from planner.ir import TENSORS
from planner.loops.form import (
    OWN,
    AllToAll,
    Attend,
    Expr,
    Gather,
    Loops,
    Part,
    Return,
    Send,
    Start,
    When,
)

Value = tuple[str, str]  # side, name
INPUT = {"q": "queries", "kv": "kv"}
SUMS = {"OUT": "results", "DQ": "dq", "DKV": "dkv"}


@dataclass(frozen=True)
class Variables:
    """Python names by value and by cell; what a rank owns has none, it is named by tensors."""

    inputs: dict[Value, str] = field(default_factory=dict)
    cells: dict[Cell, str] = field(default_factory=dict)


def side_of(tensors: tuple[str, ...]) -> str:
    """The side of a message."""
    return TENSORS[tensors[0]].side


def sums(tensors: tuple[str, ...]) -> bool:
    """True of a message of sums."""
    return TENSORS[tensors[0]].accumulates


def variables(loops: Loops, walked: Walk, keep: bool) -> Variables:
    """The names of one pass; `keep`: what exchanges bring is read again by the backward pass."""
    begun, read = _lives(loops)
    for s in loops.statements:
        if keep and isinstance(s, Gather | AllToAll):
            read[side_of(s.tensors), s.name] = loops.steps
    for side, part, when in _reads(loops):
        _check_age(loops, side, part, when)
    inputs = _inputs(loops, begun, read)
    inputs |= {
        ("q", s.name): "dout"
        for s in loops.statements
        if isinstance(s, AllToAll) and s.tensors == ("DOUT",)
    }
    return Variables(inputs, _cells(walked))


def _lives(loops: Loops) -> tuple[dict[Value, int], dict[Value, int]]:
    """The first step in which each value can be read, and the last one in which it is."""
    begun: dict[Value, int] = {}
    for s in loops.statements:
        if isinstance(s, Start | Send | Gather | AllToAll) and not sums(s.tensors):
            value = side_of(s.tensors), s.name
            first = s.when.first + (0 if isinstance(s, Start) else 1)
            begun[value] = min(begun.get(value, first), first)
    read: dict[Value, int] = {}
    for side, part, when in _reads(loops):
        read[side, part.value] = max(read.get((side, part.value), 0), when.last)
    return begun, read


def _reads(loops: Loops) -> Iterator[tuple[str, Part, When]]:
    """(side, part, when) of everything that reads an input."""
    for s in loops.statements:
        match s:
            case Attend():
                yield from (("q", p, s.when) for p in s.q)
                yield from (("kv", p, s.when) for p in s.kv)
            case Send() if not sums(s.tensors):
                yield from ((side_of(s.tensors), p, s.when) for p in s.parts)
            case Start() if not sums(s.tensors):
                yield side_of(s.tensors), s.part, s.when
            case Gather() | AllToAll():
                yield side_of(s.tensors), s.part, s.when


def _check_age(loops: Loops, side: str, part: Part, when: When) -> None:
    """Raise PlanError unless the last copy that came under a name is the one that is read."""
    if part.lag == Expr():
        return
    for t in (t for t in range(when.first, when.last + 1) if when.on(t)):
        lag = int(part.lag.at(t, loops.coordinates()[:1])[0])
        for s in loops.statements:
            if isinstance(s, Send | Start) and s.name == part.value and side_of(s.tensors) == side:
                late = 0 if isinstance(s, Start) else 1
                if any(s.when.on(x - late) for x in range(t - lag + 1, t + 1)):
                    raise PlanError(f"{part.value} is read {lag} steps after it came")


def _inputs(loops: Loops, begun: dict[Value, int], read: dict[Value, int]) -> dict[Value, str]:
    names: dict[Value, str] = {}
    same = {
        (side_of(s.tensors), s.name): (side_of(s.tensors), s.part.value)
        for s in loops.statements
        if isinstance(s, Start) and s.part.pieces is None and s.part.heads is None
    }
    holders: dict[str, Value] = {}
    for value, first in sorted(begun.items(), key=lambda item: (item[1], item[0] in same)):
        side = value[0]
        busy = read.get((side, OWN), -1) >= first + 1
        for name in _candidates(INPUT[side], visiting=busy):
            holder = holders.get(name)
            late = first if holder == same.get(value) else first - 1
            if holder is None or read.get(holder, -1) <= late:
                names[value], holders[name] = name, value
                break
    return names


def _candidates(name: str, visiting: bool) -> Iterator[str]:
    if not visiting:
        yield name
    yield f"visiting_{name}"
    yield from (f"visiting_{name}_{n}" for n in range(2, 100))


def _cells(walked: Walk) -> dict[Cell, str]:
    names: dict[Cell, str] = {}
    holders: dict[str, Cell] = {}
    order = sorted(walked.first, key=lambda c: (walked.first[c], c[1] != OWN))
    for cell in order:
        base = SUMS[cell[0]]
        candidates = (base, f"own_{base}") if cell[1] == OWN else _candidates(base, visiting=False)
        for name in candidates:
            holder = holders.get(name)
            if holder is None or walked.last.get(holder, 1 << 30) <= walked.first[cell]:
                names[cell], holders[name] = name, cell
                break
    return names


def returned_from(loops: Loops, s: Return) -> Gather | AllToAll:
    """The exchange whose sums go back."""
    for x in loops.statements:
        if isinstance(x, Gather | AllToAll) and x.name == s.exchange:
            return x
    raise PlanError(f"sums go back over {s.exchange}, which is no exchange")
