"""lower_attends(rows, calls, steps)   lowers the rectangles of some steps to ops.

Each full, causal or strict rectangle is one kernel call on slices of both registers. If slices
change with the step or the rank and the mask cuts some of them in other ways, one op covers
all allowed pairs of both registers, and finds its tiles when it runs.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from ringloom.codegen.conditions import Condition, Flags, Steps, condition, holds
from ringloom.codegen.ir import Attend, AttendKind, Choose, Op, Place, Register, Slice
from ringloom.codegen.lowering.accumulators import Call
from ringloom.codegen.lowering.places import Readers, place_of
from ringloom.planner.analysis.tiles import LIVE, tiles
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Ints, Part
from ringloom.planner.masks.mask import SideName

KERNELS: dict[str, AttendKind] = {"full": "full", "causal": "causal", "strict": "strict"}
Pair = tuple[Part, Part]  # queries and keys
IsSorted = Callable[[SideName, str], bool]  # of a side and the name of a value


def lower_attends(
    rows: Expansion, calls: Sequence[Call], steps: Sequence[int], tiled: bool, is_sorted: IsSorted
) -> list[Op]:
    """Returns an op under its condition for each rectangle, or for all rectangles of two values.

    `tiled`: pieces differ in length or are not in sequence order, so kernel calls are cut by
    positions. `is_sorted`: returns True if the tokens of a value were sorted by position.
    """
    groups = defaultdict[tuple[object, ...], list[Call]](list)
    for call in calls:
        q, kv = call.q, call.kv
        groups[q.value, q.lag, q.heads, kv.value, kv.lag, kv.heads, call.sums].append(call)
    return [op for x in groups.values() for op in _lower_group(rows, x, steps, tiled, is_sorted)]


def _lower_group(
    rows: Expansion, group: Sequence[Call], steps: Sequence[int], tiled: bool, is_sorted: IsSorted
) -> list[Op]:
    kinds = [_kind(call, tiled) for call in group]
    varies = any(_varies(call.q) or _varies(call.kv) for call in group)
    if ("tiles" in kinds and varies) or any(call.gaps for call in group):
        return _lower_together(rows, group, steps, is_sorted)
    ops = list[Op]()
    for call, kind in zip(group, kinds, strict=True):
        pair, places = (call.q, call.kv), None
        if kind == "tiles":
            places = _places(rows, pair, _readers(rows, call, steps), is_sorted)
        op = _attend(pair, kind, call.sums, places)
        ops.append(Choose(((condition(call.when), op),)))
    return ops


def _kind(call: Call, tiled: bool) -> AttendKind:
    """Returns the kernel call or tiles; kernels take strict rectangles of whole shards only."""
    kind = KERNELS.get(call.attend.kind, "tiles")
    sliced = call.q.pieces or call.kv.pieces
    return "tiles" if tiled or (kind == "strict" and sliced) else kind


def _varies(part: Part) -> bool:
    """Returns True if the pieces of a part change with the step or the rank."""
    return any(e.step or any(e.axes) or e.table for e in part.pieces or ())


def _attend(
    pair: Pair, kind: AttendKind, sums: Sequence[Register], places: tuple[Place, Place] | None
) -> Attend:
    q, kv = pair
    sides = {"q": q, "kv": kv}
    into = [Slice(r, sides[r.side].pieces, sides[r.side].heads) for r in sums]
    return Attend(_slice("q", q), _slice("kv", kv), kind, tuple(into), places)


def _slice(side: SideName, part: Part) -> Slice:
    return Slice(Register(side, part.value), part.pieces, part.heads)


def _readers(rows: Expansion, call: Call, steps: Sequence[int]) -> list[Readers]:
    """Returns the steps of a call, each with the ranks that attend."""
    rectangles = rows.rectangles[call.attend]
    return [(t, rectangles[t].rank) for t in steps if call.when.on(t)]


def _places(
    rows: Expansion, pair: Pair, readers: Sequence[Readers], is_sorted: IsSorted
) -> tuple[Place, Place]:
    q, kv = (Part(part.value, part.lag) for part in pair)
    return (
        place_of(rows, "q", q, readers, is_sorted("q", q.value)),
        place_of(rows, "kv", kv, readers, is_sorted("kv", kv.value)),
    )


# ---- all allowed pairs of two registers


def _lower_together(
    rows: Expansion, group: Sequence[Call], steps: Sequence[int], is_sorted: IsSorted
) -> list[Op]:
    """Returns one op for all rectangles of two values; raises PlanError if pairs are missing."""
    q, kv = group[0].q, group[0].kv
    pair = Part(q.value, q.lag, None, q.heads), Part(kv.value, kv.lag, None, kv.heads)
    on = [t for t in steps if any(call.when.on(t) for call in group)]
    whens = [condition(call.when) for call in group]
    running = np.logical_or.reduce([holds(when, on, rows.coordinates) for when in whens])
    incomplete = np.array([_omits_pairs(rows, pair, group, t) for t in on])
    if incomplete[running].any():
        raise PlanError("attends omit some of the allowed pairs of two values")
    on_all_ranks = np.array([_is_present(rows, pair, t) for t in on]).all()
    conditions: list[Condition] = whens
    if on_all_ranks and not incomplete.any() and on == [*range(on[0], on[-1] + 1)]:
        conditions, running = [(Steps(on[0], None), Steps(None, on[-1]))], np.ones_like(running)
    readers = [(t, np.flatnonzero(row)) for t, row in zip(on, running, strict=True)]
    op = _attend(pair, "tiles", group[0].sums, _places(rows, pair, readers, is_sorted))
    return [Choose(tuple((tests, op) for tests in conditions))]


def _chunks(rows: Expansion, side: SideName, part: Part, t: int) -> Ints:
    """Returns the sets of positions of a value on all ranks, -1 for none: [ranks, pieces]."""
    table = rows.value(part, side, t).table.max(axis=2)  # any heads
    return np.where(table < 0, -1, rows.plan.partition.side(side).chunk[table])


def _is_present(rows: Expansion, pair: Pair, t: int) -> bool:
    """Returns True if all ranks have both values."""
    values = _chunks(rows, "q", pair[0], t), _chunks(rows, "kv", pair[1], t)
    return all(bool((chunks >= 0).any(axis=1).all()) for chunks in values)


def _omits_pairs(rows: Expansion, pair: Pair, group: Sequence[Call], t: int) -> Flags:
    """Marks the ranks that omit some of the allowed pairs of two values: [ranks]."""
    q, kv = _chunks(rows, "q", pair[0], t), _chunks(rows, "kv", pair[1], t)
    missing = (tiles(rows.plan).chunk_kinds[q[:, :, None], kv[:, None, :]] & LIVE) > 0
    for call in (call for call in group if call.when.on(t)):
        rectangles = rows.rectangles[call.attend][t]
        rank, sides = rectangles.rank, rows.plan.partition
        q_marks = _mark_chunks(q[rank], rectangles.q, sides.q.chunk)
        kv_marks = _mark_chunks(kv[rank], rectangles.kv, sides.kv.chunk)
        missing[rank] &= ~(q_marks[:, :, None] & kv_marks[:, None, :])
    return np.asarray(missing.any(axis=(1, 2)))


def _mark_chunks(chunks: Ints, blocks: Ints, chunk_of: Ints) -> Flags:
    """Marks the chunks [n, a] that contain some of the blocks [n, w], -1 for none."""
    wanted = np.where(blocks < 0, -2, chunk_of[blocks])
    return np.asarray((chunks[:, :, None] == wanted[:, None, :]).any(axis=2))
