"""Whose tokens a value is, and the calls of `tiles` that cut rectangles by the mask's own bands."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codegen.lowered.conditions import SIZES, Domain
from codegen.lowered.owners import along, owner
from codegen.lowered.walk import Rectangles, Walk, seen
from codegen.text import Flags
from planner.errors import PlanError
from planner.ir import Plan
from planner.kernel_calls.calls import CAUSAL
from planner.loops.form import OWN, Ints, Loops
from planner.partitions import Partition, Side

HERE = "rank"


@dataclass(frozen=True)
class Origin:
    """The blocks of a value [steps, ranks, pieces], and whose tokens these are, as text.

    `ranks` is one rank, a range of several along an axis, or "" for all of them.
    """

    blocks: Ints
    ranks: str
    axis: int | None = None

    def positions(self, free: bool, single: bool) -> str:
        """The positions as ranges, or as a `single` one; `free`: any length goes."""
        if not self.ranks:
            whole = f"range({'seq' if free else 'KV_SEQ'})"
            return whole if single else f"({whole},)"
        return f"pieces({'seq, ' * free}{'*' * (self.axis is not None)}{self.ranks})"


def origin(plan: Plan, walked: Walk, side: str, value: str, domain: Domain) -> Origin:
    """The origin of a value: a rank as far away on every rank, or all ranks."""
    owned = walked.tables[side, OWN][:, :, 0]  # any heads: of the same positions
    table = walked.tables.get((side, value))
    if value != OWN and table is not None:
        return gathered(plan.partition.side(side), owned, table[:, :, 0], domain)
    place = owner(plan, walked, side, value, domain)
    return Origin(owned[place.ranks], place.text)


def gathered(side: Side, owned: Ints, blocks: Ints, domain: Domain) -> Origin:
    """All tokens in the order of the sequence, or those of all ranks along an axis."""
    everything = np.broadcast_to(blocks, (len(domain.steps), *blocks.shape))
    first = np.array([c[0].start if len(c) == 1 and c[0].step == 1 else -1 for c in side.chunks])
    starts = first[side.chunk[blocks]]
    if (starts < 0).any() or (np.diff(starts, axis=1) <= 0).any():
        raise PlanError("what is gathered is not in the order of the sequence")
    if blocks.shape[1] == len(side.chunks):
        return Origin(everything, "")
    size = SIZES[2][1]
    members = f"range(inner, RANKS, {size})", f"range(outer * {size}, outer * {size} + {size})"
    for axis, ranks in enumerate(members if len(domain.names.axes) == 2 else ()):
        along_axis = np.sort(along(side.chunk[owned], domain.loops.mesh, axis), axis=1)
        if np.array_equal(along_axis, np.sort(side.chunk[blocks], axis=1)):
            return Origin(everything, ranks, axis)
    raise PlanError("what is gathered is not all that a group of ranks owns")


Attended = dict[int, list[Rectangles]]  # by number of the step


def everything(plan: Plan, q: Origin, kv: Origin, attended: Attended, on: Flags) -> bool:
    """True if ranks attend all that the mask leaves of two values, where they are `on`."""
    for i, (rows, cols) in enumerate(zip(q.blocks, kv.blocks, strict=True)):
        left = seen(plan, (rows, cols)) & on[i][:, None, None]
        for r in attended.get(i, []):
            left[r.rank] &= ~r.attended(plan.partition, (rows[r.rank], cols[r.rank]))
        if left.any():
            return False
    return True


def triangular(plan: Plan, q: Origin, kv: Origin, free: bool) -> tuple[str, ...]:
    """The tokens of two values under a plain causal mask, without those of keys that are all.

    () where they are not those of a rank, or of all ranks, as `positions` has them.
    """
    work, sides = plan.workload, plan.partition
    causal = np.array_equal(work.mask.region().pieces, CAUSAL) and work.seq == work.kv_seq
    if not causal or (q.axis is None and q.ranks != HERE) or kv.axis is not None:
        return ()
    check_pieces(plan)
    seq = ", seq" * free
    tokens = f"positions({HERE}{seq})" if q.axis is None else "tokens"
    if not kv.ranks:
        return (tokens,)
    return (tokens, f"positions({kv.ranks}{seq})") if together(sides) else ()


def check_pieces(plan: Plan) -> None:
    """Raises PlanError unless all pieces of queries are without gaps."""
    if any(len(p) != 1 or p[0].step != 1 for p in plan.partition.q.chunks):
        raise PlanError("queries of a rank are no ranges of the sequence")


def together(sides: Partition) -> bool:
    """True if keys are cut where queries are, and lie on the same ranks."""
    q, kv = (np.unique(np.stack([x.chunk, x.owners]), axis=1) for x in (sides.q, sides.kv))
    return sides.q.chunks == sides.kv.chunks and np.array_equal(q, kv)


def step_of(plan: Plan) -> int:
    """Returns the distance between the tokens of a rank, 0 where they are several whole pieces.

    Raises PlanError where they lie otherwise, or keys do not lie with their queries.
    """
    q, kv = (side.shards(plan.ranks) for side in (plan.partition.q, plan.partition.kv))
    if plan.workload.seq != plan.workload.kv_seq or not all(map(np.array_equal, q, kv)):
        raise PlanError("the keys of some tokens lie on other ranks than the queries")
    steps = {step for own in q for step in np.diff(own).tolist()}
    if len(steps) > 1:
        check_pieces(plan)
        return 0
    return max(steps, default=1)


def in_order(plan: Plan) -> bool:
    """True if each rank owns one of as many equal parts of the sequence, in their order."""
    parts = np.array(plan.partition.q.shards(plan.ranks))
    return bool((parts.ravel() == np.arange(parts.size)).all())


def single_runs(plan: Plan, loops: Sequence[Loops]) -> bool:
    """True if ranks own one range each, and a value has the tokens of one rank or of all."""
    return step_of(plan) > 0 and all(len(form.mesh) == 1 for form in loops)
