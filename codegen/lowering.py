"""lower(plan) -> Program   what both targets emit: a layout, a mask, and one schedule per pass.

    program  ::= Program(name, work, ranks, layout, mask, forward, backward or None)
    layout   ::= Layout(maker, q, kv, q_slices, kv_slices)     who holds which tokens and heads
    maker    ::= Maker(function, grain, group) | None          of `layouts`; None: a table
    mask     ::= Shape(kind, boxes)                            full | causal | boxes
    schedule ::= Schedule(rule, nodes, exchanges)
    rule     ::= a function of `rules` or `head_rules` | None  None: the nodes become a table
    node     ::= Attend | Move | Held                          `rows`: the plan's nodes

Blocks are renumbered to piece * slices + head slice; the pieces of a rank, in order, are its local
tokens. A rule is the schedule as loops over formulas such as (rank - t) mod P with the mask's dead
tiles left out; it is taken only when the rows that it yields are the plan's rows, all of them in
order, so a program's length does not depend on the ranks. Whatever no rule says exactly is kept as
rows. Kernel calls are not listed: `calls` derives them from positions where a program starts, by
the function that `call_rule` names. `order` spells out one rank's program, with slots, and proves
that it cannot deadlock, read a slot too early or overwrite one too soon.
"""

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from codegen import head_rules, layouts, rules
from codegen.exchanges import exchanges
from codegen.layout_recovery import layout_name, lower_layout, spelled
from codegen.program import Kind, Layout, Maker, Node, Pieces, Program, Schedule, Shape
from codegen.rows import Attend, Flags, Held, Ints, Move
from planner.errors import PlanError
from planner.ir import Plan
from planner.masks import Causal, Full, region_of
from planner.workload import Workload

__all__ = ["Layout", "Maker", "Node", "Pieces", "Program", "Schedule", "Shape", "lower"]


def lower(plan: Plan | tuple[Plan, Plan]) -> Program:
    """Lower a forward plan, or a (forward, backward) pair, to what both targets emit.

    Raises PlanError for a lone backward plan, a pair of different plans, and a partition in which
    a rank holds some heads of a token but not others.
    """
    forward, backward = _pair(plan)
    work, ranks = forward.workload, forward.ranks
    layout, numbers = lower_layout(forward)
    mask = lower_mask(work)
    live = layouts.live_pieces(layout.q, layout.kv, work.offset, mask.boxes)
    schedules = [lower_schedule(p, layout, live, numbers) for p in (forward, backward) if p]
    return Program(
        forward.name,
        work,
        ranks,
        layout,
        layout_name(forward, layout),
        mask,
        schedules[0],
        schedules[1] if backward else None,
    )


def _pair(plan: Plan | tuple[Plan, Plan]) -> tuple[Plan, Plan | None]:
    forward, backward = plan if isinstance(plan, tuple) else (plan, None)
    if forward.pass_ != "forward" or (backward and backward.pass_ != "backward"):
        raise PlanError("a program needs a forward plan, or a (forward, backward) pair of plans")
    if backward and (
        (forward.workload, forward.ranks) != (backward.workload, backward.ranks)
        or forward.partition != backward.partition
    ):
        raise PlanError("the forward and the backward plan differ in workload, ranks or partition")
    return forward, backward


def lower_mask(work: Workload) -> Shape:
    """The mask's kind and, where it is neither full nor causal, its boxes."""
    kind: Kind = "full" if work.mask == Full() else "causal" if work.mask == Causal() else "boxes"
    return Shape(kind, region_of(work.mask).pieces)


# ---- schedules


def lower_schedule(plan: Plan, layout: Layout, live: Flags, numbers: tuple[Ints, Ints]) -> Schedule:
    """The pass as a rule where one yields exactly the plan's rows, else as these rows."""
    nodes = list(_nodes(plan, *numbers))
    if layout.maker is None:  # renumbering leaves empty blocks out, and with them some rows
        nodes = [some for node in nodes if (some := without_empty(node))]
    name, parameters = spelled(plan)
    rule = RULES[plan.pass_].get(name) if layout.maker else None
    if parameters.get("keep") and plan.pass_ == "backward" and rule:
        rule = f"kept_{rule}"
    if rule and not _says(run_rule(rule, layout, live, plan), nodes):
        rule = None
    return Schedule(rule, nodes, exchanges(nodes, plan.ranks))


RULES = {
    "forward": {
        "ring": "ring",
        "striped": "ring",
        "zigzag": "ring",
        "burst": "ring",
        "allgather": "gather",
        "balanced": "helpers",
        "usp": "dealt",
        "ulysses": "dealt",
    },
    "backward": {
        "ring": "ring",
        "striped": "ring",
        "zigzag": "ring",
        "burst": "query_ring",
        "allgather": "gather",
        "balanced": "helpers",
        "usp": "dealt",
        "ulysses": "dealt",
    },
}


def _nodes(plan: Plan, q: Ints, kv: Ints) -> Iterator[Node]:
    """A plan's nodes with renumbered blocks; within a step the moves come first, as they are."""
    new = {"q": _renumbering(q), "kv": _renumbering(kv)}
    for held in plan.start:
        yield Held(held.tensors, new[held.side](held.blocks), held.rank)
    for number, step in enumerate(plan.steps):
        for move in step.moves:
            yield Move(number, move.tensors, new[move.side](move.blocks), move.src, move.dst)
        for attend in step.attends:
            yield Attend(number, attend.rank, new["q"](attend.q), new["kv"](attend.kv))


def _renumbering(numbers: Ints) -> Callable[[Ints], Ints]:
    if np.array_equal(numbers[:-1], np.arange(len(numbers) - 1)):
        return lambda blocks: blocks
    return lambda blocks: numbers[blocks]


def run_rule(rule: str, layout: Layout, live: Flags, plan: Plan) -> Iterator[Node]:
    """The rows that a rule yields, exactly as an emitted program will see them."""
    work, ranks, backward = plan.workload, plan.ranks, plan.pass_ == "backward"
    q, kv = layouts.owned(layout.q, ranks), layouts.owned(layout.kv, ranks)
    q_homes, kv_homes = (np.array([home for _, home in side]) for side in (layout.q, layout.kv))
    if rule != "dealt":
        function = cast(Callable[..., Iterator[Node]], getattr(rules, rule))
        return function(ranks, q, kv, q_homes, kv_homes, live, backward)
    shared = layouts.shared_heads(layout.q_slices, layout.kv_slices, work.group)
    q_uses, kv_uses = layouts.slices_used(shared, layout.maker.group if layout.maker else 1)
    homes_and_mask = q_homes, kv_homes, live, backward
    return head_rules.dealt(ranks, q, kv, *homes_and_mask, q_uses, kv_uses, *shared.shape)


def _says(found: Iterator[Node], nodes: list[Node]) -> bool:
    """Whether a rule yields the same rows in the same steps, empty rows and steps left out."""
    expected = iter(nodes)
    there, here = -1, -1  # the steps of the last pair of nodes
    other = next(expected, None)
    for node in found:
        if not _equal(node, other):
            some = without_empty(node)
            if some is None:
                continue
            if not _equal(some, other):
                return False
        if not isinstance(node, Held) and not isinstance(other, Held) and other is not None:
            if (node.step > there) != (other.step > here):
                return False
            there, here = node.step, other.step
        other = next(expected, None)
    return other is None


def _equal(node: Node, other: Node | None) -> bool:
    """Whether two nodes are alike but for their steps."""
    if type(node) is not type(other):
        return False
    first = 0 if isinstance(node, Held) else 1
    return all(map(_same, node[first:], other[first:]))


def _same(one: object, other: object) -> bool:
    """Whether two tables, or two tuples of names, are the same."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape:
            return False
        if one.dtype == other.dtype:
            return one.tobytes() == other.tobytes()
        return bool((one == other).all())
    return one == other


def without_empty(node: Node) -> Node | None:
    """The node without rows that do nothing, as the planner keeps them; None if none is left."""
    match node:
        case Attend(step, rank, q, kv):
            keep = (q >= 0).any(axis=1) & (kv >= 0).any(axis=1)
            kept: Node = Attend(step, rank[keep], _used(q[keep]), _used(kv[keep]))
        case Move(step, tensors, blocks, src, dst):
            keep = (blocks >= 0).any(axis=1) & (src != dst)
            kept = Move(step, tensors, _used(blocks[keep]), src[keep], dst[keep])
        case Held(tensors, blocks, rank):
            keep = (blocks >= 0).any(axis=1)
            kept = Held(tensors, _used(blocks[keep]), rank[keep])
    return kept if keep.any() else None


def _used(blocks: Ints) -> Ints:
    """A table of blocks without the columns that are empty throughout."""
    if not len(blocks) or (blocks[0] >= 0).all():
        return blocks
    used = (blocks >= 0).any(axis=0)
    return blocks if used.all() else blocks[:, used]
