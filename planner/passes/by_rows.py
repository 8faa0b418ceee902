r"""by_rows(plan, price)   groups rows that see the same keys into full kernel calls.

          keys
         +---+---+---+---+     whole        one rectangle, cut into calls run by run
    rows |###|   |###|   |     components   one rectangle per connected component of
         |###|   |###|   |                  rows and keys
         |   |\  |   |   |     split        one rectangle for rows that fully see the same
         |   |#\ |   |###|                  keys, one for rows that see the same keys in part
         +---+---+---+---+

The pass cuts blocks at the edges of the mask, then chooses the cheapest option per rectangle.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tables import attended_blocks
from ringloom.planner.analysis.tiles import FULL, LIVE, Tiles, tiles, without_dead_blocks
from ringloom.planner.columns import ragged_index
from ringloom.planner.ir import ACCUMULATORS, Attend, Index, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.passes.buffers import fit_buffers
from ringloom.planner.passes.edges import cut_at_edges
from ringloom.planner.passes.pair_costs import PairCosts
from ringloom.planner.plans import AnyPlans, Plans

Bits = NDArray[np.bool_]
Floats = NDArray[np.float64]
MOST_PARTS = 4096  # of distinct rectangles; the price of a part may take 0.1 ms
LARGEST_GAIN = (
    1 - 1e-6
)  # the largest share of a rectangle's cost that counts as a gain, not rounding


class AttendCosts(Protocol):
    """The costs of the attends of a plan, in any unit."""

    def attend(self, node: Attend) -> Floats:
        """Returns the cost of each rectangle, including merges of the results of calls: [n]."""

    def per_block(self, event: Literal["add"]) -> dict[str, Floats]:
        """Returns, per accumulator, the cost of adding a result to each block; 0 for block -1."""


Price = Callable[[Plan], AttendCosts]


class Parts(NamedTuple):
    """Parts of rectangles: the number of the rectangle, and True for blocks of the part."""

    rectangle: Index  # [parts]
    q: Bits  # [parts, a]
    kv: Bits  # [parts, b]

    def select(self, selection: Bits | Index) -> "Parts":
        """Returns a subset of the parts."""
        return Parts(self.rectangle[selection], self.q[selection], self.kv[selection])

    @staticmethod
    def joined(sets: Sequence["Parts"]) -> "Parts":
        """Concatenates several sets of parts."""
        return Parts(*map(np.concatenate, zip(*sets, strict=True)))


@overload
def by_rows(plans: Plan, price: Price | None = None) -> Plan: ...


@overload
def by_rows(plans: Plans | tuple[Plan, Plan], price: Price | None = None) -> Plans: ...


def by_rows(plans: AnyPlans, price: Price | None = None) -> Plan | Plans:
    """Cuts blocks at the mask's edges, and attends rows that see the same keys in one full call.

    `price(plan)` returns the costs of a plan's attends, as does `rl.attend_price(hardware)`; by
    default, costs count pairs, calls and merged rows. Keeps rectangles that do not get cheaper.
    Returns the plan unchanged if no rectangle gets cheaper, and for masks with more than 2,000
    edges, a million tiles or 4,096 parts. Cuts both plans of a pair if one of them gets cheaper: a
    backward pass with initial copies needs the blocks of the forward pass.
    """
    pair = Plans.of(plans)
    cut = [_cut(plan, price or PairCosts) for plan in pair]
    if not any(gains for _, gains in cut):
        return plans if isinstance(plans, Plan) else pair
    results = {plan.pass_: plan for plan, _ in cut}
    return cut[0][0] if isinstance(plans, Plan) else Plans(**results)


def _cut(plan: Plan, price: Price) -> tuple[Plan, bool]:
    """Returns the plan with cut blocks, and True if any of its rectangles gets cheaper."""
    plan = _without_dead_blocks(plan)
    cut = _without_dead_blocks(cut_at_edges(plan))
    table, nodes = tiles(cut), [a for _, a in cut.attends()]
    if not nodes:
        return cut, False
    before, after = Attend.joined([a for _, a in plan.attends()]), Attend.joined(nodes)
    rows = np.flatnonzero(~table.full(after))
    if not len(rows):
        return cut, False
    first, distinct_of = _distinct_rectangles(cut, after.select(rows))
    originals, pieces = before.select(rows[first]), after.select(rows[first])
    splits = [*_splits(table, pieces)]
    if not 0 < sum(len(split.rectangle) for split in splits) <= MOST_PARTS:
        return cut, False
    parts = _cheapest_parts((plan, originals), (cut, pieces), splits, price)
    if not len(parts.rectangle):
        return cut, False
    return _replace_rectangles(cut, after, rows, distinct_of, parts), True


def _cheapest_parts(
    before: tuple[Plan, Attend], after: tuple[Plan, Attend], splits: list[Parts], price: Price
) -> Parts:
    """Returns the cheapest parts of each rectangle that gets cheaper in parts."""
    (plan, originals), (cut, pieces) = before, after
    candidates = np.unique(np.concatenate([split.rectangle for split in splits]))
    count, costs = len(pieces), price(cut)
    least = np.zeros(count)
    least[candidates] = _cost(plan, price(plan), originals.select(candidates)) * LARGEST_GAIN
    cheapest = list[Parts]()
    for split in splits:
        part_costs = _cost(cut, costs, _make_rectangles(pieces, split.rectangle, split))
        cost = np.bincount(split.rectangle, weights=part_costs, minlength=count)
        gains = (np.bincount(split.rectangle, minlength=count) > 0) & (cost < least)
        least[gains] = cost[gains]
        cheapest = [parts.select(~gains[parts.rectangle]) for parts in cheapest]
        cheapest.append(split.select(gains[split.rectangle]))
    return Parts.joined(cheapest)


def _without_dead_blocks(plan: Plan) -> Plan:
    """Drops dead blocks from rectangles; returns the same plan if there are none."""
    table = tiles(plan)
    steps = [
        tuple(without_dead_blocks(table, node) for node in step.attends) for step in plan.steps
    ]
    if all(a is b for (_, a), b in zip(plan.attends(), chain(*steps), strict=True)):
        return plan
    pairs = zip(steps, plan.steps, strict=True)
    return replace(plan, steps=tuple(Step(attends, step.moves) for attends, step in pairs))


def _distinct_rectangles(plan: Plan, node: Attend) -> tuple[Index, Index]:
    """Returns the rows that differ in positions or heads, and for each row its equal among them."""
    sides = (plan.partition.q, node.q), (plan.partition.kv, node.kv)
    chunks = [np.append(side.chunk, -1)[blocks] for side, blocks in sides]
    rows = np.column_stack([*chunks, tiles(plan).heads(node)])
    _, first, distinct_of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, distinct_of.reshape(-1)


def _cost(plan: Plan, costs: AttendCosts, node: Attend) -> Floats:
    """Returns the cost of each rectangle, including adding its results to accumulators: [n]."""
    cost, merge_costs = costs.attend(node), costs.per_block("add")
    for tensor in ACCUMULATORS[plan.pass_]:
        cost = cost + merge_costs[tensor][attended_blocks(node, tensor)].sum(axis=1)
    return cost


def _splits(table: Tiles, node: Attend) -> Iterator[Parts]:
    """Yields the connected components of rectangles, then a split into full and other parts.

    Omits rectangles that have a single part.
    """
    components, halves = list[Parts](), list[Parts]()
    for rows, kinds in table.kinds(node):
        kinds = kinds.transpose(2, 0, 1)
        live, full = (kinds & LIVE) > 0, (kinds & (LIVE | FULL)) == LIVE | FULL
        components.append(_find_components(live, rows.start))
        halves += [_group_rows(mask, rows.start) for mask in (full, live & ~full)]
    for parts in map(Parts.joined, (components, halves)):
        yield parts.select(np.bincount(parts.rectangle, minlength=len(node))[parts.rectangle] > 1)


def _find_components(live: Bits, start: int) -> Parts:
    """Returns the connected components of tables [n, a, b]; the first rectangle is `start`."""
    no_row = live.shape[1]
    label = np.broadcast_to(np.arange(no_row, dtype=np.int32), live.shape[:2])
    while True:  # give each row the least label of all rows with a common column
        columns = np.where(live, label[:, :, None], no_row).min(axis=1, initial=no_row)
        least = np.where(live, columns[:, None, :], no_row).min(axis=2, initial=no_row)
        if np.array_equal(least, label):
            break
        label = least
    rectangle, root = np.nonzero(label == np.arange(no_row))
    q, kv = (side[rectangle] == root[:, None] for side in (label, columns))
    return Parts(rectangle + start, q, kv)


def _group_rows(full: Bits, start: int) -> Parts:
    """Groups the rows of tables [n, a, b] that see the same columns; omits rows that see none."""
    rectangle, row = np.nonzero(full.any(axis=2))
    keys = np.column_stack([rectangle, np.packbits(full[rectangle, row], axis=1)])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    q = np.zeros((len(first), full.shape[1]), np.bool_)
    q[group.reshape(-1), row] = True
    return Parts(rectangle[first] + start, q, full[rectangle[first], row[first]])


def _make_rectangles(node: Attend, rows: Index, parts: Parts) -> Attend:
    """Returns one rectangle per part, with blocks from the given rows of a node."""
    q, kv = (
        _pack_left(np.where(is_kept, blocks[rows], -1))
        for is_kept, blocks in ((parts.q, node.q), (parts.kv, node.kv))
    )
    return Attend(node.rank[rows], q, kv)


def _pack_left(blocks: Ints) -> Ints:
    """Moves the blocks of each row of a table to the left."""
    order = np.argsort(blocks < 0, axis=1, kind="stable")
    width = int((blocks >= 0).sum(axis=1).max(initial=1))
    return np.take_along_axis(blocks, order[:, :width], axis=1)


def _replace_rectangles(
    plan: Plan, node: Attend, rows: Index, distinct_of: Index, parts: Parts
) -> Plan:
    """Replaces rectangles of the plan by parts.

    node: all rectangles of the plan; rows: the rectangles to replace if they have parts;
    distinct_of: for each of these rows, the number of the rectangle in `parts`.
    """
    parts = parts.select(np.argsort(parts.rectangle, kind="stable"))
    count = np.bincount(parts.rectangle, minlength=int(distinct_of.max()) + 1)
    row, index = ragged_index(count[distinct_of])
    pieces = node.select(rows)  # drops unused table columns
    first_part = (np.cumsum(count) - count)[distinct_of]
    cut = _make_rectangles(pieces, row, parts.select(first_part[row] + index))
    is_kept = np.ones(len(node), np.bool_)
    is_kept[rows[count[distinct_of] > 0]] = False
    numbers = np.concatenate([np.flatnonzero(is_kept), rows[row]])
    order = np.argsort(numbers, kind="stable")
    results, numbers = Attend.joined([node.select(is_kept), cut]).select(order), numbers[order]
    steps, start = list[Step](), 0
    for step in plan.steps:
        first, start = start, start + sum(map(len, step.attends))
        if not is_kept[first:start].all():
            rows_of_step = slice(*np.searchsorted(numbers, [first, start]).tolist())
            step = Step((results.select(rows_of_step),), step.moves)
        steps.append(step)
    return fit_buffers(replace(plan, steps=tuple(steps)))
