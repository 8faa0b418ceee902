"""Layouts that even out the work that the mask leaves to ranks.

heap, snake   pieces of `grain` tokens, sorted by their work, as many to each rank
even-work     consecutive shards of equal work, so of unequal length

causal        A A A A A A B B B C C C     even-work, of 12 tokens on the ranks A, B and C
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.layouts.dispatch import Loads, balanced, in_turn, to_least_loaded
from ringloom.planner.layouts.pieces import Chunks, cut, gathered, whole_heads
from ringloom.planner.masks import Mask, parse
from ringloom.planner.masks.areas import areas
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Partition, shifted
from ringloom.planner.workload import Workload, check_request

Sides = tuple[Chunks, Chunks]
EACH, FINE = 16, 64  # pieces per rank where no grain is given
ROWS = 256  # pieces counted at a time: snake on 512 ranks takes twice as long, and 1 GB, without


def heap(work: Workload, ranks: int, grain: int) -> Sides:
    """Gives each piece to the rank with the least work that has room (as MagiAttention does)."""

    def dispatched(side: SideName) -> Chunks:
        pieces = divided(work, side, EACH * ranks, grain)
        owners = to_least_loaded(pairs(work, side, pieces), ranks, -(-len(pieces) // ranks))
        return gathered(pieces, owners.tolist(), ranks)

    return both(work, dispatched)


def snake(work: Workload, ranks: int, grain: int) -> Sides:
    """Pieces in turn, there and back, by their live blocks of grain x grain (PTRR of PyTorch)."""

    def dispatched(side: SideName) -> Chunks:
        pieces = divided(work, side, EACH * ranks, grain)
        others = divided(work, "kv" if side == "q" else "q", EACH * ranks, grain)
        owners = in_turn(live_blocks(work, side, pieces, others), ranks)
        return gathered(pieces, owners.tolist(), ranks)

    return both(work, dispatched)


def even_work(work: Workload, ranks: int, grain: int) -> Sides:
    """Rank r owns the r-th of consecutive shards, cut where the work reaches r / ranks of all."""

    def shards(side: SideName) -> Chunks:
        pieces = divided(work, side, FINE * ranks, grain)
        loads = pairs(work, side, pieces)[:, 0]
        done = np.cumsum([0.0, *(loads if loads.any() else map(len, pieces))])
        shares = done[-1] * (np.arange(1, ranks) / ranks)
        after = np.searchsorted(done, shares)
        before = np.maximum(after - 1, 0)
        ends = np.where(shares - done[before] <= done[after] - shares, before, after)
        owners = np.searchsorted(ends, np.arange(len(pieces)), side="right")
        return gathered(pieces, owners.tolist(), ranks)

    return both(work, shards)


def balanced_layout(
    work: Workload, masks: Sequence[Mask | str], ranks: int, grain: int = 0
) -> Partition:
    """Returns a partition that balances several masks at once, as of the layers of one model.

    Its goal is the largest load over masks and ranks, each mask's in shares of its own average:
    no mask balanced alone gives a smaller one, and swaps lower it further. Pieces of `grain`
    tokens, as many to each rank; grain=0: 16 pieces per rank. Sizes are those of `work`, whose own
    mask counts only where it is among `masks`. Give it to `plan(..., layout=partition)`. Raises
    PlanError for no mask, and for one that does not fit the lengths.
    """
    check_request(work, ranks, "balanced_layout(work, masks, ranks)")
    if not isinstance(masks, Sequence) or isinstance(masks, str) or not masks:
        raise PlanError(f"balanced_layout takes a list of one mask or more, not {brief(masks)}")
    layers = [replace(work, mask=parse(m) if isinstance(m, str) else m) for m in masks]

    def dispatched(side: SideName) -> Chunks:
        pieces = divided(work, side, EACH * ranks, grain)
        loads = np.hstack([shares(pairs(layer, side, pieces), ranks) for layer in layers])
        owners = balanced(loads, ranks, -(-len(pieces) // ranks))
        return gathered(pieces, owners.tolist(), ranks)

    q, kv = both(work, dispatched)
    return Partition(whole_heads(q, work.heads), whole_heads(kv, work.kv_heads))


def both(work: Workload, of_side: Callable[[SideName], Chunks]) -> Sides:
    """Returns the pieces of both sides; where both are the same tokens, keys go as queries."""
    q = of_side("q")
    return q, q if work.seq == work.kv_seq else of_side("kv")


def divided(work: Workload, side: SideName, count: int, grain: int) -> list[range]:
    """Consecutive pieces of a side: of `grain` tokens, or `count` where it is 0."""
    tokens = work.seq if side == "q" else work.kv_seq
    if grain:
        return [range(at, min(at + grain, tokens)) for at in range(0, tokens, grain)]
    return [piece for piece in cut(tokens, count) if piece]


def pairs(work: Workload, side: SideName, pieces: Sequence[range]) -> Loads:
    """Allowed pairs of each piece of a side, with all of the other: [pieces, 1]."""
    whole = range(work.kv_seq if side == "q" else work.seq)
    return _table(work, side, pieces, [whole])


def live_blocks(
    work: Workload, side: SideName, pieces: Sequence[range], others: Sequence[range]
) -> Loads:
    """Blocks of each piece with a piece of the other side that hold an allowed pair: [n, 1]."""
    rows = (pieces[at : at + ROWS] for at in range(0, len(pieces), ROWS))
    live = [(_table(work, side, part, others) > 0).sum(axis=1) for part in rows]
    return np.concatenate(live).astype(np.float64)[:, None]


def _table(
    work: Workload, side: SideName, pieces: Sequence[range], others: Sequence[range]
) -> Loads:
    """Allowed pairs of pieces of a side with pieces of the other: [pieces, others]."""
    q, kv = (pieces, others) if side == "q" else (others, pieces)
    queries = [shifted((piece,), work.offset) for piece in q]
    table = areas(work.mask.region(), queries, [(piece,) for piece in kv])
    return (table if side == "q" else table.T).astype(np.float64)


def shares(loads: Loads, ranks: int) -> Loads:
    """Loads in shares of the average of a rank; 0 where there is nothing to do."""
    return loads * ranks / max(1.0, float(loads.sum()))
