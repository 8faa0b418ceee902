"""verify(plan)   returns an exact plan; otherwise, raises PlanError with step, rank and block.

verify_pair(forward, backward)   checks the initial copies of the backward pass.
ensure_verified(plans)           verifies plans that were not verified before.

A partial-sum transfer keeps all contributions. So every contribution reaches its owner exactly once
if every live tile is attended exactly once, no transfer is repeated or empty, and every accumulator
ends at its owner. Further checks: inputs are present where moves and attends read them, copies fit
the declared buffers, and head slices agree.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.copies import Copies
from ringloom.planner.analysis.inputs import check_inputs
from ringloom.planner.analysis.liveness import held_away
from ringloom.planner.analysis.messages import ALWAYS, last_messages
from ringloom.planner.analysis.partial_sums import check_partial_sums
from ringloom.planner.analysis.tables import Table, group_tensors
from ringloom.planner.analysis.tiles import CELLS, LIVE, Tiles, dead_edges, tiles
from ringloom.planner.columns import row_index
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import INPUTS, Index, Plan
from ringloom.planner.partitions import Ints
from ringloom.planner.plans import AnyPlans, Plans

GivenPlans = TypeVar("GivenPlans", bound=AnyPlans)
ATTENDED = np.uint8(2)  # a bit beside LIVE
VERIFIED = "_verified"
FORWARD = "_verified_after"  # the forward plan that leaves a backward plan's initial copies
Bytes = NDArray[np.uint8]


def verify(plans: GivenPlans) -> GivenPlans:
    """Verifies that a plan, or a pair of plans, is exact; raises PlanError if not.

    Memory grows with ranks x blocks.
    """
    for plan in Plans.of(plans):
        table = tiles(plan)
        check_rectangles(plan, table)
        check_inputs(plan)
        check_partial_sums(plan)
        check_tiles_once(plan, table)
        check_buffers(plan)
        mark_verified(plan)
    ensure_verified(plans)
    return plans


def mark_verified(plan: Plan) -> Plan:
    """Marks a plan, which never changes, as verified.

    The mark is not a field, so `dataclasses.replace` makes an unmarked plan.
    """
    object.__setattr__(plan, VERIFIED, True)
    return plan


def ensure_verified(plans: AnyPlans) -> Plans:
    """Returns the plans after verifying unmarked plans; raises PlanError for a wrong plan.

    Checks a backward plan again with another forward plan, which may leave other copies.
    """
    pair = Plans.of(plans)
    for plan in pair:
        if VERIFIED not in vars(plan):
            verify(plan)
    if pair.forward and pair.backward and vars(pair.backward).get(FORWARD) is not pair.forward:
        verify_pair(pair.forward, pair.backward)
    return pair


def verify_pair(forward: Plan, backward: Plan) -> Plans:
    """Verifies that the forward pass leaves the initial copies of the backward pass in place.

    The forward pass leaves Q and KV on every rank that ever holds them, and OUT on the rank that
    sends the finished result to its owner. Raises PlanError if a copy is missing, and for different
    partitions, since tokens do not move between the passes.
    """
    pair = Plans(forward, backward)
    if forward.partition != backward.partition:
        raise PlanError("both passes need the same partition")
    for tensor in dict.fromkeys(t for copies in backward.start for t in copies.tensors):
        entries = [copies.flat() for copies in backward.start if tensor in copies.tensors]
        block, rank = map(np.concatenate, zip(*entries, strict=True))
        is_left = _is_left(forward, tensor, block, rank)
        if not is_left.all():
            n = int(np.argmin(is_left))
            raise PlanError(
                f"start: rank {rank[n]} holds {tensor} block {block[n]}, which the forward"
                " pass does not leave there"
            )
    object.__setattr__(backward, FORWARD, forward)
    return pair


def _is_left(forward: Plan, tensor: str, block: Index, rank: Index) -> NDArray[np.bool_]:
    """Returns True for each block of a tensor that a forward pass leaves on its rank: bool [n]."""
    if tensor == "OUT":
        step, source = last_messages(forward)["OUT"]
        return np.asarray((source[block] == rank) | (step[block] == ALWAYS))
    if tensor not in INPUTS["forward"]:
        return np.zeros(len(block), bool)
    held, copies = Table(forward, tensor), Copies(forward, tensor)
    held[held.cells.owned] = True
    for number in range(-1, len(forward.steps) + 1):
        for rows in copies.comes(number):
            held[rows.rank, rows.blocks] = True
    return held.flat[held.cells.flat(rank, block)]


def check_rectangles(plan: Plan, table: Tiles) -> None:
    """Raises PlanError for a rectangle with several head slices on a side, or with dead blocks."""
    for number, attend in plan.attends():
        sides = ("q", attend.q), ("kv", attend.kv)
        for side, blocks in sides if not table.one_slice else ():
            slices = plan.partition.side(side).slice
            differs = (blocks >= 0) & (slices[blocks] != slices[blocks.max(axis=1)][:, None])
            if differs.any():
                rank = attend.rank[np.argmax(differs.any(axis=1))]
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

    Takes one pair of head slices at a time, which bounds memory by the blocks of one slice. If a
    rectangle names a block twice, its live tiles count twice.
    """
    q, kv, previous = plan.partition.q, plan.partition.kv, list[Ints]()
    for q_slice, kv_slice in np.argwhere(table.shared_heads > 0).tolist():
        q_ids, kv_ids = np.flatnonzero(q.slice == q_slice), np.flatnonzero(kv.slice == kv_slice)
        chunks = [q.chunk[q_ids], kv.chunk[kv_ids]]
        if not previous or not all(map(np.array_equal, previous, chunks)):  # mostly the same
            live = np.zeros((len(q_ids) + 1, len(kv_ids) + 1), np.uint8)  # the last: "no block"
            live[:-1, :-1] = table.chunk_kinds[np.ix_(*chunks)] & LIVE
            expected, previous = int(np.count_nonzero(live)), chunks
        state, attended = live.copy(), 0
        indices = _row_numbers(len(q), q_ids), _row_numbers(len(kv), kv_ids)
        for _, node in plan.attends():
            in_slice = kv.slice.take(node.kv.max(axis=1)) == kv_slice
            rows = row_index(in_slice & (q.slice.take(node.q.max(axis=1)) == q_slice))
            sides = zip(indices, (node.q, node.kv), strict=True)
            attended += _mark(state, *(index.take(blocks[rows].T) for index, blocks in sides))
        missing = state == LIVE
        if missing.any():
            a, b = np.argwhere(missing)[0]
            raise PlanError(
                f"q block {q_ids[a]} never attends kv block {kv_ids[b]};"
                f" {int(missing.sum())} live tiles of {expected} are missing"
            )
        if attended > expected:
            _raise_repeated_tile(plan, table)


def _row_numbers(blocks: int, ids: Index) -> Index:
    """Maps each block number to its index in `ids`, or to the index after the last."""
    numbers = np.full(blocks + 1, len(ids), np.intp)  # the last entry is for block -1
    numbers[ids] = np.arange(len(ids))
    return numbers


def _mark(state: Bytes, q: Index, kv: Index) -> int:
    """Marks the tiles of rectangles [a, n] x [b, n] as attended and counts the live tiles.

    Repeated tiles count each time.
    """
    live, flat, width = 0, state.reshape(-1), state.shape[1]
    q = q * width
    height = max(1, CELLS // (len(q) * len(kv)))
    for start in range(0, q.shape[1], height):
        rows = slice(start, start + height)
        tile = q[:, None, rows] + kv[None, :, rows]
        bits = flat[tile]
        live += int(np.count_nonzero(bits & LIVE))
        flat[tile] = bits | ATTENDED
    return live


def _raise_repeated_tile(plan: Plan, table: Tiles) -> None:
    """Raises PlanError for the first live tile that is attended a second time."""
    first = dict[tuple[int, int], tuple[int, int]]()
    for number, attend in plan.attends():
        for rank, qs, kvs in zip(attend.rank.tolist(), attend.q, attend.kv, strict=True):
            for a, b in np.argwhere(table.live(qs[:, None], kvs[None, :])):
                tile = int(qs[a]), int(kvs[b])
                if tile in first:
                    step, first_rank = first[tile]
                    raise PlanError(
                        f"step {number}: rank {rank} attends q block {tile[0]} x kv block"
                        f" {tile[1]}, which rank {first_rank} attends in step {step}"
                    )
                first[tile] = number, rank


def check_buffers(plan: Plan) -> None:
    """Raises PlanError if a rank ever needs more slots for a tensor than `buffers` declares."""
    for tensors in group_tensors(plan):
        declared = [(tensor, slots) for tensor, slots in plan.buffers if tensor in tensors]
        needed, step, rank = _most_slots(plan, tensors[0]) if declared else (0, 0, 0)
        for tensor, allowed in declared:
            if needed > allowed:
                raise PlanError(
                    f"step {step}: rank {rank} needs {needed} slots for {tensor},"
                    f" but buffers allow {allowed}"
                )


def _most_slots(plan: Plan, tensor: str) -> tuple[int, int, int]:
    """Returns the most slots that a rank needs for a tensor, with the first such step and rank."""
    most, first = 0, (0, 0)
    for step, held in held_away(plan, tensor, np.ones(len(plan.side(tensor)), np.int64)):
        needed = int(held.max())
        if needed > most or (needed == most and (step, 0) < first):
            most, first = needed, (step, int(held.argmax()))
    return most, *first
