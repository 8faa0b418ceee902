"""Detects the position of each local row from the pairs with weight alone.

Queries and keys differ in their number of pairs, and in the pairs of their partners, so pairs
between slots identify positions. Named layouts are tried first; others follow by refining these
differences round by round. If two layouts look the same under the mask, the report says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError, RingloomError
from ringloom.planner.layouts import BY_MASK, LAYOUTS, by_tokens
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case, Ints, Positions
from ringloom.runtimes.audit.probes.probing import Ask, probe
from ringloom.runtimes.audit.probes.weights import count, tolerance_of
from ringloom.runtimes.audit.running.asking import EndedError

ROUNDS = 8  # of refining; each separates slots one pair further from a difference
Sizes = tuple[tuple[int, ...], tuple[int, ...]]  # tokens per rank, of queries and of keys
DOUBT = 0.25  # share of the wanted pairs that may differ under a layout that explains them


@dataclass(frozen=True, slots=True)
class Detected:
    """A case with positions; `alike`: sentences on layouts that look the same under its mask."""

    case: Case
    alike: tuple[str, ...]


def detect(case: Case, ask: Ask, change: Callable[[Case], None]) -> Detected:
    """Asks which pairs of slots have weight, and returns the case with positions.

    Tries shards of nearly equal sizes first, then the sizes of named layouts. Raises RingloomError
    if no layout explains the pairs.
    """
    best: tuple[int, Case, list[str]] | None = None
    refused: EndedError | None = None
    for sizes in shard_sizes(case):
        shards = tuple(tuple(_cut(side)) for side in sizes)
        slots = replace(case, q=shards[0], kv=shards[1])
        change(slots)
        try:
            weights = probe(slots, ask, gradients=False).weights["out"].first
        except EndedError as error:  # the function may take shards of other sizes
            refused = error
            continue
        seen = count(weights, tolerance_of(case.work.dtype)).times > 0
        tried = list(layouts(case, sizes, seen))
        for name, q, kv in tried:
            off = mismatch(case.work, np.concatenate(q), np.concatenate(kv), seen)
            if best is None or off < best[0]:
                best = off, replace(case, q=q, kv=kv), [name]
            elif off == best[0] == 0 and not _equal(best[1], q):
                best[2].append(name)
        if best is not None and best[0] == 0:
            break
    if best is None and refused is not None:
        raise refused
    wanted = case.work.allowed(range(case.work.seq), range(case.work.kv_seq)).sum()
    if best is None or best[0] > DOUBT * wanted:
        raise RingloomError(
            "no layout explains which pairs are attended: give the positions of each rank"
        )
    alike = [name for name in dict.fromkeys(best[2]) if name]
    said = f"the layout: {', '.join(alike)} look the same under this mask"
    return Detected(best[1], (said,) if len(alike) > 1 else ())


def shard_sizes(case: Case) -> list[Sizes]:
    """Lists possible numbers of tokens per rank, of queries and of keys."""
    even = case.in_slots()
    sizes = [tuple(tuple(map(len, side or ())) for side in (even.q, even.kv))]
    sizes += [tuple(tuple(map(len, side)) for side in sides) for _, *sides in named(case)]
    return [(q, kv) for q, kv in dict.fromkeys(sizes) if min(q) and min(kv)]


def named(case: Case) -> Iterator[tuple[str, Positions, Positions]]:
    """Yields (name, positions of queries, positions of keys) of every named layout."""
    for name in (*LAYOUTS, *BY_MASK):
        try:
            sides = by_tokens(case.work, case.ranks, name)
        except PlanError:
            continue
        q, kv = (
            tuple(np.asarray(shard, np.int64) for shard in sides.side(side).shards(case.ranks))
            for side in ("q", "kv")
        )
        yield name, q, kv


def layouts(case: Case, sizes: Sizes, seen: Array) -> Iterator[tuple[str, Positions, Positions]]:
    """Yields the named layouts, and the one inferred from the pairs, in shards of these sizes."""
    yield from named(case)
    orders = refined(case.work, seen)
    q, kv = (
        tuple(np.split(order, np.cumsum(lengths)[:-1]))
        for order, lengths in zip(orders, sizes, strict=True)
    )
    yield "", q, kv


def mismatch(work: Workload, q: Ints, kv: Ints, seen: Array) -> int:
    """Returns the number of pairs of slots that contradict these positions."""
    return int((seen != work.allowed(q, kv)).sum())


def refined(work: Workload, seen: Array) -> tuple[Ints, Ints]:
    """Returns the position of each slot of queries and of keys, inferred from their pairs.

    In each round, slots and positions get a number that depends on the numbers of their partners;
    equal numbers are matched in order. If there are as many queries as keys, a slot has the same
    position on both sides.
    """
    wanted = work.allowed(range(work.seq), range(work.kv_seq))
    together = work.seq == work.kv_seq
    marks = tuple(_numbers(pairs, together) for pairs in (seen, wanted))
    orders = []
    for slots, positions in zip(*marks, strict=True):
        order = np.empty(len(slots), np.int64)
        order[np.argsort(slots, kind="stable")] = np.argsort(positions, kind="stable")
        orders.append(order)
    return orders[0], orders[1]


def _numbers(pairs: Array, together: bool) -> tuple[Array, Array]:
    """Returns a uint64 for each row and each column, equal if their surroundings are equal."""
    cells = pairs.astype(np.uint64)
    rows, columns = (np.ones(n, np.uint64) for n in pairs.shape)
    for _ in range(ROUNDS):
        rows, columns = _mixed(rows, cells @ columns), _mixed(columns, cells.T @ rows)
        if together:
            rows = columns = _mixed(rows, columns)
    return rows, columns


def _mixed(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes two numbers into one; overflows are intended."""
    with np.errstate(over="ignore"):
        x: NDArray[np.uint64] = one * np.uint64(0x9E3779B97F4A7C15) + other * np.uint64(
            0xC2B2AE3D27D4EB4F
        )
        x ^= x >> np.uint64(29)
        x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


def _cut(sizes: tuple[int, ...]) -> Iterator[Ints]:
    ends = np.cumsum(sizes)
    for end, size in zip(ends.tolist(), sizes, strict=True):
        yield np.arange(end - size, end, dtype=np.int64)


def _equal(case: Case, q: Positions) -> bool:
    return all(map(np.array_equal, case.q or (), q))
