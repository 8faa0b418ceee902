"""Parts: queries and keys cut at the edges of the mask, and the pairs of parts with allowed pairs.

edges    queries that fully see the same keys share one full call; partial pairs are rectangles of
         their own
whole    all work of a rank is a single rectangle
packed   queries that see the same keys, fully or in part, form a group; a rectangle has the most
         groups that can be cut run by run, so that the host prepares calls while others run
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Index
from ringloom.planner.kernel_calls.calls import MOST_PAIRS
from ringloom.planner.layouts import Chunks
from ringloom.planner.masks.regions import FAR
from ringloom.planner.passes.edges import edges
from ringloom.planner.search.pieces import MOST_EDGES, count_pairs_between, split_at
from ringloom.planner.search.recipe import Rows
from ringloom.planner.workload import Workload

Bits = NDArray[np.bool_]
Rectangle = tuple[int, list[int], list[int]]  # rank, parts of queries, parts of keys


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of the two sides: ranges, owners and, for queries, the rank that attends them."""

    work: Workload
    ranks: int
    q: tuple[range, ...]
    q_home: Index
    runs_on: Index  # [q]
    kv: tuple[range, ...]
    kv_home: Index
    live: Bits  # [q, kv]
    full: Bits
    rows: Rows
    pairs: NDArray[np.int64]  # pairs of each part of queries with all keys

    @cached_property  # used by cast, estimate and offload
    def users(self) -> Bits:
        """The ranks whose queries see each part of the keys: [kv, ranks]."""
        users = np.zeros((self.ranks, len(self.kv)), np.bool_)
        np.logical_or.at(users, self.runs_on, self.live)
        return users.T

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """The tokens of each part of the keys."""
        return np.array([len(p) for p in self.kv], np.int64)

    def rectangles(self) -> list[Rectangle]:
        """Returns the rectangles of all ranks; every part has an allowed pair in its rectangle."""
        live_rows = np.flatnonzero(self.live.any(axis=1)).tolist()
        groups = defaultdict[tuple[int, bytes], list[int]](list)
        for row in live_rows:
            groups[int(self.runs_on[row]), self._group_key(row)].append(row)
        rectangles = list[Rectangle]()
        for (rank, _), rows in groups.items():
            if self.rows != "edges":
                keys = np.flatnonzero(self.live[rows].any(axis=0)).tolist()
                rectangles.append((rank, rows, keys))
                continue
            live, full = self.live[rows[0]], self.full[rows[0]]
            if full.any():
                rectangles.append((rank, rows, np.flatnonzero(full).tolist()))
            if (part := live & ~full).any():
                rectangles += [(rank, [row], np.flatnonzero(part).tolist()) for row in rows]
        return self._pack(rectangles) if self.rows == "packed" else rectangles

    def _group_key(self, row: int) -> bytes:
        """Returns a key that is equal for the rows of a group."""
        match self.rows:
            case "whole":
                return b""
            case "packed":
                return bytes(np.packbits(self.live[row]))
            case "edges":
                return bytes(np.packbits([self.live[row], self.full[row]]))

    def _pack(self, groups: list[Rectangle]) -> list[Rectangle]:
        """Joins groups of a rank, in the order of queries, if they can be cut run by run."""
        rectangles = list[Rectangle]()
        for rank, q, kv in sorted(groups, key=lambda g: (g[0], self.q[g[1][0]].start)):
            if rectangles and rectangles[-1][0] == rank:
                rows, columns = [*rectangles[-1][1], *q], sorted({*rectangles[-1][2], *kv})
                if _count_runs(self.q, rows) * _count_runs(self.kv, columns) <= MOST_PAIRS:
                    rectangles[-1] = rank, rows, columns
                    continue
            rectangles.append((rank, q, kv))
        return rectangles


def _count_runs(ranges: Sequence[range], numbers: Sequence[int]) -> int:
    """Counts the maximal runs of consecutive positions in some ranges."""
    parts = sorted((ranges[n] for n in numbers), key=lambda p: p.start)
    return 1 + sum(a.stop < b.start for a, b in pairwise(parts))


PlacedQueries = tuple[range, int, int]  # queries, their owner, the rank that attends them


def cut_parts(
    work: Workload, ranks: int, queries: Sequence[PlacedQueries], keys: Chunks, grouping: Rows
) -> Parts:
    """Cuts keys at the mask's edges, and queries unless the grouping is "whole".

    Raises PlanError if the mask has too many edges, and for strided positions.
    """
    if any(p.step != 1 for p, _, _ in queries) or any(p.step != 1 for ps, _ in keys for p in ps):
        raise PlanError("a found plan cannot have stripes of tokens")
    q_edges, kv_edges = edges(work)
    has_many_edges = max(len(q_edges), len(kv_edges)) > MOST_EDGES
    if has_many_edges and grouping != "whole":
        raise PlanError(f"this mask has more than {MOST_EDGES} edges: use rows=whole")
    pieces = split_at([p for p, _, _ in queries], [] if grouping == "whole" else q_edges)
    rows = [(p, q[1], q[2]) for q, ps in zip(queries, pieces, strict=True) for p in ps if p]
    cuts = set[int]() if has_many_edges else set(kv_edges)
    if (np.abs(work.mask.region().pieces[:, 4:]) < FAR // 2).any():  # cut keys where rows begin
        cuts |= {e + work.offset for p, _, _ in rows for e in (p.start, p.stop)}
    chunks = [(p, home) for ps, home in keys for p in ps if p]
    pieces = split_at([p for p, _ in chunks], sorted(cuts))
    columns = [(p, k[1]) for k, ps in zip(chunks, pieces, strict=True) for p in ps]
    q, kv = [p for p, _, _ in rows], [p for p, _ in columns]
    pairs = count_pairs_between(work, q, kv)
    full = pairs == np.multiply.outer([len(p) for p in q], [len(p) for p in kv])
    home = np.array([h for _, h in columns], np.intp)
    kv, kv_home, first = _merge_keys(kv, home, pairs > 0, full)
    return Parts(
        work=work,
        ranks=ranks,
        q=tuple(q),
        q_home=np.array([h for _, h, _ in rows], np.intp),
        runs_on=np.array([r for _, _, r in rows], np.intp),
        kv=tuple(kv),
        kv_home=kv_home,
        live=pairs[:, first] > 0,
        full=full[:, first],
        rows=grouping,
        pairs=pairs.sum(axis=1),
    )


def _merge_keys(
    kv: list[range], home: Index, live: Bits, full: Bits
) -> tuple[list[range], Index, Index]:
    """Joins adjacent keys of an owner with equal columns; also returns their first columns."""
    starts = np.array([p.start for p in kv])
    stops = np.array([p.stop for p in kv])
    is_first = np.ones(len(kv), np.bool_)
    is_same = (live[:, 1:] == live[:, :-1]).all(axis=0) & (full[:, 1:] == full[:, :-1]).all(axis=0)
    is_first[1:] = ~(is_same & (home[1:] == home[:-1]) & (starts[1:] == stops[:-1]))
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(kv)) - 1
    merged = [range(int(starts[a]), int(stops[b])) for a, b in zip(first, last, strict=True)]
    return merged, home[first], first
