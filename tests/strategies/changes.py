"""Random changes of plans, most of which leave them right: the verifier drops the others.

changed(rng, plans, most)   the plans after up to so many changes
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS, Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.layouts.pieces import cut, split
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Block, Ints, Partition, Side
from ringloom.planner.plans import Plans
from ringloom.planner.schedules.grid import relabel
from ringloom.planner.verify import verify, verify_pair

Node = TypeVar("Node", Attend, Move)
AnyNode = TypeVar("AnyNode", Attend, Move, InitialCopy)
Nodes = list[Attend | Move]


def moves_only(nodes: Nodes) -> list[Move]:
    return [node for node in nodes if isinstance(node, Move)]


class Draft:
    """The nodes of a plan, step by step, to be changed."""

    def __init__(self, rng: Random, plan: Plan) -> None:
        self.rng, self.plan, self.ranks, self.start = rng, plan, plan.ranks, plan.start
        self.steps: list[Nodes] = [[*step.attends, *step.moves] for step in plan.steps]

    def made(self) -> Plan:
        """The changed plan, with as many buffers as it takes."""
        steps = (
            Step(tuple(n for n in nodes if isinstance(n, Attend)), tuple(moves_only(nodes)))
            for nodes in self.steps
        )
        return replace(self.plan, start=self.start, buffers=(), steps=tuple(steps))

    def step(self) -> int:
        return self.rng.randrange(len(self.steps))

    def node(self, nodes: list[tuple[int, Node]]) -> tuple[int, Node]:
        """One of these, with its step; PlanError without any."""
        if not nodes:
            raise PlanError("nothing to change")
        return self.rng.choice(nodes)

    def any_node(self) -> tuple[int, Attend | Move]:
        return self.rng.choice([(t, node) for t, nodes in enumerate(self.steps) for node in nodes])

    def attend(self) -> tuple[int, Attend]:
        return self.node([*self.plan.attends()])

    def move(self, *, sums: bool | None = None) -> tuple[int, Move]:
        """A message: of sums, of inputs, or any."""
        return self.node([(t, m) for t, m in self.plan.moves() if sums in (None, m.accumulates)])

    def remove(self, t: int, node: Attend | Move) -> None:
        self.steps[t] = [other for other in self.steps[t] if other is not node]

    def put(self, t: int, *nodes: Attend | Move) -> None:
        """Nodes happen in a step, or in a new one before it."""
        if not 0 <= t < len(self.steps) or self.rng.randrange(3) == 0:
            self.steps.insert(max(0, t), [])
        self.steps[min(max(0, t), len(self.steps) - 1)] += nodes

    def others(self) -> Ints:
        """For each rank another one, as far away on a ring, or in its pair."""
        r, by = np.arange(self.ranks, dtype=np.int32), self.rng.randrange(1, self.ranks)
        pairs = self.ranks % 2 == 0 and self.rng.randrange(3) == 0
        return r ^ 1 if pairs else (r + by) % self.ranks

    def halves(self, node: Attend | Move) -> Iterator[Attend | Move]:
        """A node as two: of its ranks, or of the columns of a table."""
        columns: dict[str, Any] = {
            name: getattr(node, name) for name in node.__slots__ if name != "tensors"
        }
        tables = [name for name, x in columns.items() if x.ndim == 2 and x.shape[1] > 1]
        if tables and self.rng.randrange(3):
            name = self.rng.choice(tables)
            parts = np.split(columns[name], [self.rng.randrange(1, columns[name].shape[1])], axis=1)
            return (replace(node, **dict[str, Any]({name: part})) for part in parts)
        ranks = columns[self.rng.choice([name for name, x in columns.items() if x.ndim == 1])]
        every = self.rng.choice([n for n in (2, self.ranks // 2, self.ranks) if n > 1])
        low = ranks % every < self.rng.randrange(1, every)
        return (node.select(rows) for rows in (low, ~low))


# ---- when


def shift_node(draft: Draft) -> None:
    """A node happens a step earlier, or one or two later."""
    t, node = draft.any_node()
    draft.remove(t, node)
    draft.put(t + draft.rng.choice([-1, 1, 1, 2]), node)


def delay_sums(draft: Draft) -> None:
    t, node = draft.move(sums=True)
    draft.remove(t, node)
    draft.put(draft.rng.randrange(t + 1, len(draft.steps) + 1), node)


def delay_half(draft: Draft) -> None:
    """Of a node one half happens a step later, or beside the other."""
    t, node = draft.any_node()
    first, other = draft.halves(node)
    draft.remove(t, node)
    draft.steps[t].append(first)
    draft.put(t + draft.rng.choice([0, 1, 1]), other)


def split_step(draft: Draft) -> None:
    t = draft.step()
    first = [node for node in draft.steps[t] if draft.rng.randrange(2)]
    draft.steps[t : t + 1] = [first, [n for n in draft.steps[t] if not any(n is x for x in first)]]


def join_steps(draft: Draft) -> None:
    t = draft.step()
    draft.steps[t : t + 2] = [[node for nodes in draft.steps[t : t + 2] for node in nodes]]


def swap_steps(draft: Draft) -> None:
    t = draft.step()
    draft.steps[t : t + 2] = draft.steps[t : t + 2][::-1]


def reorder(draft: Draft) -> None:
    draft.rng.shuffle(draft.steps[draft.step()])


def stretch(draft: Draft) -> None:
    """Every node has a step of its own, sums that leave before attends that add to them."""
    steps = list[Nodes]()
    for nodes in draft.steps:
        sums = [node for node in moves_only(nodes) if node.accumulates]
        rest = sorted((n for n in nodes if n not in sums), key=lambda n: isinstance(n, Move))
        steps += [[node] for node in (*sums, *rest)]
    draft.steps = steps


# ---- which way


def relay(draft: Draft) -> None:
    """A message goes by another rank, from where it may leave later."""
    t, move = draft.move()
    via = draft.others()[draft.rng.choice([move.src, move.dst])]
    draft.remove(t, move)
    draft.steps[t].append(Move(move.tensors, move.blocks, move.src, via))
    draft.put(t + 1, Move(move.tensors, move.blocks, via, move.dst))


def send_from_owner(draft: Draft) -> None:
    """Inputs come from who owns them, whoever sent them."""
    t, move = draft.move(sums=False)
    owners = draft.plan.side(move.tensors[0]).owners[move.blocks.max(axis=1)]
    draft.remove(t, move)
    draft.put(t, Move(move.tensors, move.blocks, owners, move.dst))


def send_unread(draft: Draft) -> None:
    """Others get what ranks own, mostly without a use for it, and may send it on."""
    tensor, t, to = draft.rng.choice(["Q", "KV"]), draft.step(), draft.others()
    own = draft.plan.side(tensor).owned(draft.ranks)
    draft.put(t, Move((tensor,), own, range(draft.ranks), to))
    if draft.rng.randrange(2):
        draft.put(t + 2, Move((tensor,), own, to, to[to]))


def there_and_back(draft: Draft) -> None:
    """Sums, those of owners, too, go to other ranks and come back."""
    t, attend = draft.attend()
    tensor = draft.rng.choice(ACCUMULATORS[draft.plan.pass_])
    rows = draft.rng.choice([attend, next(draft.halves(attend))])
    assert isinstance(rows, Attend)
    blocks, to = rows.kv if tensor == "DKV" else rows.q, draft.others()[rows.rank]
    draft.put(t + 1, Move((tensor,), blocks, rows.rank, to))
    draft.put(t + draft.rng.choice([2, 3]), Move((tensor,), blocks, to, rows.rank))


def send_apart(draft: Draft) -> None:
    """Of several tensors that travel together, one goes by itself."""
    t, move = draft.move(sums=False)
    draft.remove(t, move)
    draft.put(t, Move(move.tensors[:1], move.blocks, move.src, move.dst))
    if move.tensors[1:]:
        draft.put(t, Move(move.tensors[1:], move.blocks, move.src, move.dst))


def hold(draft: Draft) -> None:
    """A backward pass starts with what a message brings; DOUT is still sent."""
    t, move = draft.move(sums=False)
    if draft.plan.pass_ == "forward":
        raise PlanError("a forward pass begins with what ranks own")
    left = {"Q": "Q", "KV": "KV", "STATS": "OUT"}
    held = (InitialCopy((left[x],), move.blocks, move.dst) for x in move.tensors if x in left)
    draft.start += tuple(held)
    draft.remove(t, move)
    if "DOUT" in move.tensors:
        draft.steps[t].append(Move(("DOUT",), move.blocks, move.src, move.dst))


CHANGES: tuple[Callable[[Draft], None], ...] = (
    *[shift_node, swap_steps, delay_half] * 3,
    *[split_step, join_steps, send_unread, delay_sums, there_and_back] * 2,
    *(stretch, reorder, relay, send_from_owner, send_apart, hold, hold),
)


def change(rng: Random, plan: Plan) -> Plan:
    """The plan after one change; PlanError where it has nothing to change."""
    draft = Draft(rng, plan)
    rng.choice(CHANGES)(draft)
    return draft.made()


# ---- what ranks own


def halve(rng: Random, plans: Plans) -> Iterator[Plan]:
    """Every block of a side is two, of its tokens or of its heads."""
    finer, by_heads = rng.choice([("q",), ("kv",), ("q", "kv")]), rng.randrange(3) == 0

    def two(block: Block) -> Iterator[Block]:
        if not by_heads:
            return (replace(block, positions=part) for part in split(block.positions, 2))
        parts = (block.heads[part.start : part.stop] for part in cut(len(block.heads), 2))
        return (replace(block, heads=part) for part in parts)

    def table(blocks: Ints, side: str) -> Ints:
        if side not in finer:
            return blocks
        halves = np.where(blocks < 0, -1, 2 * blocks), np.where(blocks < 0, -1, 2 * blocks + 1)
        return np.stack(halves, axis=2).reshape(len(blocks), -1)

    def node(old: AnyNode) -> AnyNode:
        if isinstance(old, Attend):
            return Attend(old.rank, table(old.q, "q"), table(old.kv, "kv"))
        if isinstance(old, Move):
            return Move(old.tensors, table(old.blocks, old.side), old.src, old.dst)
        return InitialCopy(old.tensors, table(old.blocks, old.side), old.rank)

    def side(plan: Plan, name: SideName) -> Side:
        old = plan.partition.side(name)
        return Side(tuple(x for b in old.blocks for x in two(b))) if name in finer else old

    for plan in plans:
        steps = (Step(tuple(map(node, s.attends)), tuple(map(node, s.moves))) for s in plan.steps)
        yield replace(
            plan,
            partition=Partition(side(plan, "q"), side(plan, "kv")),
            start=tuple(map(node, plan.start)),
            buffers=(),
            steps=tuple(steps),
        )


def renumber(rng: Random, plans: Plans) -> Iterator[Plan]:
    """Ranks change places: turned, the other way around, by columns of a mesh, or freely."""
    ranks, by = np.arange(plans.ranks, dtype=np.int32), rng.randrange(plans.ranks)
    rows = rng.choice([n for n in range(1, plans.ranks + 1) if plans.ranks % n == 0])
    columns, freely = (
        ranks.reshape(rows, -1).T.reshape(-1),
        np.array(rng.sample([*ranks], len(ranks))),
    )
    turned = [(ranks + by) % len(ranks), (by - ranks) % len(ranks)]
    to = rng.choice([*turned, columns, freely])
    return (relabel(replace(plan, buffers=()), to) for plan in plans)


def verified(made: Iterator[Plan]) -> Plans:
    forward, *more = map(verify, made)
    return verify_pair(forward, *more) if more else Plans(forward)


def changed(rng: Random, plans: Plans, most: int) -> Plans:
    """The plans after a few changes: those that the verifier lets pass."""
    for _ in range(1 + rng.randrange(most) if all(one.steps for one in plans) else 0):
        at = rng.randrange(len(plans))
        with suppress(PlanError):
            if rng.randrange(12):
                new = (change(rng, one) if n == at else one for n, one in enumerate(plans))
                plans = verified(new)
            else:
                plans = verified(rng.choice([halve, renumber])(rng, plans))
    return plans
