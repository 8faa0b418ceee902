"""verify(plan)   the plan itself, or a PlanError that names step, rank and block.

Hand-overs conserve contributions, so exactly-once is three checks: every live tile is attended
exactly once, no hand-over is double or empty, and nothing ends away from home. With them: inputs
are where moves and attends read them, copies fit the declared buffers, head slices agree.
"""

import numpy as np
from numpy.typing import NDArray

from planner.batches import attends
from planner.errors import PlanError
from planner.ir import ADDS, HELD, READS, TENSORS, Attend, Index, Move, Plan
from planner.liveness import slots
from planner.marks import attended_blocks, places, rowwise
from planner.partitions import Ints
from planner.tiles import Tiles, dead_edges, tiles

NEVER = np.iinfo(np.int32).max
CELLS = 1 << 24  # tiles looked at at a time


def verify(plan: Plan) -> Plan:
    """Prove a plan exact, or raise PlanError; vectorised, memory bounded by ranks x blocks."""
    table = tiles(plan)
    check_rectangles(plan, table)
    check_inputs(plan)
    check_handovers(plan)
    check_tiles_once(plan, table)
    check_buffers(plan)
    vars(plan)["_verified"] = True  # plans never change: nobody need ask again
    return plan


def check_rectangles(plan: Plan, table: Tiles) -> None:
    """One head slice per side of a rectangle, blocks named once, no wholly dead block in it."""
    try:
        for _, _, attend in attends(plan):
            _check_rows(plan, table, 0, attend)
    except PlanError:
        for number, attend in plan.attends():  # which step it is
            _check_rows(plan, table, number, attend)
        raise


def _check_rows(plan: Plan, table: Tiles, number: int, attend: Attend) -> None:
    for side, blocks in (("q", attend.q), ("kv", attend.kv)):
        if blocks.shape[1] == 1:
            continue
        if not table.one_slice:
            slices = np.where(blocks < 0, -1, plan.partition.side(side).slice[blocks])
            high = rowwise(np.maximum, slices)
            mixed = rowwise(np.logical_or, (blocks >= 0) & (slices != high[:, None]))
            _refuse_rows(number, attend, mixed, f"{side} blocks of different head slices")
        _refuse_rows(number, attend, _repeating(blocks), f"a {side} block twice in one rectangle")
    for side, dead in zip(("q", "kv"), dead_edges(table, attend), strict=True):
        if dead.any():
            row, column = np.argwhere(dead)[0]
            block = getattr(attend, side)[row, column]
            raise PlanError(
                f"step {number}: rank {attend.rank[row]} attends {side} block {block},"
                " which has no live tile in that rectangle"
            )


def _repeating(blocks: Ints) -> NDArray[np.bool_]:
    """Which rows [n, w] name a block twice."""
    if blocks.shape[1] == 2:
        repeating: NDArray[np.bool_] = (blocks[:, 0] == blocks[:, 1]) & (blocks[:, 0] >= 0)
        return repeating
    ordered = np.sort(blocks, axis=1)
    return rowwise(np.logical_or, (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0))


def _refuse_rows(number: int, attend: Attend, wrong: NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise PlanError(f"step {number}: rank {attend.rank[row]} attends {what}")


def arrivals(plan: Plan, tensor: str) -> Index:
    """The first step in which each rank can read each block of an input, by `places`.

    0 for what is there from the start, NEVER where it never comes. STATS of a block are also there
    from the step on in which DOUT is, on a rank that holds its OUT. Raises PlanError when a copy
    comes to a rank that has the block already, at any time: a rank gets a block once.
    """
    ready, known = _at_start(plan, tensor)
    flat = ready.reshape(-1)
    for number, move in plan.moves():
        if tensor in move.tensors:
            flat[places(plan, tensor, move.dst, move.blocks)] = number + 1
            known += int((move.blocks >= 0).sum())
    if int((ready[:, :-1] != NEVER).sum()) < known:
        _blame_second(plan, tensor)
    ready[:, -1] = 0  # what block -1 finds
    return flat


def _at_start(plan: Plan, tensor: str) -> tuple[Ints, int]:
    """The table of arrivals without any move, and how many copies should be in it."""
    side = plan.side(tensor)
    ready = np.full((plan.ranks, len(side) + 1), NEVER, np.int32)
    ready[side.homes, np.arange(len(side))] = 0
    known = len(side)
    for held in plan.start:
        if tensor in held.tensors:
            block, rank = held.flat()
            ready[rank, block] = 0
            known += len(block)
    if tensor == "STATS" and (left := [h for h in plan.start if h.tensors == ("OUT",)]):
        dout = arrivals(plan, "DOUT").reshape(ready.shape)
        for held in left:
            block, rank = held.flat()
            ready[rank, block] = np.minimum(ready[rank, block], dout[rank, block])
            known += int((dout[rank, block] != NEVER).sum())
    return ready, known


def _blame_second(plan: Plan, tensor: str) -> None:
    side = plan.side(tensor)
    here = np.zeros((plan.ranks, len(side)), bool)
    here[side.homes, np.arange(len(side))] = True
    brought = [("start", *held.flat()) for held in plan.start if tensor in held.tensors]
    brought += [
        (f"step {n}", *np.array(move.flat())[[0, 2]])
        for n, move in plan.moves()
        if tensor in move.tensors
    ]
    if tensor == "STATS":
        brought += [("start", *h.flat()) for h in plan.start if h.tensors == ("OUT",)]
    for where, block, rank in brought:
        again = here[rank, block]
        if again.any() or (again := _again(rank * len(side) + block)).any():
            at = int(np.argmax(again))
            raise PlanError(
                f"{where}: rank {rank[at]} is sent {tensor} block {block[at]} a second time"
            )
        here[rank, block] = True
    raise PlanError(f"a rank is sent {tensor} that it computes from OUT and DOUT")


def _again(keys: Index) -> NDArray[np.bool_]:
    """Which of the keys occurred before."""
    again = np.ones(len(keys), bool)
    again[np.unique(keys, return_index=True)[1]] = False
    return again


def _twice(keys: Index) -> bool:
    """True if a key occurs more than once."""
    ordered = np.sort(keys)
    return bool((ordered[1:] == ordered[:-1]).any())


def check_inputs(plan: Plan) -> None:
    """Every move and every attend finds its inputs where it reads them."""
    ready = {tensor: arrivals(plan, tensor) for tensor in HELD[plan.pass_]}
    for number, step in enumerate(plan.steps):
        for move in step.moves:
            if move.accumulates:
                continue
            entries = places(plan, move.tensors[0], move.src, move.blocks)
            for tensor in move.tensors:
                if (ready[tensor][entries] > number).any():
                    _blame_absent(plan, tensor, ready[tensor])
        for attend in step.attends:
            _check_reads(plan, number, attend, ready)


def _check_reads(plan: Plan, number: int, attend: Attend, ready: dict[str, Index]) -> None:
    entries = {
        side: places(plan, tensor, attend.rank, attended_blocks(attend, tensor))
        for side, tensor in (("q", "Q"), ("kv", "KV"))
    }
    for tensor in READS[plan.pass_]:
        if (ready[tensor][entries[TENSORS[tensor].side]] > number).any():
            _blame_absent(plan, tensor, ready[tensor])


def _blame_absent(plan: Plan, tensor: str, ready: Index) -> None:
    """Say which move or attend reads what is not there."""
    table = ready.reshape(plan.ranks, -1)
    for number, step in enumerate(plan.steps):
        for move in step.moves:
            if tensor in move.tensors:
                block, src, dst = move.flat()
                _refuse_absent(table, number, block, src, f"{tensor} to rank {{}}", dst)
        for attend in step.attends:
            block, rank = attend.flat(TENSORS[tensor].side)
            _refuse_absent(table, number, block, rank, f"{tensor}")


def _refuse_absent(
    ready: Ints, number: int, block: Index, rank: Index, what: str, dst: Index | None = None
) -> None:
    late = ready[rank, block] > number
    if late.any():
        at = int(np.argmax(late))
        verb = "attends" if dst is None else "sends"
        what = what if dst is None else what.format(dst[at])
        comes = int(ready[rank[at], block[at]])
        when = "never comes there" if comes == NEVER else f"is there from step {comes} only"
        raise PlanError(
            f"step {number}: rank {rank[at]} {verb} {what}, but block {block[at]} {when}"
        )


def check_handovers(plan: Plan) -> None:
    """No message of accumulators is empty, none is handed over twice in a step, all end at home.

    One that is absent counts as zero, as long as another one of its message is there.
    """
    for tensor in ADDS[plan.pass_]:
        side = plan.side(tensor)
        filled = np.zeros((plan.ranks, len(side) + 1), bool)  # one more: what block -1 finds
        bits = filled.reshape(-1)
        for number, step in enumerate(plan.steps):
            handed = [m for m in step.moves if tensor in m.tensors]
            taken = [places(plan, tensor, m.src, m.blocks) for m in handed]
            present = [bits[entries] for entries in taken]
            _refuse_handovers(number, tensor, handed, taken, present)
            for entries in taken:
                bits[entries] = False
            for move, there in zip(handed, present, strict=True):
                to = places(plan, tensor, move.dst, move.blocks)
                bits[to if there.all() else to[there]] = True
            for attend in step.attends:
                blocks = attended_blocks(attend, tensor)
                bits[places(plan, tensor, attend.rank, blocks)] = True
            filled[:, -1] = False
        filled[side.homes, np.arange(len(side))] = False
        if filled.any():
            rank, block = np.argwhere(filled)[0]
            raise PlanError(
                f"end: rank {rank} still holds {tensor} block {block}, whose home is rank"
                f" {side.homes[block]}; {int(filled.sum())} such in all"
            )


def _refuse_handovers(
    number: int,
    tensor: str,
    handed: list[Move],
    taken: list[Index],
    present: list[NDArray[np.bool_]],
) -> None:
    """Raise PlanError for a message without any accumulator, and for one that leaves twice."""
    for move, there in zip(handed, present, strict=True):
        empty = ~rowwise(np.logical_or, there)
        if empty.any():
            row = int(np.argmax(empty))
            blocks = move.blocks[row][move.blocks[row] >= 0].tolist()
            raise PlanError(
                f"step {number}: rank {move.src[row]} hands over {tensor} block"
                f" {', '.join(map(str, blocks))}, has none (left), so the hand-over is empty"
            )
    listed = [entries[m.blocks >= 0] for m, entries in zip(handed, taken, strict=True)]
    keys = np.concatenate(listed) if listed else np.zeros(0, np.intp)
    if _twice(keys):
        first = keys[_again(keys)][0]
        for move, entries in zip(handed, taken, strict=True):
            row, column = np.nonzero((entries == first) & (move.blocks >= 0))
            if len(row):
                raise PlanError(
                    f"step {number}: rank {move.src[row[0]]} hands over {tensor} block"
                    f" {move.blocks[row[0], column[0]]} twice in one step"
                )


def check_tiles_once(plan: Plan, table: Tiles) -> None:
    """Each live (q block, kv block) pair is attended exactly once.

    Counted per pair of head slices, so memory is bounded by the blocks of one slice.
    """
    q, kv = plan.partition.q, plan.partition.kv
    parts = [joined for _, _, joined in attends(plan)]
    for q_slice, kv_slice in np.argwhere(table.shared_heads > 0).tolist():
        q_ids = np.flatnonzero(q.slice == q_slice)
        kv_ids = np.flatnonzero(kv.slice == kv_slice)
        seen = np.zeros((len(q_ids), len(kv_ids)), bool)
        places = _places(len(q), q_ids), _places(len(kv), kv_ids)
        attended = sum(_mark(seen, table, joined, *places) for joined in parts)
        missing = table.live_chunks[np.ix_(q.chunk[q_ids], kv.chunk[kv_ids])]
        due = int(missing.sum())
        missing &= ~seen
        if missing.any():
            a, b = np.argwhere(missing)[0]
            raise PlanError(
                f"q block {q_ids[a]} never attends kv block {kv_ids[b]};"
                f" {int(missing.sum())} live tiles of {due} are missing"
            )
        if attended > int(seen.sum()):
            _blame_twice(plan, table, q_ids, kv_ids)


def _places(blocks: int, ids: Index) -> Index:
    """Block number -> row among `ids`, -1 for blocks of other slices (and for "no block")."""
    place = np.full(blocks + 1, -1, np.intp)  # the last entry is what block -1 finds
    place[ids] = np.arange(len(ids))
    return place


def _mark(
    seen: NDArray[np.bool_], table: Tiles, attend: Attend, place_q: Index, place_kv: Index
) -> int:
    """Mark the live tiles of an attend in `seen`; how many it had, repeats included."""
    marked, flat = 0, seen.reshape(-1)
    height = max(1, CELLS // max(1, attend.q.shape[1] * attend.kv.shape[1]))
    here = (place_q[attend.q] >= 0).any(axis=1) & (place_kv[attend.kv] >= 0).any(axis=1)
    numbers = np.flatnonzero(here)
    for at in range(0, len(numbers), height):
        rows = numbers[at : at + height]
        q, kv = attend.q[rows, :, None], attend.kv[rows, None, :]
        a, b = place_q[q], place_kv[kv]
        live = table.live(q, kv) & (a >= 0) & (b >= 0)
        tile = (a * seen.shape[1] + b)[live]
        flat[tile] = True
        marked += len(tile)
    return marked


def _blame_twice(plan: Plan, table: Tiles, q_ids: Index, kv_ids: Index) -> None:
    first = dict[tuple[int, int], tuple[int, int]]()
    wanted_q, wanted_kv = set(q_ids.tolist()), set(kv_ids.tolist())
    for number, attend in plan.attends():
        for rank, qs, kvs in zip(attend.rank.tolist(), attend.q, attend.kv, strict=True):
            live = table.live(qs[:, None], kvs[None, :])
            for a, b in np.argwhere(live):
                tile = int(qs[a]), int(kvs[b])
                if tile[0] not in wanted_q or tile[1] not in wanted_kv:
                    continue
                if tile in first:
                    step, other = first[tile]
                    raise PlanError(
                        f"step {number}: rank {rank} attends q block {tile[0]} x kv block"
                        f" {tile[1]}, which rank {other} attends in step {step}"
                    )
                first[tile] = number, rank


def check_buffers(plan: Plan) -> None:
    """No rank ever needs more slots for a tensor than `buffers` declares."""
    for tensor, allowed in plan.buffers:
        needed = slots(plan, tensor)
        if needed.size and needed.max() > allowed:
            step, rank = np.unravel_index(int(needed.argmax()), needed.shape)
            raise PlanError(
                f"step {step}: rank {rank} needs {needed.max()} slots for {tensor},"
                f" but buffers allow {allowed}"
            )
