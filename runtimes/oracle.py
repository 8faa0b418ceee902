"""The oracle: any plan, executed in numpy on virtual ranks that share nothing but messages.

deal      every home, and every copy that is there from the start, gets its part of q, k, v, dout
run       the steps of the plan; the global arrays are out of reach
collect   the accumulators at home, put together in sequence order
"""

from collections.abc import Iterator

import numpy as np

from planner.errors import PlanError
from planner.ir import READS, Plan
from planner.partitions import Block
from planner.planning import Pair, backward_of
from planner.verify import ensure_verified
from runtimes import dense
from runtimes.arrays import Array, check_arrays, dtype_of, wide
from runtimes.pairs import passes
from runtimes.virtual_ranks import Arrays, VirtualRanks

Results = tuple[Array, Array, Array, Array]


def run(
    plan: Plan | Pair, q: Array, k: Array, v: Array, dout: Array | None = None
) -> Array | Results:
    """Run a plan on arrays in sequence order: out, or with `dout` (out, dq, dk, dv).

    Arrays are [batch, heads, seq, head_dim] of the workload's dtype, results too. `plan` is a
    forward plan, a (forward, backward) pair or a backward plan. With `dout`, a forward plan alone
    is followed by its adjoint, and a backward plan alone takes out and lse from dense attention.
    Raises PlanError for arrays that do not fit and where data is not where the plan reads it.
    """
    plans = passes(plan)
    if dout is None:
        if "forward" not in plans:
            raise PlanError("a backward plan alone needs dout")
        return forward(plans["forward"], q, k, v)[0]
    work = next(iter(plans.values())).workload
    check_arrays(work, q=q, k=k, v=v, dout=dout)
    if "backward" not in plans:
        plans["backward"] = backward_of(plans["forward"])
    if "forward" in plans:
        out, lse = _forward(plans["forward"], q, k, v)
    else:
        out, lse = dense.forward(work, q, k, v)
    gradients = backward(plans["backward"], q, k, v, dout, out, lse)
    return out.astype(dtype_of(work.dtype)), *gradients


def forward(plan: Plan, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Run a forward plan: out in the workload's dtype, and lse [batch, heads, seq], not rounded.

    Arrays and errors as in `run`.
    """
    if plan.pass_ != "forward":
        raise PlanError(f"{plan.name} is a {plan.pass_} plan, not a forward plan")
    check_arrays(plan.workload, q=q, k=k, v=v)
    out, lse = _forward(ensure_verified(plan), q, k, v)
    return out.astype(dtype_of(plan.workload.dtype)), lse


def backward(
    plan: Plan, q: Array, k: Array, v: Array, dout: Array, out: Array, lse: Array
) -> tuple[Array, Array, Array]:
    """Run a backward plan after a forward pass that gave out and lse: (dq, dk, dv).

    The gradients are rounded to the workload's dtype. Arrays and errors as in `run`.
    """
    if plan.pass_ != "backward":
        raise PlanError(f"{plan.name} is a {plan.pass_} plan, not a backward plan")
    check_arrays(plan.workload, q=q, k=k, v=v, dout=dout)
    number = wide(plan.workload.dtype)
    given = {"Q": (q,), "KV": (k, v), "DOUT": (dout,)}
    ranks = VirtualRanks(ensure_verified(plan))
    deal(ranks, given, out.astype(number), lse.astype(number))
    ranks.run()
    rounded = dtype_of(plan.workload.dtype)
    shares = ("DQ", 0, q), ("DKV", 0, k), ("DKV", 1, v)
    dq, dk, dv = (collect(ranks, t, n, like.shape).astype(rounded) for t, n, like in shares)
    return dq, dk, dv


def _forward(plan: Plan, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """out and lse as they were accumulated."""
    ranks = VirtualRanks(plan)
    deal(ranks, {"Q": (q,), "KV": (k, v)})
    ranks.run()
    out = collect(ranks, "OUT", 0, q.shape)
    return out, collect(ranks, "OUT", 1, q.shape[:3], fill=-np.inf)


def deal(ranks: VirtualRanks, given: dict[str, Arrays], *stats: Array) -> None:
    """Cut the shards out of the whole arrays: copies, so that ranks share no memory."""
    for tensor, number, home in _places(ranks.plan):
        block = ranks.plan.side(tensor).blocks[number]
        if tensor == "OUT":
            arrays: Arrays = tuple(_cut(x, block) for x in stats)
        elif tensor == "STATS":
            (dout,) = (_cut(x, block) for x in given["DOUT"])
            out, lse = (_cut(x, block) for x in stats)
            arrays = lse, np.sum(dout.astype(out.dtype) * out, axis=-1)
        else:
            arrays = tuple(_cut(x, block) for x in given[tensor])
        ranks.memory[home].keep((tensor, number), arrays)


def _places(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """(tensor, block, rank) of every input that is there before step 0."""
    for tensor in READS[plan.pass_]:
        for number, block in enumerate(plan.side(tensor).blocks):
            yield tensor, number, block.home
    for held in plan.start:
        for number, rank in zip(*(column.tolist() for column in held.flat()), strict=True):
            yield from ((tensor, number, rank) for tensor in held.tensors)


def _cut(whole: Array, block: Block) -> Array:
    return whole[:, block.heads.start : block.heads.stop, block.tokens()]


def collect(
    ranks: VirtualRanks, tensor: str, part: int, shape: tuple[int, ...], fill: float = 0.0
) -> Array:
    """One array of an accumulator in sequence order, `fill` where a home has none."""
    whole = np.full(shape, fill, ranks.number)
    for number, block in enumerate(ranks.plan.side(tensor).blocks):
        found = ranks.memory[block.home].sums.get((tensor, number))
        if found is not None:
            whole[:, block.heads.start : block.heads.stop, block.tokens()] = found[part]
    return whole
