"""refuse_stale(rows)   refuses loops that read a value after its name has a newer one."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ringloom.planner.columns import has_duplicates
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion, pairs
from ringloom.planner.loops.form import Attend, Exchange, Ints, Part, Send, Start


def refuse_stale(rows: Expansion) -> None:
    """Raises PlanError if a rank reads a value that a later arrival of the same name replaces.

    Also raises it if several messages bring parts of one value to a rank in a step.
    """
    _refuse_several(rows)
    latest = defaultdict[tuple[str, str], Ints](lambda: np.full(rows.plan.ranks, -1))
    for t in range(rows.loops.steps):
        for side, values in rows.values.items():
            for value in (v for v in values.values if v.born == t):
                present = (value.table >= 0).any(axis=(1, 2))
                latest[side, value.name][present | _is_named(rows, side, value.name, t)] = t
        for side, part, ranks in _reads(rows, t):
            born = rows.value(part, side, t).born
            if born is not None and (latest[side, part.value][ranks] != born).any():
                raise PlanError(f"a rank reads an old value of {part.value} after a new one came")


def _refuse_several(rows: Expansion) -> None:
    """Raises PlanError if a rank receives two messages of inputs under one name in a step."""
    receivers = defaultdict[tuple[str, str, int], list[Ints]](list)
    for s in (s for s in rows.loops.statements if isinstance(s, Send) and not s.sums):
        for t in s.when.steps:
            receivers[s.side, s.name, t].append(pairs(rows.loops, s, t)[1])
    if any(len(to) > 1 and has_duplicates(np.concatenate(to)) for to in receivers.values()):
        raise PlanError("several messages bring parts of one value to a rank in one step")


def _is_named(rows: Expansion, side: str, name: str, t: int) -> bool:
    """Returns True if a statement gives all ranks a value of that name in a step."""
    starts = (s for s in rows.loops.statements if isinstance(s, Start) and s.when.on(t))
    return any((s.side, s.name) == (side, name) for s in starts)


def _reads(rows: Expansion, t: int) -> Iterator[tuple[str, Part, Ints | slice]]:
    """Yields the side and part that each statement of a step reads, and the ranks that read it."""
    for s in (s for s in rows.loops.statements if s.when.on(t)):
        match s:
            case Attend():
                rank = rows.rectangles[s][t].rank
                yield from (("q", part, rank) for part in s.q)
                yield from (("kv", part, rank) for part in s.kv)
            case Send() if not s.sums:
                yield from ((s.side, part, pairs(rows.loops, s, t)[0]) for part in s.parts)
            case Start():
                present = (rows.value(s.part, s.side, t).table >= 0).any(axis=(1, 2))
                yield s.side, s.part, np.flatnonzero(present)
            case Exchange():
                yield s.side, s.part, slice(None)
