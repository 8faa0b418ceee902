"""Random plans made from nothing: which blocks visit which ranks, when, and how sums return.

A rank attends queries of the rank `a` places before it with keys of the rank `b` places before it.
Each difference a - b occurs once: so every query meets every key once, whatever a and b are.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import gcd, inf
from random import Random

import numpy as np

from ringloom.planner.ir import ACCUMULATORS, QUERY_SIDE, Attend, Move, Pass, Plan, Step
from ringloom.planner.partitions import Ints
from strategies.meshes import SIDES, Cut, Mesh, Offset


@dataclass(frozen=True)
class Habits:
    """Chances, from 0 to 1, of unusual things in a plan; without any, keys go around a ring."""

    pause: float = 0.0  # messages wait for a step
    late: float = 0.0  # attends wait for a step
    early: float = 0.0  # sums leave before all are there
    away: float = 0.0  # sums of owners leave, too
    back: str = "straight"  # the way of sums
    shuffled: bool = False  # steps do a few things, in any order
    plain: bool = True


def drawn_habits(rng: Random) -> Habits:
    """Most plans have few habits."""
    shuffled = rng.choice([False, True])
    return Habits(
        pause=rng.choice([*[0] * 6, 0.15, 0.3, *[0.3] * 3 * shuffled]),
        late=rng.choice([*[0] * 8, 0.3]),
        early=rng.choice([0, 0, 0, 0.3]),
        away=rng.choice([0, 0, 0, 0.2]),
        back=rng.choice(["straight", "straight", "back", "along", "relay"]),
        shuffled=shuffled,
        plain=False,
    )


def hits(rng: Random, chance: float) -> bool:
    """True with this chance; draws nothing where it is 0."""
    return chance > 0 and rng.randrange(20) < 20 * chance


class Steps:
    """Attends and moves by the step that they are in."""

    def __init__(self) -> None:
        self.attends = defaultdict[int, list[Attend]](list)
        self.moves = defaultdict[int, list[Move]](list)

    def listed(self) -> tuple[Step, ...]:
        numbers = sorted({*self.attends, *self.moves})
        return tuple(Step(tuple(self.attends[t]), tuple(self.moves[t])) for t in numbers)


@dataclass(eq=False)
class Tour:
    """Blocks of one side that visit ranks: from where, and from which step on they are there."""

    mesh: Mesh
    tensors: tuple[str, ...]
    blocks: Ints
    begin: int
    aside: Offset  # another place, to which sums of owners may go and come back
    origin: dict[Offset, Offset] = field(default_factory=dict)
    hops: list["Hop"] = field(default_factory=list)
    ready: dict[Offset, int] = field(default_factory=dict)
    attended: dict[Offset, set[int]] = field(default_factory=lambda: defaultdict(set))
    gathered: set[int] = field(default_factory=set)  # axes

    def __post_init__(self) -> None:
        self.ready[self.mesh.zero] = self.begin

    def at(self, offset: Offset) -> Ints:
        """The blocks that each rank has there."""
        return self.blocks[self.mesh.to([-x for x in offset])]

    def sent(self, tensors: tuple[str, ...], source: Offset, to: Offset) -> Move:
        receiver = self.mesh.to(self.mesh.minus(to, source))
        return Move(tensors, self.at(source), self.mesh.rank, receiver)

    def after(self, at: Offset) -> list[Offset]:
        """Where blocks go on to from there."""
        return [to for to, source in self.origin.items() if source == at]

    def beyond(self, at: Offset) -> set[Offset]:
        """That place, and all to which blocks go on from it."""
        return {at}.union(*map(self.beyond, self.after(at)))


@dataclass(eq=False)
class Hop:
    """Blocks go on from one place to others, in one step."""

    tour: Tour
    to: list[Offset]

    @property
    def ready(self) -> float:
        return self.tour.ready.get(self.tour.origin[self.to[0]], inf)

    def put(self, t: int, steps: Steps) -> None:
        for to in self.to:
            self.tour.ready[to] = t + 1
            steps.moves[t].append(self.tour.sent(self.tour.tensors, self.tour.origin[to], to))


@dataclass(eq=False)
class Rectangle:
    """Queries that have come `a` places meet keys that have come `b` places, in one step."""

    q: Tour
    a: Offset
    kv: Tour
    b: list[Offset]

    @property
    def ready(self) -> float:
        return max(self.q.ready.get(self.a, inf), *(self.kv.ready.get(b, inf) for b in self.b))

    def unread(self, t: int) -> Iterator[Tour]:
        """Tours whose blocks have come from elsewhere, to be read here."""
        for tour, places in ((self.q, [self.a]), (self.kv, self.b)):
            if any(place != tour.mesh.zero and tour.ready.get(place, inf) <= t for place in places):
                yield tour

    def put(self, t: int, steps: Steps) -> None:
        keys = np.hstack([self.kv.at(b) for b in sorted(self.b)])
        steps.attends[t].append(Attend(self.q.mesh.rank, self.q.at(self.a), keys))
        self.q.attended[self.a].add(t)
        for b in self.b:
            self.kv.attended[b].add(t)


# ---- who goes where


def visited(rng: Random, size: int, plain: bool) -> tuple[list[int], list[int]]:
    """Places along an axis that queries and keys visit, in order: all differences occur."""
    stride = 1 if plain else rng.choice([s for s in range(1, size + 1) if gcd(s, size) == 1])
    how = "kv" if plain else rng.choice(["kv", "kv", "q", "both", "both", "groups"])
    last = 0 if how == "kv" else size - 1 if how == "q" else rng.randrange(size)
    q, kv = [*range(last + 1)], [-n for n in range(size - last)]
    if how == "both":  # more than they have to
        kv += [last - size - n for n in range(rng.choice([0, 1, last]))][:last]
    if how == "groups":
        team = rng.choice([n for n in range(1, size + 1) if size % n == 0])
        q, kv = [*range(team)], [*range(0, size, team)]
    return [n * stride % size for n in q], [n * stride % size for n in kv]


def source(rng: Random, how: str, n: int) -> int:
    """The place in a line from which the n-th one gets its blocks."""
    return {"ring": n - 1, "both ways": max(0, n - 2), "tree": rng.randrange(n), "gather": 0}[how]


def extend(rng: Random, tour: Tour, axis: int, order: list[int], how: str) -> None:
    """From wherever the blocks of a tour are they go on along an axis."""
    if how == "gather":
        tour.gathered.add(axis)
    for base in [tour.mesh.zero, *tour.origin]:
        line = [(*base[:axis], place, *base[axis + 1 :]) for place in order]
        tour.origin |= {line[n]: line[source(rng, how, n)] for n in range(1, len(line))}
        together = [line[1:]] if how == "gather" else [[to] for to in line[1:]]
        tour.hops += [Hop(tour, to) for to in together]


def travel(rng: Random, tour: Tour, places: Sequence[list[int]], plain: bool) -> None:
    """Blocks visit all these places, an axis after the other: around, by a tree, or at once."""
    axes = [axis for axis, order in enumerate(places) if len(order) > 1]
    for n, axis in enumerate(rng.sample(axes, len(axes)), 1):
        order, ways = places[axis], ["ring", "ring", "ring", "both ways", "tree"]
        if hits(rng, 0.3 * (not plain)):
            order = [0, *order[:0:-1]]
        if len(order) == tour.mesh.shape[axis] and n == len(axes):
            ways += ["gather"] * 4 * len(axes)
        extend(rng, tour, axis, order, "ring" if plain else rng.choice(ways))


def rectangles(rng: Random, tours: Sequence[Sequence[Tour]]) -> list[Rectangle]:
    """Every query meets every key once; keys of a gathered row are attended together."""
    made, alike = list[Rectangle](), hits(rng, 0.8)
    for q, kv in product(*tours):
        options = defaultdict[Offset, list[tuple[Offset, Offset]]](list)
        for a, b in product([q.mesh.zero, *q.origin], [kv.mesh.zero, *kv.origin]):
            options[q.mesh.minus(a, b)].append((a, b))
        rows = defaultdict[tuple[Offset, Offset], list[Offset]](list)
        for tiles in options.values():
            a, b = tiles[0] if alike else rng.choice(tiles)
            row = tuple(0 if axis in kv.gathered else x for axis, x in enumerate(b))
            rows[a, row].append(b)
        made += [Rectangle(q, a, kv, b) for (a, _), b in rows.items()]
    return made


# ---- when


def lockstep(
    rng: Random, tours: Sequence[Tour], made: list[Rectangle], habits: Habits, steps: Steps
) -> None:
    """Everything happens as soon as it can, or all a step later."""
    for one in tours:
        pace, in_turn = 1 if habits.plain else rng.choice([1, 1, 1, 2]), hits(rng, 0.5)
        t = one.begin
        for hop in one.hops:
            t = int(max(hop.ready, t * in_turn)) + pace - 1 + hits(rng, habits.pause)
            hop.put(t, steps)
            t += 1
    lateness = rng.choice([*[0] * 7, 1])
    for rectangle in made:
        rectangle.put(int(rectangle.ready) + lateness + hits(rng, habits.late), steps)


def shuffled(rng: Random, waiting: list[Hop | Rectangle], t: int, steps: Steps) -> None:
    """A few things happen in every step, of those that can; mostly before more blocks come."""
    tidy = hits(rng, 0.8)
    while waiting:
        ready = [x for x in waiting if x.ready <= t]
        unread = {tour for x in waiting if isinstance(x, Rectangle) for tour in x.unread(t)}
        free = [x for x in ready if isinstance(x, Rectangle) or x.tour not in unread]
        here = free if free and tidy else ready
        for x in rng.sample(here, min(len(here), rng.choice([1, 1, 1, 2, 3]))):
            x.put(t, steps)
            waiting.remove(x)
        t += 1


# ---- how sums return


def returns(rng: Random, tour: Tour, tensor: str, habits: Habits, steps: Steps) -> None:
    """Sums go to where they began: straight, back, along, or by another rank."""
    present, arriving, t = set[Offset](), set[Offset](), 0
    while True:
        present |= arriving | {a for a, times in tour.attended.items() if t - 1 in times}
        coming = {a for a, times in tour.attended.items() if max(times) >= t}
        if not coming and not present - {tour.mesh.zero}:
            return
        arriving = set()
        for a in sorted(present):
            if leaves(rng, tour, a, present | coming, coming, habits):
                to = target(rng, tour, a, habits)
                steps.moves[t].append(tour.sent((tensor,), a, to))
                present.discard(a)
                arriving.add(to)
        t += 1


def leaves(
    rng: Random, tour: Tour, at: Offset, sums: set[Offset], coming: set[Offset], habits: Habits
) -> bool:
    """True if the sums of a place are sent on in this step."""
    if at == tour.mesh.zero and not hits(rng, habits.away):
        return False
    behind = habits.back == "back" and at != tour.mesh.zero
    waits = at in coming or (behind and (tour.beyond(at) - {at}) & sums)
    return not (waits and not hits(rng, habits.early)) and not hits(rng, habits.pause)


def target(rng: Random, tour: Tour, at: Offset, habits: Habits) -> Offset:
    """Where sums go next: never to where they are."""
    zero = tour.mesh.zero
    others = [place for place in (zero, *tour.origin) if place != at]
    if at == zero or (habits.back == "relay" and hits(rng, 0.3)):
        return rng.choice(others or [tour.aside])
    if habits.back == "along" and tour.after(at):
        return tour.after(at)[0]
    return tour.origin.get(at, zero) if habits.back == "back" else zero


# ---- all together


def tours_of(rng: Random, cut: Cut, pass_: Pass, habits: Habits, steps: Steps) -> list[list[Tour]]:
    """The tours of queries and of keys: of all that ranks own, or of its two pieces apart."""
    axes, free = (
        [visited(rng, n, habits.plain) for n in cut.mesh.shape],
        [*range(len(cut.mesh.shape))],
    )
    if cut.shared:
        axes[cut.axis] = ([0], [0])
        free.remove(cut.axis)
    aside = cut.mesh.along(rng.choice(free), 1)
    tours = list[list[Tour]]()
    for n, (side, tensors) in enumerate(zip(SIDES, (QUERY_SIDE[pass_], ("KV",)), strict=True)):
        begin = rng.choice([1, 1, 2]) if cut.exchanges(side) else 0
        if begin:
            steps.moves[begin - 1] += cut.exchange(side, tensors, back=False)
        blocks = cut.here(side)
        apart = blocks.shape[1] == 2 and hits(rng, 0.4 * (not habits.plain))
        parts = [blocks[:, :1], blocks[:, 1:]] if apart else [blocks]
        tours.append([Tour(cut.mesh, tensors, part, begin, aside) for part in parts])
        for tour in tours[-1]:
            travel(rng, tour, [axis[n] for axis in axes], habits.plain)
    return tours


def visits(rng: Random, cut: Cut, pass_: Pass, habits: Habits) -> Plan:
    """A plan of one pass, not verified, with the dead tiles of its mask."""
    mesh, steps = cut.mesh, Steps()
    tours = tours_of(rng, cut, pass_, habits, steps)
    every, made = [*tours[0], *tours[1]], rectangles(rng, tours)
    if habits.shuffled:
        hops = [hop for tour in every for hop in tour.hops]
        shuffled(rng, [*made, *hops], min(tour.begin for tour in every), steps)
    else:
        lockstep(rng, every, made, habits, steps)
    sums = list(zip(SIDES, ACCUMULATORS[pass_], tours, strict=False))
    for _, tensor, several in sums:
        for tour in several:
            returns(rng, tour, tensor, habits, steps)
    last = 1 + max(*steps.moves, *steps.attends)
    for side, tensor, _ in sums:
        if cut.exchanges(side):
            steps.moves[last] += cut.exchange(side, (tensor,), back=True)
    return Plan("visits", cut.work, mesh.ranks, cut.partition, pass_, (), (), steps.listed())
