"""Tree: sequences that share prefixes."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import whole
from ringloom.planner.masks.documents import Documents, whole_lengths
from ringloom.planner.masks.mask import Allowed, Mask, Names, SideName
from ringloom.planner.masks.plain import Causal
from ringloom.planner.masks.regions import Ints, Region, rectangles

MOST_NODES = 2**13  # bounds the table of ancestors, nodes x nodes


@dataclass(frozen=True, repr=False)
class Tree(Mask):
    """A query sees its own node up to its position, and all ancestors of the node entirely.

    Node n has `lengths[n]` tokens, laid out in the order of the nodes, and the parent `parents[n]`,
    None or -1 for a root; nodes may be in any order. Raises PlanError for parents that do not
    exist, and for cycles.
    """

    forms = ("tree:8,4,4/-,0,0", "tree@FILE")
    definition = "own | GRID[place(i, BOUNDS), place(j, BOUNDS)]"
    lists = 2
    example = 'expected JSON {"lengths": [8, 4, 4], "parents": [null, 0, 0]}'

    lengths: tuple[int, ...]
    parents: tuple[int | None, ...]

    def __post_init__(self) -> None:
        lengths = whole_lengths("Tree", self.lengths)
        if len(lengths) > MOST_NODES:
            raise PlanError(f"Tree takes at most {MOST_NODES} nodes, not {len(lengths)}")
        if not isinstance(self.parents, Iterable):
            raise PlanError(
                f"Tree takes a list of parents, such as (None, 0), not {brief(self.parents)}"
            )
        parents = tuple(None if p is None else _parent(p) for p in self.parents)
        if len(parents) != len(lengths):
            raise PlanError(f"Tree has {len(lengths)} lengths but {len(parents)} parents")
        for node, parent in enumerate(parents):
            if parent is not None and parent >= len(lengths):
                raise PlanError(f"Tree node {node} has parent {parent} of {len(lengths)} nodes")
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "parents", parents)
        _from_roots(parents)  # refuses cycles

    def bounds(self) -> Ints:
        """Returns the bounds of nodes: int64 [nodes + 1]."""
        return np.cumsum([0, *self.lengths], dtype=np.int64)

    @property
    def names(self) -> Names:
        own = Causal() & Documents(self.lengths)
        return {"own": own, "BOUNDS": self.bounds(), "GRID": np.pad(ancestors(self.parents), 1)}

    def region(self) -> Region:
        at = self.bounds()
        own = Region.boxes(at[:-1], at[1:], at[:-1], at[1:], hi=0)
        top, bottom, left, right = at[rectangles(ancestors(self.parents))]
        above = Region.boxes(top, bottom, left, right)
        return Region.of(np.concatenate([own.pieces, above.pieces]))

    def origins(self, side: SideName) -> tuple[Ints, Ints]:
        """Returns the first position of each node, and position 0 of its path from the root."""
        begins = self.bounds()[:-1]
        return begins, begins - ancestors(self.parents) @ np.array(self.lengths)

    def check(self, seq: int, kv_seq: int) -> None:
        if sum(self.lengths) != kv_seq:
            raise PlanError(f"nodes sum to {sum(self.lengths)} tokens, but kv_seq is {kv_seq}")


def _parent(value: int) -> int | None:
    """Returns the number of a parent, or None for -1, a root."""
    return number if (number := whole("Tree parent", value, -1)) >= 0 else None


def ancestors(parents: tuple[int | None, ...]) -> Allowed:
    """Returns which nodes (columns) are ancestors of which (rows): bool [nodes, nodes]."""
    table = np.zeros((len(parents), len(parents)), np.bool_)
    for node in _from_roots(parents):
        if (parent := parents[node]) is not None:
            table[node] = table[parent]
            table[node, parent] = True
    return table


def _from_roots(parents: tuple[int | None, ...]) -> list[int]:
    """Returns all nodes, each after its parent; raises PlanError for cycles."""
    children: dict[int | None, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    order = children.get(None, [])
    for node in order:  # the list grows while it is traversed
        order += children.get(node, ())
    if cyclic := {*range(len(parents))} - {*order}:
        raise PlanError(f"Tree node {min(cyclic)} is its own ancestor, or below such a node")
    return order
