"""Whose tokens a value is, and the calls of `tiles` that cut rectangles by the mask's own bands."""

from dataclasses import dataclass

import numpy as np

from codegen.layout import layout_of
from codegen.lowered.conditions import SIZES, Domain
from codegen.text import Names, affine
from codegen.torch.walk import Walk
from planner.analysis.tiles import tiles
from planner.errors import PlanError
from planner.ir import Plan
from planner.kernel_calls.calls import CAUSAL
from planner.loops.form import OWN, Ints
from planner.partitions import Side

HERE = "rank"


@dataclass(frozen=True)
class Origin:
    """The blocks of a value [steps, ranks, pieces], and whose tokens these are, as text.

    `ranks` is one rank, a range of `several`, or "" for all of them.
    """

    blocks: Ints
    ranks: str
    several: bool = False

    def positions(self, pieces: bool, length: str) -> str:
        """The range of positions, or the tuple of ranges; `length`: "seq" where any length goes."""
        if not self.ranks:
            every = f"range({length or 'KV_SEQ'})"
            return f"({every},)" if pieces else every
        name = "pieces_of" if self.several else "pieces" if pieces else "piece"
        return f"{name}({self.ranks}{f', {length}' * bool(length)})"


@dataclass(frozen=True)
class Origins:
    """Finds whose tokens values are."""

    plan: Plan
    walked: Walk

    def of(self, side: str, value: str, domain: Domain, names: Names) -> Origin:
        """The origin of a value: a rank as far away on every rank, or all ranks."""
        owned = self.walked.tables[side, "owned"][:, :, 0]  # any heads: of the same positions
        steps, mesh = np.arange(len(domain.steps)), domain.loops.mesh
        if value == OWN:
            return Origin(np.broadcast_to(owned, (len(steps), *owned.shape)), HERE)
        table = self.walked.tables.get((side, value))
        if table is not None:
            return self.gathered(side, table[:, :, 0], domain, names)
        far = [self.distance(side, value, t, domain) for t in domain.steps]
        known = {i: x for i, x in enumerate(far) if x is not None}
        if not known:
            raise PlanError(f"{value} is read before it is there")
        axes = np.flatnonzero(np.any([*known.values()], axis=0))
        if len(axes) > 1:
            raise PlanError(f"{value} travels along several axes")
        axis = int(axes[0]) if len(axes) else 0
        away, by = self.line({i: int(x[axis]) for i, x in known.items()}, mesh[axis], value)
        where = np.stack([domain.loops.coordinates()[:, :-1]] * len(steps))
        where[:, :, axis] += (away + by * steps)[:, None]
        owners = np.ravel_multi_index(tuple(np.moveaxis(where, 2, 0)), mesh, mode="wrap")
        step = names.step if names.at is None else "0"
        place = affine([(1, names.axes[axis]), (by if names.at is None else 0, step)], away)
        return Origin(owned[owners], owner_at(place, axis, len(mesh)))

    def line(self, far: dict[int, int], n: int, value: str) -> tuple[int, int]:
        """Distances modulo n by number of the step, as a first one and what each step adds."""
        (i, first), (j, last) = min(far.items()), max(far.items())
        slope = (last - first) // (j - i) if j > i else 0
        for by in (slope, 1, -1):
            if all((first + by * (k - i) - x) % n == 0 for k, x in far.items()):
                away = (first - by * i) % n
                return away - n * (2 * away > n), by
        raise PlanError(f"the owner of {value} is not told by the step")

    def distance(self, side: str, value: str, t: int, domain: Domain) -> Ints | None:
        """The coordinates from ranks to the owner of their value; None if nobody has it."""
        table = self.walked.aged.get((side, value, t))
        if table is None:
            return None
        blocks, where = table[:, :, 0], domain.loops.coordinates()[:, :-1]
        here = np.flatnonzero((blocks >= 0).any(axis=1))
        owners = self.plan.partition.side(side).homes[blocks[here, 0]]
        owned = self.walked.tables[side, "owned"][owners][:, :, 0]
        far = (where[owners] - where[here]) % domain.loops.mesh
        whole = blocks.shape[1] == owned.shape[1] and (blocks[here] == owned).all()
        if not whole or (far != far[0]).any():
            raise PlanError(f"{value} is not all that one rank owns, as far away on every rank")
        return np.asarray(far[0])

    def gathered(self, side: str, blocks: Ints, domain: Domain, names: Names) -> Origin:
        """All tokens in the order of the sequence, or those of all ranks along an axis."""
        chunks = self.plan.partition.side(side).chunks
        origin = np.broadcast_to(blocks, (len(domain.steps), *blocks.shape))
        first = np.array([c[0].start if len(c) == 1 and c[0].step == 1 else -1 for c in chunks])
        starts = first[self.plan.partition.side(side).chunk[blocks]]
        if (blocks < 0).any() or (starts < 0).any() or (np.diff(starts, axis=1) <= 0).any():
            raise PlanError("what is gathered is not in the order of the sequence")
        if blocks.shape[1] == len(chunks):
            return Origin(origin, "")
        owned = self.walked.tables[side, "owned"][:, :, 0]
        for axis, members in enumerate(members_of(names.axes)):
            there = along(owned, domain.loops.mesh, axis)
            if there.shape == blocks.shape and (np.sort(there, axis=1) == np.sort(blocks)).all():
                return Origin(origin, members, several=True)
        raise PlanError("what is gathered is not what the ranks along an axis own")


def owner_at(place: str, axis: int, axes: int) -> str:
    """The rank at a coordinate along one axis, and at ours along the other."""
    at = f"({place}) % {SIZES[axes][axis]}"
    if axes == 1:
        return at
    return f"{at} * {SIZES[2][1]} + inner" if axis == 0 else f"rank - inner + {at}"


def members_of(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The ranks along each axis, as text."""
    if len(axes) == 1:
        return ("range(RANKS)",)
    _, size = SIZES[2]
    return f"range(inner, RANKS, {size})", f"range(rank - inner, rank - inner + {size})"


def along(owned: Ints, mesh: tuple[int, ...], axis: int) -> Ints:
    """All that the ranks along an axis own: [ranks, pieces of all of them]."""
    cube = np.moveaxis(owned.reshape(*mesh, -1), axis, -2)
    rows = cube.reshape(*cube.shape[:-2], 1, -1).repeat(mesh[axis], axis=-2)
    return np.asarray(np.moveaxis(rows, -2, axis).reshape(len(owned), -1))


Attended = dict[int, list[tuple[Ints, Ints, Ints]]]  # by number of the step: rank, q, kv


def check_everything(plan: Plan, q: Origin, kv: Origin, attended: Attended) -> None:
    """Raise PlanError unless ranks attend all that the mask leaves of two values."""
    live_chunks = tiles(plan).live_chunks
    sides = plan.partition
    for i, (rows, cols) in enumerate(zip(q.blocks, kv.blocks, strict=True)):
        chunks = sides.q.chunk[rows][:, :, None], sides.kv.chunk[cols][:, None, :]
        left = live_chunks[chunks]
        for who, queries, keys in attended.get(i, []):
            on, of = (
                (side.chunk[x[who]][:, :, None] == chunks_at(side, y)[:, None, :]).any(2)
                for side, x, y in ((sides.q, rows, queries), (sides.kv, cols, keys))
            )
            left[who] &= ~(on[:, :, None] & of[:, None, :])
        if left.any():
            raise PlanError("ranks do not attend all that the mask leaves of two values")


def chunks_at(side: Side, blocks: Ints) -> Ints:
    """The positions of blocks by number, -1 for no block."""
    return np.where(blocks >= 0, side.chunk[blocks], -1)


def triangular(plan: Plan, q: Origin, kv: Origin) -> bool:
    """True if gathered keys meet a rank's own queries under a plain causal mask."""
    work = plan.workload
    causal = work.mask.region().pieces.tolist() == CAUSAL
    return causal and work.seq == work.kv_seq and (q.ranks, kv.ranks) == (HERE, "")


def pieces_of(plan: Plan, seq: str = "") -> str:
    """The positions of the pieces that a rank owns, each without gaps."""
    side = plan.partition.q
    if any(len(p) != 1 or p[0].step != 1 for p in side.chunks):
        raise PlanError("pieces of queries that are no ranges")
    own = np.unique(side.chunk[side.owned(plan.ranks)[0]])  # of which heads may be cut, too
    return f"positions(rank{seq}).tensor_split({len(own)})"


def step_of(plan: Plan) -> int:
    """Returns the distance between the tokens of a rank, 0 where they are several whole pieces.

    Raises PlanError where they lie otherwise, or keys do not lie with their queries.
    """
    ranks, sides = range(plan.ranks), (plan.partition.q, plan.partition.kv)
    q, kv = ([side.positions(rank) for rank in ranks] for side in sides)
    if plan.workload.seq != plan.workload.kv_seq or not all(map(np.array_equal, q, kv)):
        raise PlanError("keys do not lie where their queries lie")
    steps = {step for own in q for step in np.diff(own).tolist()}
    if len(steps) > 1:
        pieces_of(plan)
        return 0
    return max(steps, default=1)


def called(plan: Plan, q: Origin, kv: Origin) -> tuple[str, ...]:
    """`tiles` and its arguments for two values; PlanError unless both are ranges of one step."""
    step = step_of(plan)
    if step and (q.several or kv.several):
        raise PlanError("pieces of several ranks that are cut, and that lie far apart")
    if step > 1 and not (q.ranks and kv.ranks) and q.ranks != kv.ranks:
        raise PlanError("queries and keys lie differently far apart")
    length = "seq" if layout_of(plan).multiple else ""
    texts = (x.positions(not step, length) for x in (q, kv))
    return "tiles" if step else "pieces_tiles", *texts
