"""Transfers: the messages of one step and way that go on with those of earlier steps.

A transfer goes on if what it sends is what it brought a step ago; else if its shift is as before,
or changes as it did before. It never changes the axis.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

NAMES = "ABCDEFHIJKLMNOPQRSTUVWXYZ"  # G is for exchanges
NEVER = 9


class Way(NamedTuple):
    """A shift per axis, modulo the mesh; one coordinate of an axis; or, for a table, nothing."""

    kind: Literal["shift", "table", "from", "to"]
    by: tuple[int, ...] = ()
    axis: int = 0

    def sizes(self, mesh: tuple[int, ...]) -> tuple[int, ...]:
        """What its numbers are modulo of."""
        return mesh if self.kind == "shift" else mesh[self.axis :][: len(self.by)]


@dataclass
class Transfer:
    """Messages of all steps that have one name."""

    name: str
    tensors: tuple[str, ...]
    way: Way
    last: int
    sources: set[str]
    change: tuple[int, ...] | None = None  # of the shift, per step

    def cost(self, t: int, way: Way, sources: set[str], mesh: tuple[int, ...]) -> int:
        """The lower, the likelier it goes on like that in step t."""
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
        self, t: int, tensors: tuple[str, ...], way: Way, sources: set[str], used: set[str]
    ) -> str:
        """The name for messages of step t that read these names; `used` are taken in this step."""
        free = [x for x in self.known if x.tensors == tensors and x.name not in used]
        costs = [x.cost(t, way, sources, self.mesh) for x in free]
        if not costs or min(costs) == NEVER:
            transfer = Transfer(self._new(), tensors, way, t, sources)
            self.known.append(transfer)
        else:
            transfer = free[costs.index(min(costs))]
            if t == transfer.last + 1 and way.by:
                steps = zip(way.by, transfer.way.by, way.sizes(self.mesh), strict=True)
                transfer.change = tuple((a - b) % n for a, b, n in steps)
            transfer.way, transfer.last, transfer.sources = way, t, sources
        used.add(transfer.name)
        return transfer.name

    def rooted(self, t: int, tensors: tuple[str, ...]) -> bool:
        """True if something went from or to a root in the step before."""
        return any(
            x.way.kind in ("from", "to") and x.tensors == tensors and x.last == t - 1
            for x in self.known
        )

    def _new(self) -> str:
        """A, B, ..., Z, A1, B1, ..."""
        again, letter = divmod(len(self.known), len(NAMES))
        return f"{NAMES[letter]}{again or ''}"
