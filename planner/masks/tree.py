"""Tree: sequences that share prefixes."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import require_integer
from ringloom.planner.masks.documents import Documents, require_lengths
from ringloom.planner.masks.mask import Allowed, Mask, Names, SideName
from ringloom.planner.masks.plain import Causal
from ringloom.planner.masks.regions import Ints, Region, rectangles

MOST_NODES = 2**13  # limits the table of ancestors, nodes x nodes


@dataclass(frozen=True, repr=False)
class Tree(Mask):
    """A query sees the keys of its own node up to its position, and all keys of ancestors.

    Node n has `lengths[n]` tokens and the parent `parents[n]`, None or -1 for a root. Tokens are in
    the order of the nodes, which may be any order. Raises PlanError for parents that do not exist,
    and for cycles.
    """

    forms = ("tree:8,4,4/-,0,0", "tree@FILE")
    definition = "own | GRID[place(i, BOUNDS), place(j, BOUNDS)]"
    lists = 2
    example = 'expected JSON {"lengths": [8, 4, 4], "parents": [null, 0, 0]}'

    lengths: tuple[int, ...]
    parents: tuple[int | None, ...]

    def __post_init__(self) -> None:
        lengths = require_lengths("Tree", self.lengths)
        if len(lengths) > MOST_NODES:
            raise PlanError(f"Tree takes at most {MOST_NODES} nodes, not {len(lengths)}")
        if not isinstance(self.parents, Iterable):
            raise PlanError(
                f"Tree takes a list of parents, such as (None, 0), not {brief(self.parents)}"
            )
        parents = tuple(None if p is None else _parent_node(p) for p in self.parents)
        if len(parents) != len(lengths):
            raise PlanError(f"Tree has {len(lengths)} lengths but {len(parents)} parents")
        for node, parent in enumerate(parents):
            if parent is not None and parent >= len(lengths):
                raise PlanError(f"Tree node {node} has parent {parent} of {len(lengths)} nodes")
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "parents", parents)
        _sort_from_roots(parents)  # raises PlanError for cycles

    def bounds(self) -> Ints:
        """Returns the bounds of the nodes: int64 [nodes + 1]."""
        return np.cumsum([0, *self.lengths], dtype=np.int64)

    @property
    def names(self) -> Names:
        own = Causal() & Documents(self.lengths)
        return {"own": own, "BOUNDS": self.bounds(), "GRID": np.pad(ancestors(self.parents), 1)}

    def region(self) -> Region:
        bounds = self.bounds()
        begins, ends = bounds[:-1], bounds[1:]
        nodes = Region.boxes(begins, ends, begins, ends, hi=0)
        top, bottom, left, right = bounds[rectangles(ancestors(self.parents))]
        prefixes = Region.boxes(top, bottom, left, right)
        return Region.of(np.concatenate([nodes.pieces, prefixes.pieces]))

    def origins(self, side: SideName) -> tuple[Ints, Ints]:
        """Returns the first position of each node, and the position that counts as 0.

        Positions count along the path from the root.
        """
        begins = self.bounds()[:-1]
        return begins, begins - ancestors(self.parents) @ np.array(self.lengths)

    def check(self, seq: int, kv_seq: int) -> None:
        if sum(self.lengths) != kv_seq:
            raise PlanError(f"nodes sum to {sum(self.lengths)} tokens, but kv_seq is {kv_seq}")


def _parent_node(value: int) -> int | None:
    """Returns the node number of a parent, or None for -1, a root."""
    return number if (number := require_integer("Tree parent", value, -1)) >= 0 else None


def ancestors(parents: tuple[int | None, ...]) -> Allowed:
    """Returns True for each node (row) and ancestor (column): bool [nodes, nodes]."""
    table = np.zeros((len(parents), len(parents)), np.bool_)
    for node in _sort_from_roots(parents):
        if (parent := parents[node]) is not None:
            table[node] = table[parent]
            table[node, parent] = True
    return table


def _sort_from_roots(parents: tuple[int | None, ...]) -> list[int]:
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
