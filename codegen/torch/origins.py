"""Whose tokens a value is, and the calls of `tiles` that cut rectangles by the mask's own bands."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from codegen.text import Names, affine
from codegen.torch.conditions import Domain
from codegen.torch.walk import Walk
from planner.analysis.tiles import tiles
from planner.errors import PlanError
from planner.ir import Plan
from planner.kernel_calls.calls import CAUSAL
from planner.loops.form import OWN, Ints
from planner.masks import region_of

EVERY = "range(KV_SEQ)"  # all positions
HERE = "piece(rank)"  # those of the rank's own tokens


@dataclass(frozen=True)
class Origin:
    """The blocks of a value [steps, ranks, pieces], and the text of its ranges of positions."""

    blocks: Ints
    text: str


@dataclass(frozen=True)
class Origins:
    """Finds whose tokens values are."""

    plan: Plan
    walked: Walk

    def of(self, side: str, value: str, domain: Domain, names: Names) -> Origin:
        """The origin of a value: a rank as far away on every rank, or all ranks."""
        owned = self.walked.tables[side, "owned"]
        if owned.shape[2] > 1 and value == OWN:
            raise PlanError("some of the heads are cut by the mask")
        owned = owned[:, :, 0]
        steps, ranks = len(domain.steps), self.plan.ranks
        if len(domain.loops.mesh) > 1:
            raise PlanError("rectangles that have to be cut, on a mesh")
        if value == OWN:
            return Origin(np.broadcast_to(owned, (steps, *owned.shape)), HERE)
        table = self.walked.tables.get((side, value))
        if table is not None:
            return self.gathered(side, table[:, :, 0], steps)
        far = [self.distance(side, value, t) for t in domain.steps]
        known = [(i, x) for i, x in enumerate(far) if x is not None]
        if not known:
            raise PlanError(f"{value} is read before it is there")
        (i, first), (j, last) = known[0], known[-1]
        slope = (last - first) // (j - i) if j > i else 0
        fits = (
            b
            for b in (slope, 1, -1)
            if all((first + b * (n - i) - x) % ranks == 0 for n, x in known)
        )
        by = next(fits, None)
        if by is None:
            raise PlanError(f"the owner of {value} is not told by the step")
        away = (first - by * i) % ranks
        away -= ranks * (2 * away > ranks)
        shifts = (np.arange(ranks) + away + by * np.arange(steps)[:, None]) % ranks
        step = names.step if names.at is None else "0"
        text = affine([(1, "rank"), (by if names.at is None else 0, step)], away)
        return Origin(owned[shifts], f"piece(({text}) % RANKS)")

    def distance(self, side: str, value: str, t: int) -> int | None:
        """Returns the distance from ranks to the owner of their value; None if nobody has it."""
        table = self.walked.aged.get((side, value, t))
        if table is None:
            return None
        blocks = table[:, :, 0]
        here = np.flatnonzero((blocks >= 0).any(axis=1))
        owners = self.plan.partition.side(side).homes[blocks[here, 0]]
        owned = self.walked.tables[side, "owned"][owners][:, :, 0]
        far = np.unique((owners - here) % self.plan.ranks)
        if len(far) != 1 or blocks.shape[1] != owned.shape[1] or (blocks[here] != owned).any():
            raise PlanError(f"{value} is not all that one rank owns, as far away on every rank")
        return int(far[0])

    def gathered(self, side: str, blocks: Ints, steps: int) -> Origin:
        """All tokens, in sequence order."""
        chunks = self.plan.partition.side(side).chunks
        total = sum(len(p) for c in chunks for p in c)
        ends = [(c[0].start, c[0].stop) for c in chunks if len(c) == 1 and c[0].step == 1]
        order = self.plan.partition.side(side).chunk[blocks]
        row = [ends[i] for i in order[0]] if len(ends) == len(chunks) else []
        whole = row and row[0][0] == 0 and row[-1][1] == total
        if not whole or any(a[1] != b[0] for a, b in pairwise(row)) or (order != order[0]).any():
            raise PlanError("what is gathered is not the sequence in order")
        return Origin(np.broadcast_to(blocks, (steps, *blocks.shape)), EVERY)


Attended = dict[int, list[tuple[Ints, Ints, Ints]]]  # by number of the step: rank, q, kv


def check_everything(plan: Plan, q: Origin, kv: Origin, attended: Attended) -> None:
    """Raise PlanError unless ranks attend all that the mask leaves of two values."""
    live_chunks = tiles(plan).live_chunks
    sides = plan.partition
    for i, (rows, cols) in enumerate(zip(q.blocks, kv.blocks, strict=True)):
        chunks = sides.q.chunk[rows][:, :, None], sides.kv.chunk[cols][:, None, :]
        left = live_chunks[chunks]
        for who, queries, keys in attended.get(i, []):
            on = (rows[who][:, :, None] == queries[:, None, :]).any(2)
            of = (cols[who][:, :, None] == keys[:, None, :]).any(2)
            left[who] &= ~(on[:, :, None] & of[:, None, :])
        if left.any():
            raise PlanError("ranks do not attend all that the mask leaves of two values")


def triangular(plan: Plan, q: Origin, kv: Origin) -> bool:
    """True if gathered keys meet a rank's own queries under a plain causal mask."""
    work = plan.workload
    causal = region_of(work.mask).pieces.tolist() == CAUSAL
    return causal and work.seq == work.kv_seq and (q.text, kv.text) == (HERE, EVERY)


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


def called(plan: Plan, q: Origin, kv: Origin) -> str:
    """The call of `tiles` for two values; PlanError unless both are ranges of one step."""
    step = step_of(plan)
    if step > 1 and EVERY in (q.text, kv.text) and q.text != kv.text:
        raise PlanError("queries and keys lie differently far apart")
    if step:
        return f"tiles({q.text}, {kv.text})"
    texts = (f"({x.text},)" if x.text == EVERY else f"pieces{x.text[5:]}" for x in (q, kv))
    return f"pieces_tiles({', '.join(texts)})"
