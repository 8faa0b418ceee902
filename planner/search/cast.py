"""The cast: sends to each rank exactly the keys that it sees, one head slice after another.

step 0   keys of slice 0 -> the ranks that see them, once per node     ranks attend own keys
step 1   keys of slice 1 -> ...      slice 0 forwarded within nodes
step 2   keys of slice 2 -> ...      slice 1 forwarded                 ranks attend slice 0

Queries that run on other ranks travel with the keys of their slice; their results return after the
ranks attended the slice.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, Index, Move, Plan, Step
from ringloom.planner.layouts import by_heads, cut
from ringloom.planner.partitions import Ints, Partition
from ringloom.planner.search.parts import Parts, Rectangle
from ringloom.planner.workload import Workload

Rows = list[tuple[tuple[int, int], list[int]]]  # (source, destination), parts


@dataclass(frozen=True, slots=True)
class Routes:
    """Messages with parts of the keys, in consecutive rounds."""

    rounds: tuple[Rows, ...]


def slice_kv_heads(work: Workload, counts: Sequence[int]) -> list[range]:
    """Returns slices of KV heads with the given sizes; a single number means equal slices."""
    if len(counts) == 1:
        return cut(work.kv_heads, min(counts[0], work.kv_heads))
    if sum(counts) != work.kv_heads:
        text = "-".join(map(str, counts))
        raise PlanError(f"slices={text} must add up to {work.kv_heads} KV heads")
    bounds = np.cumsum([0, *counts]).tolist()
    return [range(a, b) for a, b in pairwise(bounds)]


def find_routes(parts: Parts, relay: int) -> Routes:
    """Routes keys once to each node of `relay` ranks, to the rank that received the fewest keys."""
    per_node = relay or parts.ranks
    rounds = [defaultdict[tuple[int, int], list[int]](list) for _ in range(2)]
    received = np.zeros(parts.ranks)
    users, tokens = parts.users, parts.tokens
    for part in np.argsort(-tokens, kind="stable").tolist():
        home, size = int(parts.kv_home[part]), int(tokens[part])
        by_node = defaultdict[int, list[int]](list)
        for user in np.flatnonzero(users[part]).tolist():
            by_node[user // per_node].append(user)
        for user in by_node.pop(home // per_node, []):
            if user != home:
                rounds[0][home, user].append(part)
        for members in by_node.values():
            receiver = min(members, key=lambda u: (received[u], (u - home) % per_node))
            rounds[0][home, receiver].append(part)
            received[receiver] += size
            for user in members:
                if user != receiver:
                    rounds[1][receiver, user].append(part)
    return Routes(tuple(_sort_messages(r, per_node, parts.ranks) for r in rounds))


def _sort_messages(rows: dict[tuple[int, int], list[int]], per_node: int, ranks: int) -> Rows:
    """Sorts messages: to other nodes first, then by distance, so that all ranks are busy."""

    def sort_key(row: tuple[tuple[int, int], list[int]]) -> tuple[bool, int, tuple[int, int]]:
        (src, dst), _ = row
        return src // per_node == dst // per_node, (dst - src) % ranks, (src, dst)

    return sorted(rows.items(), key=sort_key)


@dataclass(frozen=True, slots=True)
class Sliced:
    """Block numbers: part p of slice i is block p * slices + i."""

    slices: int
    number: int

    def blocks(self, parts: Sequence[Sequence[int]]) -> Ints:
        width = max(map(len, parts), default=0)
        table = np.full((len(parts), width), -1, np.int32)
        for row, numbers in zip(table, parts, strict=True):
            row[: len(numbers)] = numbers
        return np.where(table >= 0, table * self.slices + self.number, np.int32(-1))

    def move(self, tensors: tuple[str, ...], rows: Rows, reverse: bool = False) -> Move:
        src, dst = _columns(rows)
        route = (dst, src) if reverse else (src, dst)
        return Move(tensors, self.blocks([parts for _, parts in rows]), *route)

    def attend(self, rectangles: Sequence[Rectangle]) -> Attend:
        rank = np.array([r for r, _, _ in rectangles], np.intp)
        q, kv = [q for _, q, _ in rectangles], [kv for _, _, kv in rectangles]
        return Attend(rank, self.blocks(q), self.blocks(kv))


def _columns(rows: Rows) -> tuple[Index, Index]:
    routes = np.array([route for route, _ in rows], np.intp).reshape(-1, 2)
    return routes[:, 0], routes[:, 1]


def cast(parts: Parts, name: str, *, counts: Sequence[int], relay: int, own: int) -> Plan:
    """Returns the forward plan; see `slice_kv_heads` for `counts`, `FoundRecipe` for `own`."""
    work, ranks, kv_slices = parts.work, parts.ranks, slice_kv_heads(parts.work, counts)
    q_slices = [range(s.start * work.group, s.stop * work.group) for s in kv_slices]
    partition = Partition(
        by_heads([((p,), int(h)) for p, h in zip(parts.q, parts.q_home, strict=True)], q_slices),
        by_heads([((p,), int(h)) for p, h in zip(parts.kv, parts.kv_home, strict=True)], kv_slices),
    )
    rounds, queries = find_routes(parts, relay).rounds, _offloaded_queries(parts)
    rounds_used = max((n + 1 for n, rows in enumerate(rounds) if rows), default=int(bool(queries)))
    attends = [list[Attend]() for _ in range(rounds_used + len(kv_slices) + 1)]
    moves = [list[Move]() for _ in attends]
    all_rectangles = parts.rectangles()
    for i in range(len(kv_slices)):
        slice_, step = Sliced(len(kv_slices), i), rounds_used + i
        rectangles = all_rectangles
        if own and not i and rounds_used:
            own_first, rectangles = _split_own_keys(parts, all_rectangles, own == 1)
            attends[0] += [slice_.attend(own_first)] * bool(own_first)
        attends[step] += [slice_.attend(rectangles)] * bool(rectangles)
        moves[i].append(slice_.move(("Q",), queries))
        for delay, rows in enumerate(rounds[:rounds_used]):
            moves[i + delay].append(slice_.move(("KV",), rows))
        moves[step + 1].append(slice_.move(("OUT",), queries, reverse=True))
    steps = (Step(tuple(a), tuple(m)) for a, m in zip(attends, moves, strict=True))
    return Plan(name, work, ranks, partition, "forward", (), (), tuple(steps))


def _offloaded_queries(parts: Parts) -> Rows:
    """Returns the parts of queries that run on other ranks, by owner and attending rank."""
    rows = defaultdict[tuple[int, int], list[int]](list)
    for part in np.flatnonzero((parts.q_home != parts.runs_on) & parts.live.any(axis=1)).tolist():
        rows[int(parts.q_home[part]), int(parts.runs_on[part])].append(part)
    return _sort_messages(rows, parts.ranks, parts.ranks)


def _split_own_keys(
    parts: Parts, rectangles: Sequence[Rectangle], split: bool
) -> tuple[list[Rectangle], list[Rectangle]]:
    """Divides rectangles into rectangles of own queries and keys, and others; drops dead parts.

    Without `split`, does not divide a rectangle that has own and other keys.
    """
    own_first, later = list[Rectangle](), list[Rectangle]()
    for rank, q, kv in rectangles:
        if not split:
            is_own = (parts.q_home[q] == rank).all() and (parts.kv_home[kv] == rank).all()
            (own_first if is_own else later).append((rank, q, kv))
            continue
        own_rows = [row for row in q if parts.q_home[row] == rank]
        other_rows = [row for row in q if parts.q_home[row] != rank]
        for rows, keys, group in (
            (own_rows, [k for k in kv if parts.kv_home[k] == rank], own_first),
            (own_rows, [k for k in kv if parts.kv_home[k] != rank], later),
            (other_rows, kv, later),
        ):
            table = parts.live[np.ix_(rows, keys)]
            live_rows = [rows[n] for n in np.flatnonzero(table.any(axis=1)).tolist()]
            live_keys = [keys[n] for n in np.flatnonzero(table.any(axis=0)).tolist()]
            if live_rows:
                group.append((rank, live_rows, live_keys))
    return own_first, later
