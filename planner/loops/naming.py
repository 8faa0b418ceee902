"""Names and ages of the values that records read.

The value at the start of a chain of sends gets the chain's name, as in `A = own`, so that the first
step reads like later steps.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ringloom.planner.ir import TENSORS
from ringloom.planner.loops.form import Ends, Expr, Part, Start, When
from ringloom.planner.loops.places import Cut, Role, Value
from ringloom.planner.loops.walk import Key, Reading, Record


class Group(NamedTuple):
    """The key of records that may form one statement, since they use the same names equally.

    uses: the role, name and age of each value.
    """

    key: Key
    uses: tuple[tuple[Role, str, int], ...]


class Naming:
    """Names for the values of a reading."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.lags = defaultdict[tuple[str, ...], set[tuple[str, int]]](set)
        self.starts_of = defaultdict[tuple[Value, int], list[tuple[str, Cut]]](list)
        self.starts: list[Start] = []
        for record in reading.records:
            for cut in record.cuts:
                if cut.value.born is not None:
                    self.lags[_use(record, cut)].add(_name(cut, record.t))
        self._start_chains()

    def _start_chains(self) -> None:
        sends = defaultdict[str, list[Record]](list)
        for record in self.reading.records:
            name, tensors = record.key
            if len(record.cuts) == 1 and not TENSORS[tensors[0]].accumulates:
                sends[name].append(record)
        values = [v for p in self.reading.values.values() for v in p.values]
        births = {(v.name, v.born) for v in values}
        for name, records in sends.items():
            if any(_name(r.cuts[0], r.t) == (name, 0) for r in records):
                for record in records:
                    if (name, record.t) not in births:
                        births.add((name, record.t))
                        self._start(name, record)

    def _start(self, name: str, record: Record) -> None:
        (cut,), t = record.cuts, record.t
        self.starts_of[cut.value, t].append((name, cut))
        value, lag = _name(cut, t)
        part = Part(value, lag, *constant(cut))
        self.starts.append(Start(When(t, t), name, record.key[1], part))

    def groups(self) -> Iterator[tuple[Group, list[Record]]]:
        """Yields groups of records that use values of the same names and ages in the same roles.

        Cuts refer to named values, or to slices of named values.
        """
        table = defaultdict[Group, list[Record]](list)
        for record in self.reading.records:
            named = [self._named(record, cut) for cut in record.cuts]
            cuts = tuple(cut for *_, cut in named)
            names = tuple((name, lag) for name, lag, _ in named)
            uses = dict.fromkeys((cut.role, name, lag) for name, lag, cut in named)
            group = Group(record.key, tuple(uses))
            table[group].append(replace(record, cuts=cuts, names=names))
        yield from table.items()

    def _named(self, record: Record, cut: Cut) -> tuple[str, int, Cut]:
        """Returns the name, age and cut of a value; prefers names that other records use."""
        candidates = sorted(self.lags[_use(record, cut)])
        if cut.role == "send":
            candidates = [(record.key[0], 0), *candidates]  # the chain of the record first
        for name, lag in candidates:
            for chain, full_cut in self.starts_of.get((cut.value, record.t - lag), ()):
                if chain == name and (part := _inside(cut, full_cut)):
                    return name, lag, part
        return (*_name(cut, record.t), cut)


def _name(cut: Cut, t: int) -> tuple[str, int]:
    return cut.value.name, cut.value.age(t)


def _use(record: Record, cut: Cut) -> tuple[str, ...]:
    """Returns the use of a cut: its role and tensors; each use has its own ages."""
    return cut.role, *record.key[1]


def _inside(cut: Cut, full_cut: Cut) -> Cut | None:
    """Returns a cut relative to a slice of the value, or None if the cut exceeds the slice."""
    if all(full_cut.is_whole):
        return cut
    (a, b, c, d), (first, last, low, high) = cut.ends, full_cut.ends
    if a < first or b > last or c < low or d > high:
        return None
    ends = a - first, b - first, c - low, d - low
    covers = ends[:2] == (0, last - first), ends[2:] == (0, high - low)
    return cut._replace(ends=ends, is_whole=covers)


def constant(cut: Cut) -> tuple[Ends | None, Ends | None]:
    """Returns the pieces and heads of a cut as constants; None for all."""
    a, b, c, d = map(Expr, cut.ends)
    pieces, heads = cut.is_whole
    return None if pieces else (a, b), None if heads else (c, d)
