"""Names: what a person would call the values that records read, and how old they are.

What a chain of sends starts from takes the chain's name: `A = own` at its first step, so that
later steps and the first one read alike. Ages that change evenly with the step are one statement.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from planner.ir import TENSORS
from planner.loops.fitting import line, runs
from planner.loops.form import Ends, Expr, Ints, Part, Start, When
from planner.loops.places import Cut, Value
from planner.loops.walk import Key, Reading, Record

Role = tuple[str, ...]
Names = tuple[str, ...]
Lags = tuple[Expr, ...]


Group = tuple[Key, int, Names, Lags]  # records that may become one statement
Groups = dict[Group, list[Record]]  # their cuts are of named values, perhaps of slices of these


class Naming:
    """Names for the values of a reading; `loose` lets every sent value be the start of a chain."""

    def __init__(self, reading: Reading, loose: bool) -> None:
        self.reading, self.loose = reading, loose
        self.lags = defaultdict[Role, set[tuple[str, int]]](set)
        self.started = defaultdict[tuple[Value, int], list[tuple[str, Cut]]](list)
        self.starts: list[Start] = []
        for record in reading.records:
            for role, cut in _roles(record):
                if cut.value.born is not None:
                    self.lags[role].add((cut.value.name, cut.value.age(record.t)))
        self._start_chains()

    def _start_chains(self) -> None:
        sends = defaultdict[str, list[Record]](list)
        for record in self.reading.records:
            what, _, tensors = record.key
            if what == "send" and len(record.cuts) == 1 and not TENSORS[tensors[0]].accumulates:
                sends[record.key[1]].append(record)
        values = [v for p in self.reading.values.values() for v in p.values]
        born = {(v.name, v.born) for v in values}
        for name, records in sends.items():
            chained = any(_name(r.cuts[0].value, r.t) == (name, 0) for r in records)
            if chained or self.loose:
                for record in records:
                    if (name, record.t) not in born and len(record.cuts[0].ends) == 1:
                        self._start(name, record)

    def _start(self, name: str, record: Record) -> None:
        cut, t = record.cuts[0], record.t
        if (name, cut.value) in [(n, c.value) for n, c in self.started[cut.value, t]]:
            return
        self.started[cut.value, t].append((name, cut))
        value, lag = _name(cut.value, t)
        part = Part(value, Expr(lag), *constant(cut))
        self.starts.append(Start(When(t, t), name, record.key[2], part))

    def groups(self) -> Groups:
        """The records by what they do and the names that they read."""
        table = defaultdict[tuple[Key, int, Names, tuple[int, ...]], list[Record]](list)
        for record in self.reading.records:
            named = [self._named(record, role, cut) for role, cut in _roles(record)]
            names, lags = tuple(n for n, _, _ in named), tuple(lag for _, lag, _ in named)
            item = replace(record, cuts=tuple(cut for *_, cut in named))
            table[record.key, record.queries, names, lags].append(item)
        return _sliding(table)

    def _named(self, record: Record, role: Role, cut: Cut) -> tuple[str, int, Cut]:
        """The name and age of a value, by the chain that it starts if that is read so elsewhere."""
        near = sorted(self.lags[role])
        if record.key[0] == "send" and role[0] != "into":
            near = [(record.key[1], 0), *near]  # its own chain first
        for name, lag in near:
            for chain, whole in self.started.get((cut.value, record.t - lag), ()):
                if chain == name and (part := _inside(cut, whole)):
                    return name, lag, part
        return (*_name(cut.value, record.t), cut)


def _name(value: Value, t: int) -> tuple[str, int]:
    return value.name, value.age(t)


def _roles(record: Record) -> list[tuple[Role, Cut]]:
    """Cuts with what they are for: ages are told apart by that."""
    what, _, tensors = record.key
    if what == "attend":
        n = record.queries
        return [(("q",) if i < n else ("kv",), cut) for i, cut in enumerate(record.cuts)]
    many = len(record.cuts) - record.into
    return [(((what, "into")[i >= many], *tensors), cut) for i, cut in enumerate(record.cuts)]


def _inside(cut: Cut, whole: Cut) -> Cut | None:
    """A cut of a value as one of a slice of it, if it lies in there."""
    if whole.whole.all():
        return cut
    low, high = whole.ends[0, [0, 0, 2, 2]], whole.ends[0, [1, 1, 3, 3]]
    if (cut.ends < low).any() or (cut.ends > high).any():
        return None
    ends = cut.ends - low
    all_ = (ends[:, ::2] == 0) & (ends[:, 1::2] == (high - low)[1::2])
    return Cut(cut.value, ends, all_)


def constant(cut: Cut) -> tuple[Ends | None, Ends | None]:
    """The pieces and heads of a cut that is alike on all ranks."""
    low, high, first, last = cut.ends[0].tolist()
    pieces, heads = cut.whole[0].tolist()
    return (
        None if pieces else (Expr(low), Expr(high)),
        None if heads else (Expr(first), Expr(last)),
    )


def _sliding(table: dict[tuple[Key, int, Names, tuple[int, ...]], list[Record]]) -> Groups:
    """Ages that are affine in the step: values read in another order than they came."""
    groups: Groups = {(*k[:3], tuple(map(Expr, k[3]))): v for k, v in table.items()}
    single = defaultdict[tuple[Key, int, Names], dict[int, tuple[int, ...]]](dict)
    for (key, queries, names, lags), items in table.items():
        steps = {i.t for i in items}
        if len(steps) == 1:
            single[key, queries, names][steps.pop()] = lags
    for group, ages in single.items():
        for run in runs([*ages]):
            columns: Ints = np.array([ages[t] for t in run], np.intp).T
            fits = [line(x, 0, run[0]) for x in columns]
            if len(run) > 2 and all(many == len(run) for many, _ in fits) and len(columns):
                if (columns[:, 0] == columns[:, 1]).all():
                    continue
                items = [i for t in run for i in groups.pop((*group, tuple(map(Expr, ages[t]))))]
                groups[(*group, tuple(e for _, e in fits))] = items
    return groups
