"""Finds the heads that exchanges bring, and whether the tokens arrive in sequence order."""

from dataclasses import replace

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import OWN, Attend, Ends, Exchange, Ints
from ringloom.planner.partitions import Side


def swapped_heads(rows: Expansion, exchange: Exchange) -> tuple[Ends | None, int]:
    """Returns the slices of heads that a swap sends, None for all, and the distance between them.

    Raises PlanError unless all ranks get equally many heads, in rank order.
    """
    if copy_count(rows, exchange) > 1:
        return None, 1
    slices, size = rows.plan.partition.side(exchange.side).slices, rows.loops.mesh[exchange.axis]
    assert exchange.heads
    low, high = exchange.heads
    by, width = low.axes[exchange.axis], high.constant - low.constant + 1
    unit = tuple(by * (n == exchange.axis) for n in range(len(low.axes)))
    clock = replace(low, constant=0, axes=())
    linear = all(replace(e, constant=0) == replace(clock, axes=unit) for e in exchange.heads)
    linear &= not (low.modulo or low.table)
    if len({*map(len, slices)}) > 1 or not linear or by < width or (by > width > 1):
        raise PlanError(f"{len(slices)} slices of heads are swapped among {size} ranks")
    last = high.constant + by * (size - 1)
    if by == width and last - low.constant + 1 == len(slices):
        return None, 1
    ends = replace(clock, constant=low.constant), replace(clock, constant=last)
    return ends, by if by > width else 1


def copy_count(rows: Expansion, exchange: Exchange) -> int:
    """Returns the number of neighbouring ranks that get the same slice of heads."""
    slices, size = rows.plan.partition.side(exchange.side).slices, rows.loops.mesh[exchange.axis]
    count, excess = divmod(size, len(slices))
    shared = tuple(n // max(1, count) for n in range(size))
    return count if not excess and all(e.table == shared for e in exchange.heads or ()) else 1


def needs_sorting(rows: Expansion, exchange: Exchange) -> bool:
    """Returns True if gathered tokens are out of sequence order and an attend depends on it.

    Interleaved tokens stay in rank order, since tiles are cut from stripes; raises PlanError if a
    causal kernel needs them in sequence order.
    """
    attends = [s for s in rows.loops.statements if isinstance(s, Attend)]
    if all(s.kind == "full" and not any(p.pieces for p in (*s.q, *s.kv)) for s in attends):
        return False
    side = rows.plan.partition.side(exchange.side)
    if is_scattered(side):
        return False  # tiles are cut by positions
    if is_interleaved(side):
        if any(s.kind in ("causal", "strict") for s in attends):
            raise PlanError("a causal kernel needs tokens in order, but gathered tokens interleave")
        return False
    chunks = _received_chunks(rows, exchange)
    return bool((np.diff(chunks, axis=1) < 0).any())


def is_interleaved(side: Side) -> bool:
    """Returns True if some piece of a side is not one contiguous range of the sequence."""
    return any(len(c) != 1 or c[0].step != 1 for c in side.chunks)


def is_scattered(side: Side) -> bool:
    """Returns True if the pieces of a side are not numbered in sequence order."""
    starts = [c[0].start for c in side.chunks if c]
    return starts != sorted(starts)


def _received_chunks(rows: Expansion, exchange: Exchange) -> Ints:
    """Returns the sets of positions that each rank receives, in rank order: [ranks, n]."""
    mesh, axis = rows.loops.mesh, exchange.axis
    cube = np.moveaxis(_sent_chunks(rows, exchange).reshape(*mesh, -1), axis, -2)
    lines = cube.reshape(*cube.shape[:-2], 1, -1).repeat(mesh[axis], axis=-2)
    return np.asarray(np.moveaxis(lines, -2, axis).reshape(rows.plan.ranks, -1))


def _sent_chunks(rows: Expansion, exchange: Exchange) -> Ints:
    """Returns the sets of positions that each rank sends: its own, or those of another exchange."""
    name = exchange.part.value
    if name != OWN:
        if (previous := rows.loops.exchanges.get(name)) is None:
            raise PlanError(f"an exchange sends {name}, which no exchange brought")
        return np.sort(_received_chunks(rows, previous), axis=1)
    side = rows.plan.partition.side(exchange.side)
    table = rows.values[exchange.side].named[OWN, None].table.max(axis=2)  # any heads
    if (table < 0).any():
        raise PlanError("ranks that exchange pieces own different numbers of pieces")
    return np.asarray(side.chunk[table])
