"""Pieces: ranges of queries cut at the mask's edges, with their costs and visible keys.

queries  |....|........|..|......|     edges of the mask: documents, cells, ends of a prefix
pieces   |....|...|....|..|...|..|     of a number of tokens, or of a share of the work
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, Index, Plan, Step
from ringloom.planner.layouts import cut
from ringloom.planner.masks.areas import count_pairs
from ringloom.planner.partitions import Block, Partition, Side, shift_ranges
from ringloom.planner.passes.by_rows import Price
from ringloom.planner.passes.edges import edges
from ringloom.planner.search.prices import Floats, Prices
from ringloom.planner.workload import Workload

MOST_EDGES = 2000  # of a mask on a side; with more, tables of parts take longer than the search
MOST_PIECES = 4096  # of a layout, for the same reason
FINE_PARTS = 64  # most parts of a segment between edges, for cuts by work


@dataclass(frozen=True, eq=False)
class Load:
    """Costs of pieces of queries on a rank of speed 1: [pieces] each."""

    seconds: Floats
    calls: Floats


@dataclass(frozen=True, eq=False)
class Owned:
    """Pieces of queries and their ranks."""

    pieces: tuple[range, ...]
    ranks: Index  # [pieces]


def split_at(ranges: Sequence[range], ends: Sequence[int]) -> list[list[range]]:
    """Cuts each range at the given positions, which must ascend."""
    start, parts = np.array(ends), list[list[range]]()
    first = np.searchsorted(start, [r.start for r in ranges], side="right").tolist()
    last = np.searchsorted(start, [r.stop for r in ranges], side="left").tolist()
    for part, a, b in zip(ranges, first, last, strict=True):
        parts.append([range(x, y) for x, y in pairwise([part.start, *ends[a:b], part.stop])])
    return parts


def cut_pieces(work: Workload, ranks: int, prices: Prices, layout: str, grain: int) -> list[range]:
    """Cuts queries into pieces of about `grain` tokens, or percent of a rank's work ("work")."""
    q_edges, _ = edges(work)
    cuts = q_edges if len(q_edges) <= MOST_EDGES else []
    segments = [p for p in split_at([range(work.seq)], cuts)[0] if p]
    if layout == "pieces":
        counts = [max(1, round(len(p) / grain)) for p in segments]
        pieces = [
            _subrange(p, c) for p, n in zip(segments, counts, strict=True) for c in cut(len(p), n)
        ]
    else:
        pieces = _cut_by_work(work, ranks, prices, segments, grain / 100)
    if len(pieces) > MOST_PIECES:
        raise PlanError(
            f"{len(pieces)} pieces of queries exceed the limit of {MOST_PIECES}: use a larger grain"
        )
    return pieces


def _subrange(segment: range, part: range) -> range:
    return segment[part.start : part.stop]


def _cut_by_work(
    work: Workload, ranks: int, prices: Prices, segments: list[range], share: float
) -> list[range]:
    """Cuts segments so that no piece exceeds a share of a rank's work, or a rank's tokens."""
    counts = ((p, max(1, min(FINE_PARTS, len(p) // 128))) for p in segments)
    fine_parts = [[_subrange(p, c) for c in cut(len(p), n)] for p, n in counts]
    seconds = count_load(work, prices, [p for row in fine_parts for p in row]).seconds
    target, tokens = share * seconds.sum() / ranks, -(-work.seq // ranks)
    pieces, start = list[range](), 0
    for row, segment in zip(fine_parts, segments, strict=True):
        totals = np.cumsum(seconds[start : start + len(row)])
        start += len(row)
        count = np.ceil(totals[-1] / target - 0.05) if target else 1  # tolerates 5% more per piece
        n = max(1, int(count), -(-len(segment) // tokens))
        ends = np.searchsorted(totals, totals[-1] * np.arange(1, n) / n) + 1
        bounds = np.unique([0, *ends, len(row)]).tolist()
        pieces += [range(row[a].start, row[b - 1].stop) for a, b in pairwise(bounds)]
    return pieces


def price_pieces(work: Workload, prices: Prices, pieces: Sequence[range]) -> Load:
    """Prices pieces of queries with all visible keys, by their kernel calls if possible."""
    if prices.attend is None:
        return count_load(work, prices, pieces)
    cache = _cache(work, prices)
    if missing := [n for n, p in enumerate(pieces) if p not in cache]:
        seconds = _price_by_attends(work, prices.attend, pieces, missing)
        cache |= {pieces[n]: seconds for n, seconds in zip(missing, seconds.tolist(), strict=True)}
    return Load(np.array([cache[p] for p in pieces]), np.zeros(len(pieces)))


@lru_cache(maxsize=2)  # layouts of a search have many pieces in common
def _cache(work: Workload, prices: Prices) -> dict[range, float]:
    return {}


def _price_by_attends(
    work: Workload, price: Price, pieces: Sequence[range], selection: Sequence[int]
) -> Floats:
    """Returns the cost of each selected piece: [selection]."""
    q = Side(tuple(Block((p,), range(work.heads), 0) for p in pieces))
    kv = Side((Block((range(work.kv_seq),), range(work.kv_heads), 0),))
    rows = np.array(selection, np.int32)[:, None]
    attend = Attend(np.zeros(len(rows), np.intp), rows, np.zeros_like(rows))
    plan = Plan("pieces", work, 1, Partition(q, kv), "forward", (), (), (Step((attend,), ()),))
    return price(plan).attend(attend)


def count_load(work: Workload, prices: Prices, pieces: Sequence[range]) -> Load:
    """Prices pieces by counts of pairs, calls and merged rows."""
    region, offset = work.mask.region(), work.offset
    queries = [shift_ranges((p,), offset) for p in pieces]
    pairs = count_pairs(region, queries, [(range(work.kv_seq),)])[:, 0]
    ends = np.array([(p.start, p.stop) for p in pieces], np.int64).reshape(-1, 2) + offset
    calls, repeated_rows = np.zeros(len(pieces)), np.zeros(len(pieces))
    i0, i1, j0, _, _, hi = region.pieces.T
    height = max(1, (1 << 21) // max(1, len(i0)))
    for n in range(0, len(pieces), height):
        start, stop = (side[:, None] for side in ends[n : n + height].T)
        rows = np.clip(np.minimum(i1, stop) - np.maximum(i0, start), 0, None)
        rows = np.where(j0 < stop + hi, rows, 0)
        calls[n : n + height] = (rows > 0).sum(axis=1)
        repeated_rows[n : n + height] = np.maximum(rows.sum(axis=1) - (stop - start)[:, 0], 0)
    seconds = (pairs * prices.pair + repeated_rows * prices.merge) * work.heads
    return Load(seconds, calls)


def count_pairs_between(
    work: Workload, queries: Sequence[range], keys: Sequence[range]
) -> NDArray[np.int64]:
    """Counts the allowed pairs of each range of queries with each range of keys."""
    rows = [shift_ranges((p,), work.offset) for p in queries]
    return count_pairs(work.mask.region(), rows, [(p,) for p in keys])
