"""Transfers: chains of messages that continue messages of earlier steps.

find_mesh(moves, ranks)   returns the mesh in which messages are the fewest shifts along one axis:
                          8 ranks = (8,) or (2, 4) or (4, 2) or (2, 2, 2), rank = mixed radix

A transfer continues if it sends the blocks that it brought one step ago; otherwise, if its shift
stays the same or changes by the same amount. A transfer never changes its axis.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from ringloom.planner.loops.form import Ints

NAMES = "ABCDEFHIJKLMNOPQRSTUVWXYZ"  # G is for exchanges
NEVER = 9
MOST_AXES = 4  # of a mesh


class Way(NamedTuple):
    """A shift per axis, modulo the mesh; or a root coordinate of an axis."""

    kind: Literal["shift", "root"]
    by: tuple[int, ...]
    axis: int = 0

    def sizes(self, mesh: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the modulus of each number in `by`."""
        return mesh if self.kind == "shift" else mesh[self.axis :][: len(self.by)]


@dataclass
class Transfer:
    """The messages of all steps that have the same name."""

    name: str
    tensors: tuple[str, ...]
    group: int  # of the blocks, if pieces travel separately
    way: Way
    last: int
    sources: set[str]
    change: tuple[int, ...] | None = None  # of the shift, per step

    def cost(self, t: int, way: Way, sources: set[str], mesh: tuple[int, ...]) -> int:
        """Returns the cost of continuing the transfer with this way in step t."""
        is_next, is_chained = t == self.last + 1, self.name in sources
        if way == self.way:
            return 0 if is_chained else 2 if is_next else 3
        if way[::2] != self.way[::2]:
            return NEVER
        if way.kind == "shift" and [x > 0 for x in way.by] != [x > 0 for x in self.way.by]:
            return NEVER
        is_similar = is_next and bool(sources & self.sources)
        if self.change is not None:
            steps = zip(self.way.by, self.change, way.sizes(mesh), strict=True)
            expected = tuple((x + d) % n for x, d, n in steps)
            return 1 if is_similar and way.by == expected else NEVER
        return 4 if is_similar or (is_next and is_chained) else NEVER


@dataclass
class Transfers:
    """All transfers so far."""

    mesh: tuple[int, ...]
    transfers: list[Transfer] = field(default_factory=list)

    def name(
        self, t: int, tensors: tuple[str, ...], group: int, way: Way, sources: set[str]
    ) -> str:
        """Returns the name for messages of step t that read `sources`, unique in the step."""
        candidates = [
            x for x in self.transfers if (x.tensors, x.group) == (tensors, group) and x.last < t
        ]
        costs = [x.cost(t, way, sources, self.mesh) for x in candidates]
        if not costs or min(costs) == NEVER:
            suffix, letter = divmod(len(self.transfers), len(NAMES))  # A, B, ..., Z, A1, B1, ...
            name = f"{NAMES[letter]}{suffix or ''}"
            transfer = Transfer(name, tensors, group, way, t, sources)
            self.transfers.append(transfer)
        else:
            transfer = candidates[costs.index(min(costs))]
            if t == transfer.last + 1:
                steps = zip(way.by, transfer.way.by, way.sizes(self.mesh), strict=True)
                transfer.change = tuple((a - b) % n for a, b, n in steps)
            transfer.way, transfer.last, transfer.sources = way, t, sources
        return transfer.name

    def uses_root(self, t: int, tensors: tuple[str, ...]) -> bool:
        """Returns True if the previous step had messages of these tensors from or to a root."""
        return any(
            x.way.kind == "root" and x.tensors == tensors and x.last == t - 1
            for x in self.transfers
        )


def find_mesh(moves: Iterable[tuple[Ints, Ints]], ranks: int) -> tuple[int, ...]:
    """Returns the factorisation of `ranks` with the fewest distinct shifts of (src, dst)."""
    codes = (src.astype(np.intp) * ranks + dst for src, dst in moves)
    sets = map(np.unique, {pairs.tobytes(): pairs for pairs in codes}.values())
    steps = [*{pairs.tobytes(): pairs for pairs in sets}.values()]
    if not steps:
        return (ranks,)
    pairs, number = np.unique(np.concatenate(steps), return_inverse=True)
    steps = np.split(number, np.cumsum([len(step) for step in steps])[:-1])
    meshes, lowest = sorted(factorisations(ranks, MOST_AXES), key=len), inf
    best = meshes[0]
    for mesh in meshes:
        if lowest > len(steps) and (price := _price(mesh, pairs, steps, lowest)) < lowest:
            best, lowest = mesh, price
    return best


def factorisations(n: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yields the ordered factorisations of n into at most `most` factors above 1; (n,) first."""
    yield (n,)
    for f in range(2, n):
        if n % f == 0 and most > 1:
            yield from ((f, *rest) for rest in factorisations(n // f, most - 1))


def _price(mesh: tuple[int, ...], pairs: Ints, steps: Sequence[Ints], most: float) -> int:
    """Counts distinct shifts per step, up to `most`; shifts along several axes count twice.

    `steps` index `pairs`, which encode (src, dst).
    """
    ranks, total = int(np.prod(mesh)), 0
    coordinates = np.stack(np.unravel_index(np.arange(ranks), mesh))
    shift = coordinates[:, pairs % ranks] - coordinates[:, pairs // ranks]
    code = np.ravel_multi_index(tuple(shift % np.array(mesh)[:, None]), mesh)
    price = 1 + (np.count_nonzero(coordinates, axis=0) > 1)
    for step in steps:
        is_used = np.zeros(ranks, np.bool_)
        is_used[code[step]] = True
        total += int(price[is_used].sum())
        if total >= most:
            break
    return total
