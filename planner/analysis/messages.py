"""Bytes of messages, and the messages that bring finished results to their owners.

A result (OUT, DQ, DKV) is finished once it contains the contributions of all ranks. Programs round
finished results to the input dtype before they send them to their owners; the log-sum-exp of OUT
stays in the accumulator dtype. All other messages of results have the accumulator dtype.
"""

import numpy as np

from ringloom.planner.analysis.partial_sums import transfers, travelling_accumulators
from ringloom.planner.analysis.tables import Bits, Table, attended_blocks
from ringloom.planner.cached import cached_on_plan
from ringloom.planner.ir import ACCUMULATORS, CARRIED, Index, Move, Plan
from ringloom.planner.partitions import Ints
from ringloom.planner.workload import DTYPES

NEVER, ALWAYS = -1, -2  # instead of a step: never finished in a message; without contributions


def message_bytes(plan: Plan, number: int, move: Move) -> Index:
    """Returns the bytes of each message of a move of step `number`: int64 [rows]."""
    sizes = [block_bytes(plan)[tensor] for tensor in move.tensors]
    size = sum(wide.take(move.blocks.T).sum(axis=0) for wide, _ in sizes)
    if move.accumulates:
        rows = reaches_owner(plan, number, move)
        size[rows] = sum(finished[move.blocks[rows]].sum(axis=1) for _, finished in sizes)
    return np.asarray(size)


@cached_on_plan
def block_bytes(plan: Plan) -> dict[str, Index]:
    """Returns the bytes of each block of each tensor, accumulated and finished: [2, blocks + 1].

    The last entry, 0, is for block -1.
    """
    return {
        name: np.array([[*plan.block_bytes(name, finished), 0] for finished in (False, True)])
        for name in CARRIED[plan.pass_]
    }


def reaches_owner(plan: Plan, number: int, move: Move) -> Bits:
    """Marks the messages in step `number` that bring only finished results, to their owners."""
    if not move.accumulates:
        return np.zeros(len(move), np.bool_)
    step, src = (table.take(move.blocks.T) for table in last_messages(plan)[move.tensors[0]])
    finished = (step == number) & (src == move.src)
    has_no_others = (finished | (step == ALWAYS)).all(axis=0)
    return np.asarray(has_no_others & finished.any(axis=0))


def travelling_sums(plan: Plan) -> dict[str, dict[int, int]]:
    """Counts the messages of each travelling sum by bits per number, most bits first.

    ring, bfloat16, backward      {"DKV": {32: 56, 16: 8}}      the last hop carries finished sums
    """
    size = DTYPES[plan.workload.dtype]
    counts = dict[str, dict[int, int]]()
    for number, move in plan.moves():
        if move.accumulates:
            finished_count = int(reaches_owner(plan, number, move).sum())
            for tensor in move.tensors:
                by_width = counts.setdefault(tensor, {})
                for width, count in (
                    (max(4, size), len(move) - finished_count),
                    (size, finished_count),
                ):
                    by_width[8 * width] = by_width.get(8 * width, 0) + count
    return {
        tensor: {width: count for width, count in by_width.items() if count}
        for tensor, by_width in counts.items()
    }


@cached_on_plan
def last_messages(plan: Plan) -> dict[str, tuple[Ints, Ints]]:
    """Returns, per accumulator, the step and the source of the last message of each block.

    This message brings the finished block to the owner, since all routes end at the owner. int32
    [blocks + 1] each; the last entry is for block -1.
    """
    return {tensor: _find_last_messages(plan, tensor) for tensor in ACCUMULATORS[plan.pass_]}


def _find_last_messages(plan: Plan, tensor: str) -> tuple[Ints, Ints]:
    total = _count_contributions(plan, tensor)
    step_of = np.where(total == 0, ALWAYS, NEVER).astype(np.int32)
    source_of = np.full(len(total), NEVER, np.int32)
    contributions = Table(plan, tensor, np.min_scalar_type(total.max()))
    steps = transfers(plan, tensor, contributions, np.add)
    for number, group in steps if tensor in travelling_accumulators(plan) else ():
        for move, _, parts in group:
            row, column = np.nonzero((parts == total.take(move.blocks.T).T) & (parts > 0))
            block = move.blocks[row, column]
            step_of[block], source_of[block] = number, move.src[row]
    return step_of, source_of


def _count_contributions(plan: Plan, tensor: str) -> Index:
    """Counts the rectangles of all ranks that add to each block: [blocks + 1]; 0 for block -1."""
    total = np.zeros(len(plan.side(tensor)) + 1, np.intp)
    for _, attend in plan.attends():
        np.add.at(total, attended_blocks(attend, tensor).T.reshape(-1), 1)
    total[-1] = 0
    return total
