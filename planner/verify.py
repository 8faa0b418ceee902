"""verify(plan)   returns the plan, or raises a PlanError that names step, rank and block.

verify_pair(forward, backward)   checks initial copies of the backward pass against the forward.
ensure_verified(given)           verifies plans that were not verified before.

Partial-sum transfers conserve contributions, so exactly-once takes three checks: every live tile is
attended exactly once, no transfer is repeated or empty, and every accumulator ends at its owner.
Further checks: inputs are present where moves and attends read them, copies fit the declared
buffers, and head slices agree.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.copies import Copies
from ringloom.planner.analysis.inputs import check_inputs
from ringloom.planner.analysis.liveness import held_away
from ringloom.planner.analysis.messages import ALWAYS, last_ways
from ringloom.planner.analysis.partial_sums import check_partial_sums
from ringloom.planner.analysis.tables import Table, groups
from ringloom.planner.analysis.tiles import CELLS, LIVE, Tiles, dead_edges, tiles
from ringloom.planner.columns import row_index
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import INPUTS, Index, Plan
from ringloom.planner.partitions import Ints
from ringloom.planner.plans import AnyPlans, Plans

Given = TypeVar("Given", bound=AnyPlans)
DUE, ATTENDED = LIVE, np.uint8(2)
MARK = "_verified"
AFTER = "_verified_after"  # the forward plan whose copies a backward plan may start from
Bytes = NDArray[np.uint8]


def verify(given: Given) -> Given:
    """Verify that a plan, or a pair of plans, is exact; raise PlanError if not.

    Memory is bounded by ranks x blocks.
    """
    plans = Plans.of(given)
    for plan in plans:
        table = tiles(plan)
        check_rectangles(plan, table)
        check_inputs(plan)
        check_partial_sums(plan)
        check_tiles_once(plan, table)
        check_buffers(plan)
        mark_verified(plan)
    ensure_verified(plans)
    return given


def mark_verified(plan: Plan) -> Plan:
    """Mark a plan, which never changes, as verified.

    The mark is not a field, so `dataclasses.replace` makes an unmarked plan.
    """
    object.__setattr__(plan, MARK, True)
    return plan


def ensure_verified(given: AnyPlans) -> Plans:
    """Returns the plans after verifying those that were not; raises PlanError for a wrong plan.

    A backward plan is checked again with another forward plan, which may leave other copies.
    """
    plans = Plans.of(given)
    for plan in plans:
        if MARK not in vars(plan):
            verify(plan)
    if plans.forward and plans.backward and vars(plans.backward).get(AFTER) is not plans.forward:
        verify_pair(plans.forward, plans.backward)
    return plans


def verify_pair(forward: Plan, backward: Plan) -> Plans:
    """Verify that the forward pass leaves the initial copies of a backward pass in place.

    It leaves Q and KV on every rank that ever holds them, and OUT on the rank that sends the
    finished result to its owner. Raises PlanError, also for different partitions: nothing moves
    tokens between the passes.
    """
    pair = Plans(forward, backward)
    if forward.partition != backward.partition:
        raise PlanError("both passes need the same partition")
    for tensor in dict.fromkeys(t for held in backward.start for t in held.tensors):
        copies = [held.flat() for held in backward.start if tensor in held.tensors]
        block, rank = map(np.concatenate, zip(*copies, strict=True))
        left = _left_by(forward, tensor, block, rank)
        if not left.all():
            at = int(np.argmin(left))
            raise PlanError(
                f"start: rank {rank[at]} holds {tensor} block {block[at]}, which the forward"
                " pass does not leave there"
            )
    object.__setattr__(backward, AFTER, forward)
    return pair


def _left_by(forward: Plan, tensor: str, block: Index, rank: Index) -> NDArray[np.bool_]:
    """Returns which blocks of a tensor a forward pass leaves on these ranks: bool [n]."""
    if tensor == "OUT":
        step, source = last_ways(forward)["OUT"]
        return np.asarray((source[block] == rank) | (step[block] == ALWAYS))
    if tensor not in INPUTS["forward"]:
        return np.zeros(len(block), bool)
    came, copies = Table(forward, tensor), Copies(forward, tensor)
    came[came.cells.owned] = True
    for number in range(-1, len(forward.steps) + 1):
        for rows in copies.comes(number):
            came[rows.rank, rows.blocks] = True
    return came.flat[came.cells.flat(rank, block)]


def check_rectangles(plan: Plan, table: Tiles) -> None:
    """Raises PlanError for a rectangle with several head slices per side, or with dead blocks."""
    for number, attend in plan.attends():
        sides = ("q", attend.q), ("kv", attend.kv)
        for side, blocks in sides if not table.one_slice else ():
            slices = plan.partition.side(side).slice
            mixed = (blocks >= 0) & (slices[blocks] != slices[blocks.max(axis=1)][:, None])
            if mixed.any():
                rank = attend.rank[np.argmax(mixed.any(axis=1))]
                raise PlanError(
                    f"step {number}: rank {rank} attends {side} blocks of different head slices"
                )
        for (side, blocks), dead in zip(sides, dead_edges(table, attend), strict=True):
            if dead.any():
                row, column = np.argwhere(dead)[0]
                raise PlanError(
                    f"step {number}: rank {attend.rank[row]} attends {side} block"
                    f" {blocks[row, column]}, which has no live tile in that rectangle"
                )


def check_tiles_once(plan: Plan, table: Tiles) -> None:
    """Raises PlanError unless each live (q block, kv block) pair is attended exactly once.

    Counts per pair of head slices, so memory is bounded by the blocks of one slice. A block that a
    rectangle names twice has a live tile there, which counts twice.
    """
    q, kv, before = plan.partition.q, plan.partition.kv, list[Ints]()
    for q_slice, kv_slice in np.argwhere(table.shared_heads > 0).tolist():
        q_ids, kv_ids = np.flatnonzero(q.slice == q_slice), np.flatnonzero(kv.slice == kv_slice)
        chunks = [q.chunk[q_ids], kv.chunk[kv_ids]]
        if not before or not all(map(np.array_equal, before, chunks)):  # mostly the same
            live = np.zeros((len(q_ids) + 1, len(kv_ids) + 1), np.uint8)  # the last: "no block"
            live[:-1, :-1] = table.chunk_kinds[np.ix_(*chunks)] & LIVE
            due, before = int(np.count_nonzero(live)), chunks
        state, attended = live.copy(), 0
        places = _places(len(q), q_ids), _places(len(kv), kv_ids)
        for _, node in plan.attends():
            of_kv = kv.slice.take(node.kv.max(axis=1)) == kv_slice
            rows = row_index(of_kv & (q.slice.take(node.q.max(axis=1)) == q_slice))
            sides = zip(places, (node.q, node.kv), strict=True)
            attended += _mark(state, *(place.take(blocks[rows].T) for place, blocks in sides))
        missing = state == DUE
        if missing.any():
            a, b = np.argwhere(missing)[0]
            raise PlanError(
                f"q block {q_ids[a]} never attends kv block {kv_ids[b]};"
                f" {int(missing.sum())} live tiles of {due} are missing"
            )
        if attended > due:
            _blame_twice(plan, table)


def _places(blocks: int, ids: Index) -> Index:
    """Maps each block number to its row among `ids`, or to the row after them."""
    place = np.full(blocks + 1, len(ids), np.intp)  # the last entry is for block -1
    place[ids] = np.arange(len(ids))
    return place


def _mark(state: Bytes, q: Index, kv: Index) -> int:
    """Mark the tiles of rectangles [a, n] x [b, n] as attended; returns how many are live.

    Repeated tiles count each time.
    """
    live, flat, (height, width) = 0, state.reshape(-1), state.shape
    q = q * width
    height = max(1, CELLS // (len(q) * len(kv)))
    for at in range(0, q.shape[1], height):
        rows = slice(at, at + height)
        tile = q[:, None, rows] + kv[None, :, rows]
        before = flat[tile]
        live += int(np.count_nonzero(before & DUE))
        flat[tile] = before | ATTENDED
    return live


def _blame_twice(plan: Plan, table: Tiles) -> None:
    """Raises PlanError for the first live tile that is attended a second time."""
    first = dict[tuple[int, int], tuple[int, int]]()
    for number, attend in plan.attends():
        for rank, qs, kvs in zip(attend.rank.tolist(), attend.q, attend.kv, strict=True):
            for a, b in np.argwhere(table.live(qs[:, None], kvs[None, :])):
                tile = int(qs[a]), int(kvs[b])
                if tile in first:
                    step, other = first[tile]
                    raise PlanError(
                        f"step {number}: rank {rank} attends q block {tile[0]} x kv block"
                        f" {tile[1]}, which rank {other} attends in step {step}"
                    )
                first[tile] = number, rank


def check_buffers(plan: Plan) -> None:
    """Raises PlanError if a rank ever needs more slots for a tensor than `buffers` declares."""
    for tensors in groups(plan):
        declared = [(tensor, slots) for tensor, slots in plan.buffers if tensor in tensors]
        needed, step, rank = _most_slots(plan, tensors[0]) if declared else (0, 0, 0)
        for tensor, allowed in declared:
            if needed > allowed:
                raise PlanError(
                    f"step {step}: rank {rank} needs {needed} slots for {tensor},"
                    f" but buffers allow {allowed}"
                )


def _most_slots(plan: Plan, tensor: str) -> tuple[int, int, int]:
    """Returns the most slots that any rank needs for a tensor, and the first step and rank."""
    most, at = 0, (0, 0)
    for step, held in held_away(plan, tensor, np.ones(len(plan.side(tensor)), np.int64)):
        needed = int(held.max())
        if needed > most or (needed == most and (step, 0) < at):
            most, at = needed, (step, int(held.argmax()))
    return most, *at
