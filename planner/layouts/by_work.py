"""Layouts that balance the work under a mask.

heap, snake   pieces of `grain` tokens, sorted by work, equally many per rank
even-work     consecutive shards of equal work, hence of unequal length

causal        A A A A A A B B B C C C     even-work, of 12 tokens on the ranks A, B and C
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.layouts.dispatch import Loads, balance_loads, snake_order, to_least_loaded
from ringloom.planner.layouts.pieces import Chunks, cut, gather_ranges, whole_heads
from ringloom.planner.masks import Mask, parse
from ringloom.planner.masks.areas import areas
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Partition, shift
from ringloom.planner.workload import Workload, check_request

Sides = tuple[Chunks, Chunks]
EACH, FINE = 16, 64  # default pieces per rank
ROWS = 256  # pieces counted at a time: all at once, snake on 512 ranks takes twice as long and 1 GB


def heap(work: Workload, ranks: int, grain: int) -> Sides:
    """Gives each piece to the least loaded rank with room (as MagiAttention does)."""

    def dispatched(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, EACH * ranks, grain)
        owners = to_least_loaded(pairs(work, side, pieces), ranks, -(-len(pieces) // ranks))
        return gather_ranges(pieces, owners.tolist(), ranks)

    return both_sides(work, dispatched)


def snake(work: Workload, ranks: int, grain: int) -> Sides:
    """Assigns pieces in snake order of their live grain x grain blocks (PTRR of PyTorch)."""

    def dispatched(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, EACH * ranks, grain)
        others = cut_tokens(work, "kv" if side == "q" else "q", EACH * ranks, grain)
        owners = snake_order(live_blocks(work, side, pieces, others), ranks)
        return gather_ranges(pieces, owners.tolist(), ranks)

    return both_sides(work, dispatched)


def even_work(work: Workload, ranks: int, grain: int) -> Sides:
    """Gives rank r the r-th consecutive shard; cuts where the work reaches r / ranks of all."""

    def shards(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, FINE * ranks, grain)
        loads = pairs(work, side, pieces)[:, 0]
        done = np.cumsum([0.0, *(loads if loads.any() else map(len, pieces))])
        targets = done[-1] * (np.arange(1, ranks) / ranks)
        after = np.searchsorted(done, targets)
        before = np.maximum(after - 1, 0)
        ends = np.where(targets - done[before] <= done[after] - targets, before, after)
        owners = np.searchsorted(ends, np.arange(len(pieces)), side="right")
        return gather_ranges(pieces, owners.tolist(), ranks)

    return both_sides(work, shards)


def balanced_layout(
    work: Workload, masks: Sequence[Mask | str], ranks: int, grain: int = 0
) -> Partition:
    """Returns a partition that balances several masks at once, such as those of a model's layers.

    It minimises the largest load over masks and ranks, relative to each mask's average: it starts
    from the best layout for a single mask, or for all, and improves it by swaps. Every rank owns
    equally many pieces of `grain` tokens; grain=0: 16 pieces per rank. Sizes are those of `work`,
    whose mask counts only if it is among `masks`. Pass the result to `plan(..., layout=partition)`.
    Raises PlanError for an empty list, and for a mask that does not fit the lengths.
    """
    check_request(work, ranks, "balanced_layout(work, masks, ranks)")
    if not isinstance(masks, Sequence) or isinstance(masks, str) or not masks:
        raise PlanError(f"balanced_layout takes a list of at least one mask, not {brief(masks)}")
    layers = [replace(work, mask=parse(m) if isinstance(m, str) else m) for m in masks]

    def dispatched(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, EACH * ranks, grain)
        loads = np.hstack([shares(pairs(layer, side, pieces), ranks) for layer in layers])
        owners = balance_loads(loads, ranks, -(-len(pieces) // ranks))
        return gather_ranges(pieces, owners.tolist(), ranks)

    q, kv = both_sides(work, dispatched)
    return Partition(whole_heads(q, work.heads), whole_heads(kv, work.kv_heads))


def both_sides(work: Workload, of_side: Callable[[SideName], Chunks]) -> Sides:
    """Returns the pieces of both sides; keys lie with queries if both are the same tokens."""
    q = of_side("q")
    return q, q if work.seq == work.kv_seq else of_side("kv")


def cut_tokens(work: Workload, side: SideName, count: int, grain: int) -> list[range]:
    """Returns consecutive pieces of a side: of `grain` tokens, or `count` pieces if it is 0."""
    tokens = work.seq if side == "q" else work.kv_seq
    if grain:
        return [range(at, min(at + grain, tokens)) for at in range(0, tokens, grain)]
    return [piece for piece in cut(tokens, count) if piece]


def pairs(work: Workload, side: SideName, pieces: Sequence[range]) -> Loads:
    """Counts the allowed pairs of each piece of a side with the whole other side: [pieces, 1]."""
    whole = range(work.kv_seq if side == "q" else work.seq)
    return _table(work, side, pieces, [whole])


def live_blocks(
    work: Workload, side: SideName, pieces: Sequence[range], others: Sequence[range]
) -> Loads:
    """Counts, for each piece, the pieces of the other side with an allowed pair: [n, 1]."""
    rows = (pieces[at : at + ROWS] for at in range(0, len(pieces), ROWS))
    live = [(_table(work, side, part, others) > 0).sum(axis=1) for part in rows]
    return np.concatenate(live).astype(np.float64)[:, None]


def _table(
    work: Workload, side: SideName, pieces: Sequence[range], others: Sequence[range]
) -> Loads:
    """Counts the allowed pairs of pieces of a side with pieces of the other: [pieces, others]."""
    q, kv = (pieces, others) if side == "q" else (others, pieces)
    queries = [shift((piece,), work.offset) for piece in q]
    table = areas(work.mask.region(), queries, [(piece,) for piece in kv])
    return (table if side == "q" else table.T).astype(np.float64)


def shares(loads: Loads, ranks: int) -> Loads:
    """Returns loads relative to the average load of a rank; 0 if there is no work."""
    return loads * ranks / max(1.0, float(loads.sum()))
