"""Transfers: chains of messages that continue those of earlier steps.

find_mesh(moves, ranks)   the mesh in which messages are the fewest shifts, along single axes:
                          8 ranks = (8,) or (2, 4) or (4, 2) or (2, 2, 2), rank = mixed radix

A transfer continues if it sends what it brought a step ago; otherwise, if its shift stays the same
or changes by the same amount. It never changes its axis.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from ringloom.planner.loops.form import Ints

NAMES = "ABCDEFHIJKLMNOPQRSTUVWXYZ"  # G is for exchanges
NEVER = 9
AXES = 4  # most axes of a mesh


class Way(NamedTuple):
    """A shift per axis, modulo the mesh; or a root coordinate of an axis."""

    kind: Literal["shift", "root"]
    by: tuple[int, ...]
    axis: int = 0

    def sizes(self, mesh: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the moduli of its numbers."""
        return mesh if self.kind == "shift" else mesh[self.axis :][: len(self.by)]


@dataclass
class Transfer:
    """The messages of all steps that share a name."""

    name: str
    tensors: tuple[str, ...]
    group: int  # of the blocks, if pieces travel separately
    way: Way
    last: int
    sources: set[str]
    change: tuple[int, ...] | None = None  # of the shift, per step

    def cost(self, t: int, way: Way, sources: set[str], mesh: tuple[int, ...]) -> int:
        """Returns a cost: the lower, the likelier the transfer continues this way in step t."""
        next_, chained = t == self.last + 1, self.name in sources
        if way == self.way:
            return 0 if chained else 2 if next_ else 3
        if way[::2] != self.way[::2]:
            return NEVER
        if way.kind == "shift" and [x > 0 for x in way.by] != [x > 0 for x in self.way.by]:
            return NEVER
        alike = next_ and bool(sources & self.sources)
        if self.change is not None:
            steps = zip(self.way.by, self.change, way.sizes(mesh), strict=True)
            expected = tuple((x + d) % n for x, d, n in steps)
            return 1 if alike and way.by == expected else NEVER
        return 4 if alike or (next_ and chained) else NEVER


@dataclass
class Transfers:
    """All transfers so far."""

    mesh: tuple[int, ...]
    known: list[Transfer] = field(default_factory=list)

    def name(
        self, t: int, tensors: tuple[str, ...], group: int, way: Way, sources: set[str]
    ) -> str:
        """Returns the name for messages of step t that read these names, unique in the step."""
        free = [x for x in self.known if (x.tensors, x.group) == (tensors, group) and x.last < t]
        costs = [x.cost(t, way, sources, self.mesh) for x in free]
        if not costs or min(costs) == NEVER:
            suffix, letter = divmod(len(self.known), len(NAMES))  # A, B, ..., Z, A1, B1, ...
            name = f"{NAMES[letter]}{suffix or ''}"
            transfer = Transfer(name, tensors, group, way, t, sources)
            self.known.append(transfer)
        else:
            transfer = free[costs.index(min(costs))]
            if t == transfer.last + 1:
                steps = zip(way.by, transfer.way.by, way.sizes(self.mesh), strict=True)
                transfer.change = tuple((a - b) % n for a, b, n in steps)
            transfer.way, transfer.last, transfer.sources = way, t, sources
        return transfer.name

    def rooted(self, t: int, tensors: tuple[str, ...]) -> bool:
        """Returns True if these tensors had a message from or to a root in the previous step."""
        return any(
            x.way.kind == "root" and x.tensors == tensors and x.last == t - 1 for x in self.known
        )


def find_mesh(moves: Iterable[tuple[Ints, Ints]], ranks: int) -> tuple[int, ...]:
    """Returns the factorisation of `ranks` with the fewest distinct shifts of (src, dst)."""
    codes = (src.astype(np.intp) * ranks + dst for src, dst in moves)
    once = map(np.unique, {pairs.tobytes(): pairs for pairs in codes}.values())
    steps = [*{pairs.tobytes(): pairs for pairs in once}.values()]
    if not steps:
        return (ranks,)
    pairs, number = np.unique(np.concatenate(steps), return_inverse=True)
    steps = np.split(number, np.cumsum([len(step) for step in steps])[:-1])
    meshes, least = sorted(factorisations(ranks, AXES), key=len), inf
    best = meshes[0]
    for mesh in meshes:
        if least > len(steps) and (price := _price(mesh, pairs, steps, least)) < least:
            best, least = mesh, price
    return best


def factorisations(n: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yields all ordered factorisations of n into at most `most` factors above 1; (n,) first."""
    yield (n,)
    for f in range(2, n):
        if n % f == 0 and most > 1:
            yield from ((f, *rest) for rest in factorisations(n // f, most - 1))


def _price(mesh: tuple[int, ...], pairs: Ints, steps: Sequence[Ints], most: float) -> int:
    """Counts distinct shifts per step, up to `most`; shifts along several axes count twice.

    `steps` index `pairs`, which encode (src, dst).
    """
    ranks, total = int(np.prod(mesh)), 0
    where = np.stack(np.unravel_index(np.arange(ranks), mesh))
    shift = (where[:, pairs % ranks] - where[:, pairs // ranks]) % np.array(mesh)[:, None]
    code = np.ravel_multi_index(tuple(shift), mesh)
    price = 1 + (np.count_nonzero(np.unravel_index(np.arange(ranks), mesh), axis=0) > 1)
    for step in steps:
        taken = np.zeros(ranks, np.bool_)
        taken[code[step]] = True
        total += int(price[taken].sum())
        if total >= most:
            break
    return total
