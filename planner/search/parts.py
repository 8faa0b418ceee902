"""Parts: queries and keys cut at the edges of the mask, and which parts see which.

edges    queries that fully see the same keys share one full call; partial pairs are rectangles of
         their own
whole    everything that a rank computes is one rectangle
packed   queries that see the same keys, fully or not, form a group; a rectangle has several groups
         while it can be cut run by run: the host prepares calls while the first ones run
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
from ringloom.planner.search.pieces import MOST_EDGES, edges, seen, split_at
from ringloom.planner.search.recipe import Rows
from ringloom.planner.workload import Workload

Bits = NDArray[np.bool_]
Rectangle = tuple[int, list[int], list[int]]  # rank, parts of queries, parts of keys


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of both sides: ranges, owners and, for queries, the rank that attends them."""

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

    @cached_property  # the cast, the estimate and the offload ask
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
        """Lists the rectangles of all ranks; every part of a rectangle sees another part of it."""
        acting = np.flatnonzero(self.live.any(axis=1)).tolist()
        groups = defaultdict[tuple[int, bytes], list[int]](list)
        for row in acting:
            groups[int(self.runs_on[row]), self._alike(row)].append(row)
        out = list[Rectangle]()
        for (rank, _), rows in groups.items():
            if self.rows != "edges":
                out.append((rank, rows, np.flatnonzero(self.live[rows].any(axis=0)).tolist()))
                continue
            live, full = self.live[rows[0]], self.full[rows[0]]
            if full.any():
                out.append((rank, rows, np.flatnonzero(full).tolist()))
            if (part := live & ~full).any():
                out += [(rank, [row], np.flatnonzero(part).tolist()) for row in rows]
        return self._packed(out) if self.rows == "packed" else out

    def _alike(self, row: int) -> bytes:
        """Returns a key that is equal for rows of one group."""
        match self.rows:
            case "whole":
                return b""
            case "packed":
                return bytes(np.packbits(self.live[row]))
            case "edges":
                return bytes(np.packbits([self.live[row], self.full[row]]))

    def _packed(self, groups: list[Rectangle]) -> list[Rectangle]:
        """Joins groups of a rank, in order of queries, while they can be cut run by run."""
        out = list[Rectangle]()
        for rank, q, kv in sorted(groups, key=lambda g: (g[0], self.q[g[1][0]].start)):
            if out and out[-1][0] == rank:
                rows, columns = [*out[-1][1], *q], sorted({*out[-1][2], *kv})
                if _runs(self.q, rows) * _runs(self.kv, columns) <= MOST_PAIRS:
                    out[-1] = rank, rows, columns
                    continue
            out.append((rank, q, kv))
        return out


def _runs(ranges: Sequence[range], numbers: Sequence[int]) -> int:
    """Counts the maximal runs of some ranges."""
    parts = sorted((ranges[n] for n in numbers), key=lambda p: p.start)
    return 1 + sum(a.stop < b.start for a, b in pairwise(parts))


Placed = tuple[range, int, int]  # queries, their owner, the rank that attends them


def parts(
    work: Workload, ranks: int, queries: Sequence[Placed], keys: Chunks, grouped: Rows
) -> Parts:
    """Cuts both sides at the mask's edges; queries only if rows are to be grouped.

    Raises PlanError if the mask has too many edges, and for strided positions.
    """
    if any(p.step != 1 for p, _, _ in queries) or any(p.step != 1 for ps, _ in keys for p in ps):
        raise PlanError("a found plan cannot have stripes of tokens")
    q_edges, kv_edges = edges(work)
    many = max(len(q_edges), len(kv_edges)) > MOST_EDGES
    if many and grouped != "whole":
        raise PlanError(f"this mask has more than {MOST_EDGES} edges: use rows=whole")
    cut = split_at([p for p, _, _ in queries], [] if grouped == "whole" else q_edges)
    rows = [(p, q[1], q[2]) for q, ps in zip(queries, cut, strict=True) for p in ps if p]
    ends = set[int]() if many else set(kv_edges)
    if (np.abs(work.mask.region().pieces[:, 4:]) < FAR // 2).any():  # cut keys where rows begin
        ends |= {e + work.offset for p, _, _ in rows for e in (p.start, p.stop)}
    flat = [(p, home) for ps, home in keys for p in ps if p]
    cut = split_at([p for p, _ in flat], sorted(ends))
    columns = [(p, k[1]) for k, ps in zip(flat, cut, strict=True) for p in ps]
    q, kv = [p for p, _, _ in rows], [p for p, _ in columns]
    counted = seen(work, q, kv)
    full = counted == np.multiply.outer([len(p) for p in q], [len(p) for p in kv])
    home = np.array([h for _, h in columns], np.intp)
    kv, kv_home, first = _merged(kv, home, counted > 0, full)
    return Parts(
        work=work,
        ranks=ranks,
        q=tuple(q),
        q_home=np.array([h for _, h, _ in rows], np.intp),
        runs_on=np.array([r for _, _, r in rows], np.intp),
        kv=tuple(kv),
        kv_home=kv_home,
        live=counted[:, first] > 0,
        full=full[:, first],
        rows=grouped,
        pairs=counted.sum(axis=1),
    )


def _merged(
    kv: list[range], home: Index, live: Bits, full: Bits
) -> tuple[list[range], Index, Index]:
    """Joins adjacent keys of one owner that the same queries see equally; with first columns."""
    starts = np.array([p.start for p in kv])
    stops = np.array([p.stop for p in kv])
    fresh = np.ones(len(kv), np.bool_)
    same = (live[:, 1:] == live[:, :-1]).all(axis=0) & (full[:, 1:] == full[:, :-1]).all(axis=0)
    fresh[1:] = ~(same & (home[1:] == home[:-1]) & (starts[1:] == stops[:-1]))
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(kv)) - 1
    joined = [range(int(starts[a]), int(stops[b])) for a, b in zip(first, last, strict=True)]
    return joined, home[first], first
