"""layout_recovery   Plan -> Layout: the function that makes a partition's pieces, or a table."""

from collections.abc import Iterator

import numpy as np

from codegen import layouts
from codegen.program import Layout, Maker, Pieces
from codegen.rows import Ints
from planner.errors import PlanError
from planner.ir import Plan
from planner.partitions import PEER_NAMES, Side, names
from planner.spelling import schedule


def lower_layout(plan: Plan) -> tuple[Layout, tuple[Ints, Ints]]:
    """The layout, and the new number of each old block of both sides (last entry: -1 for -1)."""
    work, sides = plan.workload, plan.partition
    q, q_slices, q_numbers = _pieces(sides.q, work.heads, "query")
    kv, kv_slices, kv_numbers = _pieces(sides.kv, work.kv_heads, "KV")
    _check_heads(q_slices, kv_slices, work.group)
    for maker in _makers(plan):
        made_q = maker.pieces(work.seq, plan.ranks)
        if not _matches(made_q, sides.q):
            continue
        made_kv = maker.pieces(work.kv_seq, plan.ranks)
        if _matches(made_kv, sides.kv):
            layout = Layout(maker, made_q, made_kv, list(sides.q.slices), list(sides.kv.slices))
            return layout, (_identity(sides.q), _identity(sides.kv))
    return Layout(None, q, kv, q_slices, kv_slices), (q_numbers, kv_numbers)


def _check_heads(q: list[range], kv: list[range], group: int) -> None:
    """Raise PlanError where a query slice shares several KV heads of a slice unevenly."""
    for a in q:
        for b in kv:
            low, high = max(a.start, b.start * group), min(a.stop, b.stop * group)
            several = low < high and low // group != (high - 1) // group
            if several and (low % group or high % group):
                raise PlanError(
                    f"query heads {low}..{high - 1} share KV heads of one slice unevenly:"
                    " cut the KV heads where a query slice begins or ends"
                )


def _makers(plan: Plan) -> Iterator[Maker]:
    """What the layout may be: named layouts, with the grain or group that the plan's name tells."""
    _, parameters = spelled(plan)
    grain = int(parameters.get("grain", 1))
    for group in _groups(plan):
        for name in ("contiguous", "zigzag", "striped"):
            yield Maker(name, grain if name == "striped" else 1, group)


def _groups(plan: Plan) -> list[int]:
    """How many ranks may share tokens by heads; first what the plan's name tells."""
    name, parameters = spelled(plan)
    slices = plan.partition.q.slices
    groups = [u for u in range(1, plan.ranks + 1) if plan.ranks % u == 0]
    if len(slices) == 1 and len(plan.partition.kv.slices) == 1:
        return groups
    ring = 1 if name == "ulysses" else int(parameters.get("ring", 0))
    whole = int(parameters.get("ulysses", 0)) or (plan.ranks // ring if ring > 0 else 0)
    # a head slice per rank of a group, unless there are more ranks than heads
    groups = [u for u in groups if min(u, plan.workload.heads) == len(slices)]
    return sorted(groups, key=lambda u: u != whole)


def spelled(plan: Plan) -> tuple[str, dict[str, int | str]]:
    try:
        return schedule(plan.name)
    except PlanError:
        return plan.name, {}


def _matches(made: Pieces, side: Side) -> bool:
    """Whether blocks are the made pieces, each with every head slice, in order."""
    slices = len(side.slices)
    if len(made) * slices != len(side):
        return False
    first = side.blocks[::slices]
    if any(home != block.home for (_, home), block in zip(made, first, strict=True)):
        return False
    if not all(_same_tokens(p, block.positions) for (p, _), block in zip(made, first, strict=True)):
        return False
    chunk = np.repeat(side.chunk[::slices], slices)
    homes = np.repeat(side.homes[::slices], slices)
    dealt = np.tile(np.arange(slices), len(made))
    return bool(
        (side.chunk == chunk).all() and (side.homes == homes).all() and (side.slice == dealt).all()
    )


def _same_tokens(made: tuple[range, ...], positions: tuple[range, ...]) -> bool:
    """Whether two tuples of ranges hold the same positions, however these are cut into ranges."""
    some = tuple(p for p in made if p)
    if some == positions or sum(map(len, some)) != sum(map(len, positions)):
        return some == positions
    return np.array_equal(layouts.positions_of(some), layouts.positions_of(positions))


def _identity(side: Side) -> Ints:
    return np.append(np.arange(len(side)), -1)


def _pieces(side: Side, heads: int, name: str) -> tuple[Pieces, list[range], Ints]:
    """Pieces, head slices, and each block's number piece * slices + slice; -1 for empty blocks."""
    some = [(n, b) for n, b in enumerate(side.blocks) if b.size]
    pieces = list(dict.fromkeys((b.positions, b.home) for _, b in some))
    slices = sorted({b.heads for _, b in some}, key=lambda s: s.start)
    whole = [h for s in slices for h in s] == list(range(heads))
    if len(some) != len(pieces) * len(slices) or not whole:
        raise PlanError(
            f"{name} side: some rank holds only some heads of a token at home, so there are no"
            " shards of local tokens to emit a program for"
        )
    place = {piece: i for i, piece in enumerate(pieces)}
    numbers = np.full(len(side) + 1, -1)
    for number, block in some:
        numbers[number] = place[block.positions, block.home] * len(slices) + slices.index(
            block.heads
        )
    return pieces, slices, numbers


def layout_name(plan: Plan, layout: Layout) -> str:
    """What the layout is called, here and by its peers."""
    maker = layout.maker
    if maker is None:
        return names(plan.workload, plan.ranks, plan.partition)
    name = f"{maker.function} = {PEER_NAMES[maker.function]}" if maker.grain == 1 else "striped"
    grain = f", in stripes of {maker.grain} tokens" if maker.grain > 1 else ""
    group = f", over groups of {maker.group} ranks that deal heads" if maker.group > 1 else ""
    return f"{name}{grain}{group}"
