"""Detects the position of each local row from the pairs that have weight.

Queries and keys differ in their number of pairs, and in the pairs of their partners, so pairs
between slots identify positions. Named layouts are tried first, then a layout that is inferred from
these differences. If two layouts have the same pairs under the mask, the report lists both.
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

ROUNDS = 8  # of inference; each round uses partners that are one pair further away
Sizes = tuple[tuple[int, ...], tuple[int, ...]]  # tokens per rank, of queries and of keys
MAX_MISMATCH = 0.25  # share of the wanted pairs that may contradict a detected layout


@dataclass(frozen=True, slots=True)
class Detection:
    """A case with detected positions; `ambiguities`: sentences on indistinguishable layouts."""

    case: Case
    ambiguities: tuple[str, ...]


def detect(case: Case, ask: Ask, change: Callable[[Case], None]) -> Detection:
    """Determines which pairs of slots have weight, and returns the case with positions.

    Tries shards of nearly equal sizes first, then the sizes of named layouts. Raises RingloomError
    if no layout matches the pairs.
    """
    best: tuple[int, Case, list[str]] | None = None
    failure: EndedError | None = None
    for sizes in shard_sizes(case):
        shards = tuple(tuple(_contiguous(side)) for side in sizes)
        slots = replace(case, q=shards[0], kv=shards[1])
        change(slots)
        try:
            weights = probe(slots, ask, gradients=False).weights["out"].first
        except EndedError as error:  # the function may take shards of other sizes
            failure = error
            continue
        attended = count(weights, tolerance_of(case.work.dtype)).times > 0
        for name, q, kv in layouts(case, sizes, attended):
            mismatch = mismatches(case.work, np.concatenate(q), np.concatenate(kv), attended)
            if best is None or mismatch < best[0]:
                best = mismatch, replace(case, q=q, kv=kv), [name]
            elif mismatch == best[0] == 0 and not _has_positions(best[1], q):
                best[2].append(name)
        if best is not None and best[0] == 0:
            break
    if best is None and failure is not None:
        raise failure
    wanted = case.work.allowed(range(case.work.seq), range(case.work.kv_seq)).sum()
    if best is None or best[0] > MAX_MISMATCH * wanted:
        raise RingloomError("no layout matches the attended pairs: pass the positions of each rank")
    names = [name for name in dict.fromkeys(best[2]) if name]
    text = f"the layout: {', '.join(names)} cannot be distinguished under this mask"
    return Detection(best[1], (text,) if len(names) > 1 else ())


def shard_sizes(case: Case) -> list[Sizes]:
    """Returns possible numbers of tokens per rank, of queries and of keys."""
    even = case.in_slots()
    sizes = [tuple(tuple(map(len, side or ())) for side in (even.q, even.kv))]
    sizes += [tuple(tuple(map(len, side)) for side in sides) for _, *sides in named_layouts(case)]
    return [(q, kv) for q, kv in dict.fromkeys(sizes) if min(q) and min(kv)]


def named_layouts(case: Case) -> Iterator[tuple[str, Positions, Positions]]:
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


def layouts(
    case: Case, sizes: Sizes, attended: Array
) -> Iterator[tuple[str, Positions, Positions]]:
    """Yields the named layouts, and a layout with these shard sizes inferred from the pairs."""
    yield from named_layouts(case)
    orders = infer_positions(case.work, attended)
    q, kv = (
        tuple(np.split(order, np.cumsum(lengths)[:-1]))
        for order, lengths in zip(orders, sizes, strict=True)
    )
    yield "", q, kv


def mismatches(work: Workload, q: Ints, kv: Ints, attended: Array) -> int:
    """Returns the number of pairs of slots that contradict these positions."""
    return int((attended != work.allowed(q, kv)).sum())


def infer_positions(work: Workload, attended: Array) -> tuple[Ints, Ints]:
    """Returns the position of each slot of queries and of keys, inferred from their pairs.

    In each round, the hash of a slot or position is updated with the hashes of its partners; equal
    hashes are matched in order. If there are equally many queries and keys, a slot has the same
    position on both sides.
    """
    wanted = work.allowed(range(work.seq), range(work.kv_seq))
    same_sides = work.seq == work.kv_seq
    hashes = tuple(_hashes(pairs, same_sides) for pairs in (attended, wanted))
    orders = []
    for slot_hashes, position_hashes in zip(*hashes, strict=True):
        order = np.empty(len(slot_hashes), np.int64)
        slots = np.argsort(slot_hashes, kind="stable")
        order[slots] = np.argsort(position_hashes, kind="stable")
        orders.append(order)
    return orders[0], orders[1]


def _hashes(pairs: Array, same_sides: bool) -> tuple[Array, Array]:
    """Returns a hash of each row and each column, equal for equal surroundings: uint64."""
    cells = pairs.astype(np.uint64)
    rows, columns = (np.ones(n, np.uint64) for n in pairs.shape)
    for _ in range(ROUNDS):
        rows, columns = _mix(rows, cells @ columns), _mix(columns, cells.T @ rows)
        if same_sides:
            rows = columns = _mix(rows, columns)
    return rows, columns


def _mix(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a hash of two numbers; overflows are intended."""
    with np.errstate(over="ignore"):
        x: NDArray[np.uint64] = a * np.uint64(0x9E3779B97F4A7C15) + b * np.uint64(
            0xC2B2AE3D27D4EB4F
        )
        x ^= x >> np.uint64(29)
        x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


def _contiguous(sizes: tuple[int, ...]) -> Iterator[Ints]:
    ends = np.cumsum(sizes)
    for end, size in zip(ends.tolist(), sizes, strict=True):
        yield np.arange(end - size, end, dtype=np.int64)


def _has_positions(case: Case, q: Positions) -> bool:
    return all(map(np.array_equal, case.q or (), q))
