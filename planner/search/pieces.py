"""Pieces: ranges of queries cut at the mask's edges, with their costs and the keys they see.

queries  |....|........|..|......|     edges of the mask: documents, cells, ends of a prefix
pieces   |....|...|....|..|...|..|     of a given number of tokens, or share of the work
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
from ringloom.planner.search.prices import Floats, Prices
from ringloom.planner.workload import Workload

MOST_EDGES = 2000  # of a mask on a side; with more, tables of parts take longer than the search
MOST = 4096  # most pieces of a layout, for the same reason
FINE = 64  # most parts of a stretch between edges that are candidates for cuts by work


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


def edges(work: Workload) -> tuple[list[int], list[int]]:
    """Returns the positions of queries, and of keys, at which a box of the mask begins or ends."""
    pieces = work.mask.region().pieces
    q = np.clip(pieces[:, :2].ravel() - work.offset, 0, work.seq)
    kv = np.clip(pieces[:, 2:4].ravel(), 0, work.kv_seq)
    return np.unique(q).tolist(), np.unique(kv).tolist()


def split_at(ranges: Sequence[range], ends: Sequence[int]) -> list[list[range]]:
    """Cuts each range at these positions, which must ascend."""
    at, out = np.array(ends), list[list[range]]()
    first = np.searchsorted(at, [r.start for r in ranges], side="right").tolist()
    last = np.searchsorted(at, [r.stop for r in ranges], side="left").tolist()
    for part, a, b in zip(ranges, first, last, strict=True):
        out.append([range(x, y) for x, y in pairwise([part.start, *ends[a:b], part.stop])])
    return out


def cut_pieces(work: Workload, ranks: int, prices: Prices, layout: str, grain: int) -> list[range]:
    """Returns pieces of about `grain` tokens, or (layout="work") percent of a rank's work."""
    q_edges, _ = edges(work)
    few = q_edges if len(q_edges) <= MOST_EDGES else []
    stretches = [p for p in split_at([range(work.seq)], few)[0] if p]
    if layout == "pieces":
        counts = [max(1, round(len(p) / grain)) for p in stretches]
        pieces = [
            _part(p, c) for p, n in zip(stretches, counts, strict=True) for c in cut(len(p), n)
        ]
    else:
        pieces = _by_work(work, ranks, prices, stretches, grain / 100)
    if len(pieces) > MOST:
        raise PlanError(
            f"{len(pieces)} pieces of queries exceed the limit of {MOST}: use a larger grain"
        )
    return pieces


def _part(whole: range, part: range) -> range:
    return whole[part.start : part.stop]


def _by_work(
    work: Workload, ranks: int, prices: Prices, stretches: list[range], share: float
) -> list[range]:
    """Cuts stretches so that no piece exceeds a share of a rank's work, or a rank's tokens."""
    parts = [max(1, min(FINE, len(p) // 128)) for p in stretches]
    fine = [[_part(p, c) for c in cut(len(p), n)] for p, n in zip(stretches, parts, strict=True)]
    seconds = count_load(work, prices, [p for row in fine for p in row]).seconds
    fair, tokens = share * seconds.sum() / ranks, -(-work.seq // ranks)
    pieces, at = list[range](), 0
    for row, stretch in zip(fine, stretches, strict=True):
        done = np.cumsum(seconds[at : at + len(row)])
        at += len(row)
        by_work = np.ceil(done[-1] / fair - 0.05) if fair else 1  # tolerates 5% more per piece
        n = max(1, int(by_work), -(-len(stretch) // tokens))
        ends = np.searchsorted(done, done[-1] * np.arange(1, n) / n) + 1
        marks = np.unique([0, *ends, len(row)]).tolist()
        pieces += [range(row[a].start, row[b - 1].stop) for a, b in pairwise(marks)]
    return pieces


def load(work: Workload, prices: Prices, pieces: Sequence[range]) -> Load:
    """Prices pieces of queries with all keys they see, by their kernel calls if possible."""
    if prices.attend is None:
        return count_load(work, prices, pieces)
    known = _known(work, prices)
    if fresh := [n for n, p in enumerate(pieces) if p not in known]:
        priced = _priced(work, prices.attend, pieces, fresh)
        known |= {pieces[n]: seconds for n, seconds in zip(fresh, priced.tolist(), strict=True)}
    return Load(np.array([known[p] for p in pieces]), np.zeros(len(pieces)))


@lru_cache(maxsize=2)  # layouts of one search have many pieces in common
def _known(work: Workload, prices: Prices) -> dict[range, float]:
    return {}


def _priced(work: Workload, price: Price, pieces: Sequence[range], which: Sequence[int]) -> Floats:
    """Returns the cost of each of the selected pieces: [which]."""
    q = Side(tuple(Block((p,), range(work.heads), 0) for p in pieces))
    kv = Side((Block((range(work.kv_seq),), range(work.kv_heads), 0),))
    rows = np.array(which, np.int32)[:, None]
    each = Attend(np.zeros(len(rows), np.intp), rows, np.zeros_like(rows))
    plan = Plan("pieces", work, 1, Partition(q, kv), "forward", (), (), (Step((each,), ()),))
    return price(plan).attend(each)


def count_load(work: Workload, prices: Prices, pieces: Sequence[range]) -> Load:
    """Prices pieces by counts of pairs, calls and merged rows."""
    region, offset = work.mask.region(), work.offset
    queries = [shift_ranges((p,), offset) for p in pieces]
    pairs = count_pairs(region, queries, [(range(work.kv_seq),)])[:, 0]
    ends = np.array([(p.start, p.stop) for p in pieces], np.int64).reshape(-1, 2) + offset
    calls, again = np.zeros(len(pieces)), np.zeros(len(pieces))
    i0, i1, j0, _, _, hi = region.pieces.T
    height = max(1, (1 << 21) // max(1, len(i0)))
    for at in range(0, len(pieces), height):
        start, stop = (side[:, None] for side in ends[at : at + height].T)
        rows = np.clip(np.minimum(i1, stop) - np.maximum(i0, start), 0, None)
        rows = np.where(j0 < stop + hi, rows, 0)
        calls[at : at + height] = (rows > 0).sum(axis=1)
        again[at : at + height] = np.maximum(rows.sum(axis=1) - (stop - start)[:, 0], 0)
    seconds = (pairs * prices.pair + again * prices.merge) * work.heads
    return Load(seconds, calls)


def seen(work: Workload, queries: Sequence[range], keys: Sequence[range]) -> NDArray[np.int64]:
    """Counts the pairs of ranges of queries and of keys: [queries, keys]."""
    rows = [shift_ranges((p,), work.offset) for p in queries]
    return count_pairs(work.mask.region(), rows, [(p,) for p in keys])
