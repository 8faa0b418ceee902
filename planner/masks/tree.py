"""Tree: sequences that share their beginnings."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import whole
from ringloom.planner.masks.documents import Documents, whole_lengths
from ringloom.planner.masks.mask import Allowed, Mask, Names, SideName
from ringloom.planner.masks.plain import Causal
from ringloom.planner.masks.regions import Ints, Region, rectangles

MOST_NODES = 2**13  # a table tells of any two whether the one is above the other


@dataclass(frozen=True, repr=False)
class Tree(Mask):
    """A query meets its own node up to its position, and every node above its own whole.

    Node n has `lengths[n]` tokens, which stand in the order of the nodes, and `parents[n]` is the
    number of the node above it, None or -1 for a root; nodes come in any order. Raises PlanError
    for parents that are no nodes, and for nodes above themselves.
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
        _from_roots(parents)  # refuses nodes above themselves

    def bounds(self) -> Ints:
        """Returns where nodes begin and end: int64 [nodes + 1]."""
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
        """Returns where nodes begin, and for each where its path from the root begins."""
        begins = self.bounds()[:-1]
        return begins, begins - ancestors(self.parents) @ np.array(self.lengths)

    def check(self, seq: int, kv_seq: int) -> None:
        if sum(self.lengths) != kv_seq:
            raise PlanError(f"nodes sum to {sum(self.lengths)} tokens, not to kv_seq {kv_seq}")


def _parent(value: int) -> int | None:
    """Returns the number of a node, None for -1, which stands for a root."""
    return number if (number := whole("Tree parent", value, -1)) >= 0 else None


def ancestors(parents: tuple[int | None, ...]) -> Allowed:
    """Returns which nodes (columns) are above which (rows): bool [nodes, nodes]."""
    table = np.zeros((len(parents), len(parents)), np.bool_)
    for node in _from_roots(parents):
        if (parent := parents[node]) is not None:
            table[node] = table[parent]
            table[node, parent] = True
    return table


def _from_roots(parents: tuple[int | None, ...]) -> list[int]:
    """Returns all nodes, each after the one above it; raises PlanError where that cannot be."""
    below: dict[int | None, list[int]] = {}
    for node, parent in enumerate(parents):
        below.setdefault(parent, []).append(node)
    order = below.get(None, [])
    for node in order:  # which grows
        order += below.get(node, ())
    if lost := {*range(len(parents))} - {*order}:
        raise PlanError(f"Tree node {min(lost)} is above itself")
    return order
