r"""by_rows(plan, price)   groups rows that see the same keys into full kernel calls.

          keys
         +---+---+---+---+     whole        one rectangle, cut into calls run by run
    rows |###|   |###|   |     components   one rectangle per connected component of
         |###|   |###|   |                  rows and keys
         |   |\  |   |   |     split        one rectangle for rows that fully see the same
         |   |#\ |   |###|                  keys, one for rows that see the same in part
         +---+---+---+---+

Blocks are first cut at the edges of the mask. Each rectangle takes the cheapest of the three ways.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tables import attended_blocks
from ringloom.planner.analysis.tiles import FULL, LIVE, Tiles, tiles, without_dead_blocks
from ringloom.planner.columns import ragged
from ringloom.planner.ir import ACCUMULATORS, Attend, Index, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.passes.buffers import fit_buffers
from ringloom.planner.passes.edges import cut_at_edges
from ringloom.planner.passes.pair_costs import PairCosts
from ringloom.planner.plans import AnyPlans, Plans

Bits = NDArray[np.bool_]
Floats = NDArray[np.float64]
MOST = 4096  # parts of distinct rectangles: pricing one may take a tenth of a millisecond
WORTH = 1 - 1e-6  # the largest share of a rectangle's cost that counts as a gain, not rounding


class AttendCosts(Protocol):
    """The costs of the attends of one plan, in any unit."""

    def attend(self, node: Attend) -> Floats:
        """Returns the cost of each rectangle, including the merging of its calls' results: [n]."""

    def per_block(self, event: Literal["add"]) -> dict[str, Floats]:
        """Returns, per accumulator, the cost of adding a result to each block; 0 for block -1."""


Price = Callable[[Plan], AttendCosts]


class Parts(NamedTuple):
    """Parts of rectangles: the rectangle of each part, and masks of its q and kv blocks."""

    of: Index  # [parts]
    q: Bits  # [parts, a]
    kv: Bits  # [parts, b]

    def only(self, which: Bits | Index) -> "Parts":
        """Returns a subset of the parts."""
        return Parts(self.of[which], self.q[which], self.kv[which])

    @staticmethod
    def joined(several: Sequence["Parts"]) -> "Parts":
        """Concatenates several sets of parts."""
        return Parts(*map(np.concatenate, zip(*several, strict=True)))


@overload
def by_rows(given: Plan, price: Price | None = None) -> Plan: ...


@overload
def by_rows(given: Plans | tuple[Plan, Plan], price: Price | None = None) -> Plans: ...


def by_rows(given: AnyPlans, price: Price | None = None) -> Plan | Plans:
    """Cut blocks at the mask's edges, and attend rows that see the same keys by one full call.

    `price(plan)` gives the costs of a plan's attends, as `rl.attend_price(hardware)` does; by
    default, costs count pairs, calls and merged rows. Rectangles that get no cheaper stay whole.
    The plan is returned unchanged if no rectangle gets cheaper, or if there is too much to try
    (more than 2,000 edges of the mask, a million tiles or 4,096 parts). In a pair, both passes are
    cut if one gains: a backward pass with initial copies needs the blocks of the forward pass.
    """
    plans = Plans.of(given)
    cut = [_cut(plan, price or PairCosts) for plan in plans]
    if not any(gains for _, gains in cut):
        return given if isinstance(given, Plan) else plans
    made = [plan for plan, _ in cut]
    return made[0] if isinstance(given, Plan) else Plans(**{one.pass_: one for one in made})


def _cut(plan: Plan, price: Price) -> tuple[Plan, bool]:
    """Returns the plan with its blocks cut, and True if any of its rectangles gets cheaper."""
    plan = _without_dead_blocks(plan)
    cut = _without_dead_blocks(cut_at_edges(plan))
    table, nodes = tiles(cut), [a for _, a in cut.attends()]
    if not nodes:
        return cut, False
    before, after = Attend.joined([a for _, a in plan.attends()]), Attend.joined(nodes)
    rows = np.flatnonzero(~table.full(after))
    if not len(rows):
        return cut, False
    first, alike = _distinct_rectangles(cut, after.only(rows))
    whole, apart = before.only(rows[first]), after.only(rows[first])
    ways = [*_ways(table, apart)]
    if not 0 < sum(len(way.of) for way in ways) <= MOST:
        return cut, False
    parts = _cheapest((plan, whole), (cut, apart), ways, price)
    return (
        (_replace_rectangles(cut, after, rows, alike, parts), True)
        if len(parts.of)
        else (cut, False)
    )


def _cheapest(
    before: tuple[Plan, Attend], after: tuple[Plan, Attend], ways: list[Parts], price: Price
) -> Parts:
    """Returns the cheapest parts of each rectangle that is cheaper in parts than as a whole."""
    (plan, whole), (cut, apart) = before, after
    tried, count = np.unique(np.concatenate([way.of for way in ways])), len(apart)
    least, costs = np.zeros(count), price(cut)
    least[tried] = _cost(plan, price(plan), whole.only(tried)) * WORTH
    chosen = list[Parts]()
    for way in ways:
        each = _cost(cut, costs, _attend(apart, way.of, way))
        cost = np.bincount(way.of, weights=each, minlength=count)
        gains = (np.bincount(way.of, minlength=count) > 0) & (cost < least)
        least[gains] = cost[gains]
        chosen = [*(one.only(~gains[one.of]) for one in chosen), way.only(gains[way.of])]
    return Parts.joined(chosen)


def _without_dead_blocks(plan: Plan) -> Plan:
    """Returns the plan without dead blocks in its rectangles; the plan itself if it has none."""
    table = tiles(plan)
    steps = [
        tuple(without_dead_blocks(table, node) for node in step.attends) for step in plan.steps
    ]
    if all(a is b for (_, a), b in zip(plan.attends(), chain(*steps), strict=True)):
        return plan
    pairs = zip(steps, plan.steps, strict=True)
    return replace(plan, steps=tuple(Step(attends, step.moves) for attends, step in pairs))


def _distinct_rectangles(plan: Plan, node: Attend) -> tuple[Index, Index]:
    """Returns rectangles that differ in positions or heads, and for each row the equal one."""
    sides = (plan.partition.q, node.q), (plan.partition.kv, node.kv)
    chunks = [np.append(side.chunk, -1)[blocks] for side, blocks in sides]
    rows = np.column_stack([*chunks, tiles(plan).heads(node)])
    _, first, alike = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, alike.reshape(-1)


def _cost(plan: Plan, costs: AttendCosts, node: Attend) -> Floats:
    """Returns the cost of each rectangle, including adding its results to others: [n]."""
    cost, adding = costs.attend(node), costs.per_block("add")
    for tensor in ACCUMULATORS[plan.pass_]:
        cost = cost + adding[tensor][attended_blocks(node, tensor)].sum(axis=1)
    return cost


def _ways(table: Tiles, node: Attend) -> Iterator[Parts]:
    """Yields the connected components of rectangles, then their split into full and other parts.

    Leaves out rectangles that are a single part.
    """
    components, split = list[Parts](), list[Parts]()
    for rows, kinds in table.kinds(node):
        kinds = kinds.transpose(2, 0, 1)
        live, full = (kinds & LIVE) > 0, (kinds & (LIVE | FULL)) == LIVE | FULL
        components.append(_components(live, rows.start))
        split += [_rows_alike(seen, rows.start) for seen in (full, live & ~full)]
    for parts in map(Parts.joined, (components, split)):
        yield parts.only(np.bincount(parts.of, minlength=len(node))[parts.of] > 1)


def _components(live: Bits, at: int) -> Parts:
    """Returns the connected components of tables [n, a, b] of the rectangles from `at` on."""
    none = live.shape[1]
    label = np.broadcast_to(np.arange(none, dtype=np.int32), live.shape[:2])
    while True:  # each row takes the least label of the rows that share a column with it
        columns = np.where(live, label[:, :, None], none).min(axis=1, initial=none)
        least = np.where(live, columns[:, None, :], none).min(axis=2, initial=none)
        if np.array_equal(least, label):
            break
        label = least
    of, root = np.nonzero(label == np.arange(none))
    q, kv = (side[of] == root[:, None] for side in (label, columns))
    return Parts(of + at, q, kv)


def _rows_alike(full: Bits, at: int) -> Parts:
    """Groups rows [n, a] that see the same columns [b], if any, of tables as above."""
    of, row = np.nonzero(full.any(axis=2))
    keys = np.column_stack([of, np.packbits(full[of, row], axis=1)])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    q = np.zeros((len(first), full.shape[1]), np.bool_)
    q[group.reshape(-1), row] = True
    return Parts(of[first] + at, q, full[of[first], row[first]])


def _attend(node: Attend, rows: Index, parts: Parts) -> Attend:
    """Returns one rectangle per part, from the blocks of rows of a node."""
    q, kv = (
        _pack_left(np.where(kept, blocks[rows], -1))
        for kept, blocks in ((parts.q, node.q), (parts.kv, node.kv))
    )
    return Attend(node.rank[rows], q, kv)


def _pack_left(blocks: Ints) -> Ints:
    """Returns a table with the blocks of each row moved to the left."""
    order = np.argsort(blocks < 0, axis=1, kind="stable")
    width = int((blocks >= 0).sum(axis=1).max(initial=1))
    return np.take_along_axis(blocks, order[:, :width], axis=1)


def _replace_rectangles(plan: Plan, node: Attend, rows: Index, alike: Index, parts: Parts) -> Plan:
    """Returns the plan with rectangles replaced by parts.

    node: all rectangles of the plan; rows: the rectangles to look at; alike: for each of them, the
    number of the distinct rectangle that has the parts.
    """
    parts = parts.only(np.argsort(parts.of, kind="stable"))
    count = np.bincount(parts.of, minlength=int(alike.max()) + 1)
    which, place = ragged(count[alike])
    apart = node.only(rows)  # only as wide as their parts
    cut = _attend(apart, which, parts.only((np.cumsum(count) - count)[alike][which] + place))
    kept = np.ones(len(node), np.bool_)
    kept[rows[count[alike] > 0]] = False
    number = np.concatenate([np.flatnonzero(kept), rows[which]])
    order = np.argsort(number, kind="stable")
    made, number = Attend.joined([node.only(kept), cut]).only(order), number[order]
    steps, at = list[Step](), 0
    for step in plan.steps:
        first, at = at, at + sum(map(len, step.attends))
        if not kept[first:at].all():
            own = slice(*np.searchsorted(number, [first, at]).tolist())
            step = Step((made.only(own),), step.moves)
        steps.append(step)
    return fit_buffers(replace(plan, steps=tuple(steps)))
