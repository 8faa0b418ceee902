"""refuse(rows)   refuses loops that a program cannot express, or that read the wrong values."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ringloom.planner.columns import has_duplicates
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import QUERY_SIDE
from ringloom.planner.loops.expand import Expansion, find_pairs
from ringloom.planner.loops.form import HELD, OWN, Attend, Exchange, Ints, Part, Send, Start
from ringloom.planner.partitions import Side


def refuse(rows: Expansion) -> None:
    """Raises PlanError with the reason."""
    _refuse_several_messages(rows)
    _refuse_stale_reads(rows)
    _refuse_separate_tensors(rows)
    _refuse_other_heads(rows)


def _refuse_several_messages(rows: Expansion) -> None:
    """Raises PlanError if a rank receives two messages of inputs under one name in a step."""
    receivers = defaultdict[tuple[str, str, int], list[Ints]](list)
    for s in (s for s in rows.loops.statements if isinstance(s, Send) and not s.sums):
        for t in s.when.steps:
            receivers[s.side, s.name, t].append(find_pairs(rows.loops, s, t)[1])
    if any(len(to) > 1 and has_duplicates(np.concatenate(to)) for to in receivers.values()):
        raise PlanError("several messages bring parts of one value to a rank in one step")


def _refuse_stale_reads(rows: Expansion) -> None:
    """Raises PlanError if a rank reads a value that a later arrival of the same name replaces."""
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
                yield from ((s.side, part, find_pairs(rows.loops, s, t)[0]) for part in s.parts)
            case Start():
                present = (rows.value(s.part, s.side, t).table >= 0).any(axis=(1, 2))
                yield s.side, s.part, np.flatnonzero(present)
            case Exchange():
                yield s.side, s.part, slice(None)


def _refuse_separate_tensors(rows: Expansion) -> None:
    """Raises PlanError if a message of queries lacks some of their tensors.

    Tensors that the forward pass has left on a rank may be absent.
    """
    required = set(QUERY_SIDE[rows.plan.pass_])
    optional = {"Q", "STATS"} if (HELD, None) in rows.values["q"].named else set[str]()
    tensors = {OWN: required, HELD: required}
    moves = [s for s in rows.loops.statements if isinstance(s, Exchange | Start | Send)]
    for s in sorted(moves, key=lambda s: s.when.first):
        if s.side != "q" or s.sums:
            continue
        source = s.parts[0] if isinstance(s, Send) else s.part
        own = {*s.tensors}
        sent = own if isinstance(s, Exchange) else tensors.get(source.value, own)
        if not required - optional <= sent or tensors.setdefault(s.name, sent) != own:
            raise PlanError(f"a message of queries contains only {' and '.join(s.tensors)}")


def _refuse_other_heads(rows: Expansion) -> None:
    """Raises PlanError if queries attend to keys of other heads than they need."""
    sides, group = rows.plan.partition, rows.plan.workload.group
    for s in (s for s in rows.loops.statements if isinstance(s, Attend)):
        for rectangle in rows.rectangles[s].values():
            first, last = _heads(sides.q, rectangle.q)
            low, high = _heads(sides.kv, rectangle.kv)
            within = (high - low == 1) & (low * group <= first) & (last <= high * group)
            if (~within & ((first != low * group) | (last != high * group))).any():
                raise PlanError("queries attend to keys of other heads than they need")


def _heads(side: Side, blocks: Ints) -> tuple[Ints, Ints]:
    """Returns the first head and the end of the heads of blocks [rows, w]: [rows]; -1 is none."""
    ends = np.array([(part[0], part[-1] + 1) for part in side.slices])
    first, end = ends[side.slice[blocks]].transpose(2, 0, 1)
    present = blocks >= 0
    return np.where(present, first, 1 << 30).min(axis=1), np.where(present, end, 0).max(axis=1)
