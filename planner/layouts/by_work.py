"""Layouts that balance the work under a mask.

heap, snake   pieces of `grain` tokens, sorted by work, the same number per rank
even-work     consecutive shards of equal work, and so of different lengths

even-work of 12 tokens on the ranks A, B and C under a causal mask:   A A A A A A B B B C C C
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.layouts.dispatch import (
    Loads,
    assign_in_snake_order,
    assign_least_loaded,
    balance_loads,
)
from ringloom.planner.layouts.pieces import Chunks, cut, gather_ranges, whole_heads
from ringloom.planner.masks import Mask, parse
from ringloom.planner.masks.areas import count_pairs
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Partition, shift_ranges
from ringloom.planner.workload import Workload, check_request

Sides = tuple[Chunks, Chunks]
PIECES, FINE_PIECES = 16, 64  # default pieces per rank
BATCH = 256  # pieces counted at a time; without a limit, snake on 512 ranks takes 1 GB


def heap(work: Workload, ranks: int, grain: int) -> Sides:
    """Assigns each piece to the least loaded rank with space left, as in MagiAttention."""

    def assign_pieces(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, PIECES * ranks, grain)
        loads = count_all_pairs(work, side, pieces)
        owners = assign_least_loaded(loads, ranks, -(-len(pieces) // ranks))
        return gather_ranges(pieces, owners.tolist(), ranks)

    return build_sides(work, assign_pieces)


def snake(work: Workload, ranks: int, grain: int) -> Sides:
    """Assigns pieces in snake order of their numbers of live tiles (PTRR of PyTorch)."""

    def assign_pieces(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, PIECES * ranks, grain)
        other_pieces = cut_tokens(work, "kv" if side == "q" else "q", PIECES * ranks, grain)
        owners = assign_in_snake_order(count_live_pieces(work, side, pieces, other_pieces), ranks)
        return gather_ranges(pieces, owners.tolist(), ranks)

    return build_sides(work, assign_pieces)


def even_work(work: Workload, ranks: int, grain: int) -> Sides:
    """Assigns consecutive shards with equal shares of the work to the ranks."""

    def cut_shards(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, FINE_PIECES * ranks, grain)
        loads = count_all_pairs(work, side, pieces)[:, 0]
        totals = np.cumsum([0.0, *(loads if loads.any() else map(len, pieces))])
        targets = totals[-1] * (np.arange(1, ranks) / ranks)
        high = np.searchsorted(totals, targets)
        low = np.maximum(high - 1, 0)
        ends = np.where(targets - totals[low] <= totals[high] - targets, low, high)
        owners = np.searchsorted(ends, np.arange(len(pieces)), side="right")
        return gather_ranges(pieces, owners.tolist(), ranks)

    return build_sides(work, cut_shards)


def balanced_layout(
    work: Workload, masks: Sequence[Mask | str], ranks: int, grain: int = 0
) -> Partition:
    """Returns a partition that balances several masks together, such as those of a model's layers.

    Minimises the largest load over masks and ranks, relative to each mask's average: starts from
    the best layout for a single mask, or for all masks, and improves it by swaps. Every rank owns
    the same number of pieces of `grain` tokens; grain=0 makes 16 pieces per rank. Takes sizes, but
    not the mask, from `work`. Pass the result to `plan(..., layout=partition)`. Raises PlanError
    for an empty list, and for a mask that does not fit the lengths.
    """
    check_request(work, ranks, "balanced_layout(work, masks, ranks)")
    if not isinstance(masks, Sequence) or isinstance(masks, str) or not masks:
        raise PlanError(f"balanced_layout takes a list of at least one mask, not {brief(masks)}")
    layers = [replace(work, mask=parse(m) if isinstance(m, str) else m) for m in masks]

    def assign_pieces(side: SideName) -> Chunks:
        pieces = cut_tokens(work, side, PIECES * ranks, grain)
        loads = np.hstack(
            [relative_loads(count_all_pairs(layer, side, pieces), ranks) for layer in layers]
        )
        owners = balance_loads(loads, ranks, -(-len(pieces) // ranks))
        return gather_ranges(pieces, owners.tolist(), ranks)

    q, kv = build_sides(work, assign_pieces)
    return Partition(whole_heads(q, work.heads), whole_heads(kv, work.kv_heads))


def build_sides(work: Workload, of_side: Callable[[SideName], Chunks]) -> Sides:
    """Returns the pieces of queries and keys; keys of the same tokens have the same pieces."""
    q = of_side("q")
    return q, q if work.seq == work.kv_seq else of_side("kv")


def cut_tokens(work: Workload, side: SideName, count: int, grain: int) -> list[range]:
    """Cuts a side into consecutive pieces of `grain` tokens; grain=0 makes `count` pieces."""
    tokens = work.seq if side == "q" else work.kv_seq
    if grain:
        return [range(start, min(start + grain, tokens)) for start in range(0, tokens, grain)]
    return [piece for piece in cut(tokens, count) if piece]


def count_all_pairs(work: Workload, side: SideName, pieces: Sequence[range]) -> Loads:
    """Counts the allowed pairs of each piece with all tokens of the other side: [pieces, 1]."""
    other_side = range(work.kv_seq if side == "q" else work.seq)
    return _count_pairs(work, side, pieces, [other_side])


def count_live_pieces(
    work: Workload, side: SideName, pieces: Sequence[range], other_pieces: Sequence[range]
) -> Loads:
    """Counts, for each piece, the pieces of the other side with an allowed pair: [pieces, 1]."""
    rows = (pieces[start : start + BATCH] for start in range(0, len(pieces), BATCH))
    counts = [(_count_pairs(work, side, part, other_pieces) > 0).sum(axis=1) for part in rows]
    return np.concatenate(counts).astype(np.float64)[:, None]


def _count_pairs(
    work: Workload, side: SideName, pieces: Sequence[range], other_pieces: Sequence[range]
) -> Loads:
    """Counts the allowed pairs of each piece with each piece of the other side: [pieces, other]."""
    q, kv = (pieces, other_pieces) if side == "q" else (other_pieces, pieces)
    queries = [shift_ranges((piece,), work.offset) for piece in q]
    counts = count_pairs(work.mask.region(), queries, [(piece,) for piece in kv])
    return (counts if side == "q" else counts.T).astype(np.float64)


def relative_loads(loads: Loads, ranks: int) -> Loads:
    """Divides loads by the average load of a rank; 0 without work."""
    return loads * ranks / max(1.0, float(loads.sum()))
