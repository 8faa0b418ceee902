"""attends(rows, calls, steps)   the rectangles of some steps as ops.

Rectangles that are full, causal or strict are one kernel call each, with its slices of both
registers. Where slices change with the step or the rank and the mask cuts some of them otherwise,
one op takes all that the mask leaves of both registers: its geometry is found when it runs.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from ringloom.codegen.conditions import Condition, Flags, Steps, condition, holds
from ringloom.codegen.ir import Attend, AttendKind, Choose, Op, Place, Register, Slice
from ringloom.codegen.lowering.accumulators import Call
from ringloom.codegen.lowering.places import Seen, place_of
from ringloom.planner.analysis.tiles import LIVE, tiles
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Ints, Part
from ringloom.planner.masks.mask import SideName

PLAIN: dict[str, AttendKind] = {"full": "full", "causal": "causal", "strict": "strict"}
Pair = tuple[Part, Part]  # of queries and of keys
InOrder = Callable[[SideName, str], bool]  # of a side and the name of a value


def attends(
    rows: Expansion, calls: Sequence[Call], steps: Sequence[int], tiled: bool, in_order: InOrder
) -> list[Op]:
    """An op for each rectangle, or for all of two values, under its condition.

    `tiled`: pieces are of several lengths or in another order than that of the sequence, so that
    kernel calls are cut by positions.
    `in_order`: whether the tokens of a value were brought into the order of the sequence.
    """
    groups = defaultdict[tuple[object, ...], list[Call]](list)
    for call in calls:
        q, kv = call.q, call.kv
        groups[q.value, q.lag, q.heads, kv.value, kv.lag, kv.heads, call.sums].append(call)
    return [op for group in groups.values() for op in _ops(rows, group, steps, tiled, in_order)]


def _ops(
    rows: Expansion, group: Sequence[Call], steps: Sequence[int], tiled: bool, in_order: InOrder
) -> list[Op]:
    kinds = [_kind(call, tiled) for call in group]
    varied = any(call.gaps or _varies(call.q) or _varies(call.kv) for call in group)
    if ("tiles" in kinds and varied) or any(call.gaps for call in group):
        return _whole(rows, group, steps, in_order)
    made = list[Op]()
    for call, kind in zip(group, kinds, strict=True):
        pair, places = (call.q, call.kv), None
        if kind == "tiles":
            places = _places(rows, pair, _seen(rows, call, steps), in_order)
        op = _attend(pair, kind, call.sums, places)
        made.append(Choose(((condition(call.when), op),)))
    return made


def _kind(call: Call, tiled: bool) -> AttendKind:
    """The kernel call, which takes strict rectangles of whole shards only, or tiles."""
    kind = PLAIN.get(call.attend.kind, "tiles")
    sliced = call.q.pieces or call.kv.pieces
    return "tiles" if tiled or (kind == "strict" and sliced) else kind


def _varies(part: Part) -> bool:
    """True if the pieces of a part change with the step or the rank."""
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


def _seen(rows: Expansion, call: Call, steps: Sequence[int]) -> list[Seen]:
    """The steps of a call, each with the ranks that attend."""
    rectangles = rows.rectangles[call.attend]
    return [(t, rectangles[t].rank) for t in steps if call.when.on(t)]


def _places(
    rows: Expansion, pair: Pair, seen: Sequence[Seen], in_order: InOrder
) -> tuple[Place, Place]:
    q, kv = (Part(part.value, part.lag) for part in pair)
    return (
        place_of(rows, "q", q, seen, in_order("q", q.value)),
        place_of(rows, "kv", kv, seen, in_order("kv", kv.value)),
    )


# ---- all that the mask leaves of two registers


def _whole(
    rows: Expansion, group: Sequence[Call], steps: Sequence[int], in_order: InOrder
) -> list[Op]:
    """One op for all rectangles of two values; PlanError if these are not all the mask leaves."""
    q, kv = group[0].q, group[0].kv
    pair = Part(q.value, q.lag, None, q.heads), Part(kv.value, kv.lag, None, kv.heads)
    on = [t for t in steps if any(call.when.on(t) for call in group)]
    whens = [condition(call.when) for call in group]
    running = np.logical_or.reduce([holds(when, on, rows.coordinates) for when in whens])
    missed = np.array([_missed(rows, pair, group, t) for t in on])
    if missed[running].any():
        raise PlanError("attends leave out a part of what the mask allows of two values")
    everyone = np.array([_present(rows, pair, t) for t in on]).all()
    asked: list[Condition] = whens
    if everyone and not missed.any() and on == [*range(on[0], on[-1] + 1)]:
        asked, running = [(Steps(on[0], None), Steps(None, on[-1]))], np.ones_like(running)
    ranks = [(t, np.flatnonzero(row)) for t, row in zip(on, running, strict=True)]
    op = _attend(pair, "tiles", group[0].sums, _places(rows, pair, ranks, in_order))
    return [Choose(tuple((tests, op) for tests in asked))]


def _chunks(rows: Expansion, side: SideName, part: Part, t: int) -> Ints:
    """The sets of positions of a value on all ranks, -1 for none: [ranks, pieces]."""
    table = rows.value(part, side, t).table.max(axis=2)  # any heads
    return np.where(table < 0, -1, rows.plan.partition.side(side).chunk[table])


def _present(rows: Expansion, pair: Pair, t: int) -> bool:
    """True if both values have come to all ranks."""
    values = _chunks(rows, "q", pair[0], t), _chunks(rows, "kv", pair[1], t)
    return all(bool((chunks >= 0).any(axis=1).all()) for chunks in values)


def _missed(rows: Expansion, pair: Pair, group: Sequence[Call], t: int) -> Flags:
    """Ranks that do not attend to all that the mask leaves of two values: [ranks]."""
    q, kv = _chunks(rows, "q", pair[0], t), _chunks(rows, "kv", pair[1], t)
    left = (tiles(rows.plan).chunk_kinds[q[:, :, None], kv[:, None, :]] & LIVE) > 0
    for call in (call for call in group if call.when.on(t)):
        rectangles = rows.rectangles[call.attend][t]
        rank, sides = rectangles.rank, rows.plan.partition
        rows_met = _among(q[rank], rectangles.q, sides.q.chunk)
        cols_met = _among(kv[rank], rectangles.kv, sides.kv.chunk)
        left[rank] &= ~(rows_met[:, :, None] & cols_met[:, None, :])
    return np.asarray(left.any(axis=(1, 2)))


def _among(chunks: Ints, blocks: Ints, chunk: Ints) -> Flags:
    """Which chunks [n, a] are those of some blocks [n, w], -1 for none."""
    met = np.where(blocks < 0, -2, chunk[blocks])
    return np.asarray((chunks[:, :, None] == met[:, None, :]).any(axis=2))
