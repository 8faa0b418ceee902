"""The cast: sends to each rank exactly the keys that it sees, by head slices.

step 0   keys of slice 0 -> their users, once into each node                 (own keys attended)
step 1   keys of slice 1 -> ...      slice 0 forwarded within nodes
step 2   slice 2 -> ...              slice 1 forwarded                       slice 0 attended

Queries that run on other ranks travel with the keys of their slice; their results return when it is
done.
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


def slices(work: Workload, counts: Sequence[int]) -> list[range]:
    """Returns slices of KV heads of these sizes; for one number, that many equal slices."""
    if len(counts) == 1:
        return cut(work.kv_heads, min(counts[0], work.kv_heads))
    if sum(counts) != work.kv_heads:
        said = "-".join(map(str, counts))
        raise PlanError(f"slices={said} must add up to {work.kv_heads} KV heads")
    ends = np.cumsum([0, *counts]).tolist()
    return [range(a, b) for a, b in pairwise(ends)]


def routes(parts: Parts, relay: int) -> Routes:
    """Sends keys once into each node of `relay` ranks, to the user that received least so far."""
    node = relay or parts.ranks
    rounds = [defaultdict[tuple[int, int], list[int]](list) for _ in range(2)]
    got = np.zeros(parts.ranks)
    users, tokens = parts.users, parts.tokens
    for part in np.argsort(-tokens, kind="stable").tolist():
        home, size = int(parts.kv_home[part]), int(tokens[part])
        by_node = defaultdict[int, list[int]](list)
        for user in np.flatnonzero(users[part]).tolist():
            by_node[user // node].append(user)
        for user in by_node.pop(home // node, []):
            if user != home:
                rounds[0][home, user].append(part)
        for members in by_node.values():
            first = min(members, key=lambda u: (got[u], (u - home) % node))
            rounds[0][home, first].append(part)
            got[first] += size
            for user in members:
                if user != first:
                    rounds[1][first, user].append(part)
    return Routes(tuple(_in_order(r, node, parts.ranks) for r in rounds))


def _in_order(rows: dict[tuple[int, int], list[int]], node: int, ranks: int) -> Rows:
    """Orders messages to other nodes first, then by distance, so that ranks are equally busy."""

    def place(row: tuple[tuple[int, int], list[int]]) -> tuple[bool, int, tuple[int, int]]:
        (src, dst), _ = row
        return src // node == dst // node, (dst - src) % ranks, (src, dst)

    return sorted(rows.items(), key=place)


@dataclass(frozen=True, slots=True)
class Sliced:
    """Block numbers: part p of slice i is block p * slices + i."""

    slices: int
    at: int

    def blocks(self, parts: Sequence[Sequence[int]]) -> Ints:
        width = max(map(len, parts), default=0)
        table = np.full((len(parts), width), -1, np.int32)
        for row, numbers in zip(table, parts, strict=True):
            row[: len(numbers)] = numbers
        return np.where(table >= 0, table * self.slices + self.at, np.int32(-1))

    def move(self, tensors: tuple[str, ...], rows: Rows, back: bool = False) -> Move:
        src, dst = _columns(rows)
        ends = (dst, src) if back else (src, dst)
        return Move(tensors, self.blocks([parts for _, parts in rows]), *ends)

    def attend(self, rectangles: Sequence[Rectangle]) -> Attend:
        rank = np.array([r for r, _, _ in rectangles], np.intp)
        q, kv = [q for _, q, _ in rectangles], [kv for _, _, kv in rectangles]
        return Attend(rank, self.blocks(q), self.blocks(kv))


def _columns(rows: Rows) -> tuple[Index, Index]:
    ends = np.array([ends for ends, _ in rows], np.intp).reshape(-1, 2)
    return ends[:, 0], ends[:, 1]


def cast(parts: Parts, name: str, *, counts: Sequence[int], relay: int, own: int) -> Plan:
    """Returns the forward plan; `counts`: see `slices`; `own`: see `Found`, for slice 0."""
    work, ranks, kv_slices = parts.work, parts.ranks, slices(parts.work, counts)
    q_slices = [range(s.start * work.group, s.stop * work.group) for s in kv_slices]
    partition = Partition(
        by_heads([((p,), int(h)) for p, h in zip(parts.q, parts.q_home, strict=True)], q_slices),
        by_heads([((p,), int(h)) for p, h in zip(parts.kv, parts.kv_home, strict=True)], kv_slices),
    )
    rounds, queries = routes(parts, relay).rounds, _away(parts)
    used = max((n + 1 for n, rows in enumerate(rounds) if rows), default=int(bool(queries)))
    attends = [list[Attend]() for _ in range(used + len(kv_slices) + 1)]
    moves = [list[Move]() for _ in attends]
    whole = parts.rectangles()
    for i in range(len(kv_slices)):
        numbered, at = Sliced(len(kv_slices), i), used + i
        rectangles = whole
        if own and not i and used:
            own_ones, rectangles = _own_first(parts, whole, own == 1)
            attends[0] += [numbered.attend(own_ones)] * bool(own_ones)
        attends[at] += [numbered.attend(rectangles)] * bool(rectangles)
        moves[i].append(numbered.move(("Q",), queries))
        for late, rows in enumerate(rounds[:used]):
            moves[i + late].append(numbered.move(("KV",), rows))
        moves[at + 1].append(numbered.move(("OUT",), queries, back=True))
    steps = (Step(tuple(a), tuple(m)) for a, m in zip(attends, moves, strict=True))
    return Plan(name, work, ranks, partition, "forward", (), (), tuple(steps))


def _away(parts: Parts) -> Rows:
    """Returns the parts of queries that run on other ranks, by owner and attending rank."""
    rows = defaultdict[tuple[int, int], list[int]](list)
    for part in np.flatnonzero((parts.q_home != parts.runs_on) & parts.live.any(axis=1)).tolist():
        rows[int(parts.q_home[part]), int(parts.runs_on[part])].append(part)
    return _in_order(rows, parts.ranks, parts.ranks)


def _own_first(
    parts: Parts, rectangles: Sequence[Rectangle], split: bool
) -> tuple[list[Rectangle], list[Rectangle]]:
    """Divides rectangles of own queries by the owner of their keys, without dead parts.

    Without `split`, only rectangles that see own keys alone go first.
    """
    own_ones, others = list[Rectangle](), list[Rectangle]()
    for rank, q, kv in rectangles:
        if not split:
            here = (parts.q_home[q] == rank).all() and (parts.kv_home[kv] == rank).all()
            (own_ones if here else others).append((rank, q, kv))
            continue
        here = [row for row in q if parts.q_home[row] == rank]
        away = [row for row in q if parts.q_home[row] != rank]
        for rows, keys, kept in (
            (here, [k for k in kv if parts.kv_home[k] == rank], own_ones),
            (here, [k for k in kv if parts.kv_home[k] != rank], others),
            (away, kv, others),
        ):
            table = parts.live[np.ix_(rows, keys)]
            left = [rows[n] for n in np.flatnonzero(table.any(axis=1)).tolist()]
            met = [keys[n] for n in np.flatnonzero(table.any(axis=0)).tolist()]
            if left:
                kept.append((rank, left, met))
    return own_ones, others
