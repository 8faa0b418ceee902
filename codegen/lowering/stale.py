"""refuse_stale(rows)   a name has one value at a time: refuses loops that read an older one."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ringloom.planner.columns import has_duplicates
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion, pairs
from ringloom.planner.loops.form import Attend, Exchange, Ints, Part, Send, Start


def refuse_stale(rows: Expansion) -> None:
    """Raises PlanError if a rank reads an arrival that a later one of the same name replaces.

    Or one at the same time, where several messages bring a rank parts of one value.
    """
    ranks = rows.plan.ranks
    _refuse_several(rows)
    latest = defaultdict[tuple[str, str], Ints](lambda: np.full(ranks, -1))
    for t in range(rows.loops.steps):
        for side, values in rows.values.items():
            for value in (v for v in values.values if v.born == t):
                here = (value.table >= 0).any(axis=(1, 2))
                latest[side, value.name][here | _named(rows, side, value.name, t)] = t
        for side, part, who in _reads(rows, t):
            born = rows.value(part, side, t).born
            if born is not None and (latest[side, part.value][who] != born).any():
                raise PlanError(f"a rank reads an old value of {part.value} after a new one came")


def _refuse_several(rows: Expansion) -> None:
    """Raises PlanError if a rank gets two messages of inputs of one name in a step."""
    coming = defaultdict[tuple[str, str, int], list[Ints]](list)
    for s in (s for s in rows.loops.statements if isinstance(s, Send) and not s.sums):
        for t in s.when.steps:
            coming[s.side, s.name, t].append(pairs(rows.loops, s, t)[1])
    if any(len(to) > 1 and has_duplicates(np.concatenate(to)) for to in coming.values()):
        raise PlanError("in a step, several messages bring a rank parts of one value")


def _named(rows: Expansion, side: str, name: str, t: int) -> bool:
    """True if a statement gives all ranks a value of that name in a step."""
    starts = (s for s in rows.loops.statements if isinstance(s, Start) and s.when.on(t))
    return any((s.side, s.name) == (side, name) for s in starts)


def _reads(rows: Expansion, t: int) -> Iterator[tuple[str, Part, Ints | slice]]:
    """Yields side and part of all that statements of a step read, and the ranks that do."""
    for s in (s for s in rows.loops.statements if s.when.on(t)):
        match s:
            case Attend():
                rank = rows.rectangles[s][t].rank
                yield from (("q", part, rank) for part in s.q)
                yield from (("kv", part, rank) for part in s.kv)
            case Send() if not s.sums:
                yield from ((s.side, part, pairs(rows.loops, s, t)[0]) for part in s.parts)
            case Start():
                yield s.side, s.part, _having(rows, s.side, s.part, t)
            case Exchange():
                yield s.side, s.part, slice(None)


def _having(rows: Expansion, side: str, part: Part, t: int) -> Ints:
    """The ranks to which a value has come."""
    return np.flatnonzero((rows.value(part, side, t).table >= 0).any(axis=(1, 2)))
