"""The oracle: any plan, executed in numpy on virtual ranks that share nothing but messages.

shard     every owner and every initial copy gets its part of q, k, v, dout
run       the steps of the plan; the global arrays are out of reach
collect   the accumulators of owners, put together in sequence order

Sinks are no part of a plan: the owner of a query has the whole of its out and lse; there its
sink is merged into them, as keys without values are.
"""

from collections.abc import Iterator

import numpy as np

from planner.ir import INPUTS, Plan
from planner.partitions import Block
from planner.plans import Plans
from runtimes.arrays import Array, dtype_of, wide
from runtimes.recording.events import Recorded
from runtimes.reference.online_softmax import sink_gradient, sunk
from runtimes.reference.virtual_ranks import Arrays, VirtualRanks


def execute(
    plans: Plans,
    function: str,
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    *,
    sinks: Array | None = None,
    log: list[Recorded] | None = None,
) -> Arrays:
    """Runs plans: the backend `numpy`, see `runtimes.backends`; events are added to the log."""
    log = [] if log is None else log
    rounded, results = dtype_of(plans.workload.dtype), list[Array]()
    if plans.forward is not None and function != "backward":
        out, lse = forward(plans.forward, q, k, v, sinks, log)
        results = [out.astype(rounded)]
        lse = lse[..., None]
        if function == "forward":
            return *results, lse
    if plans.backward is not None:
        assert dout is not None
        assert out is not None
        assert lse is not None
        results += backward(plans.backward, q, k, v, dout, out, lse[..., 0], sinks, log)
    return tuple(results)


def forward(
    plan: Plan, q: Array, k: Array, v: Array, sinks: Array | None, log: list[Recorded]
) -> tuple[Array, Array]:
    """out, and lse [batch, heads, seq], as they were accumulated, sinks included."""
    ranks = VirtualRanks(plan)
    shard(ranks, {"Q": (q,), "KV": (k, v)})
    log.append((plan, ranks.run()))
    out = collect(ranks, "OUT", 0, (*q.shape[:3], v.shape[-1]))
    lse = collect(ranks, "OUT", 1, q.shape[:3], fill=-np.inf)
    return (out, lse) if sinks is None else sunk(out, lse, sinks.astype(lse.dtype))


def backward(
    plan: Plan,
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    out: Array,
    lse: Array,
    sinks: Array | None,
    log: list[Recorded],
) -> Arrays:
    """dq, dk, dv and dsinks in the workload's dtype, after a forward pass that gave out and lse."""
    rounded, number = (of(plan.workload.dtype) for of in (dtype_of, wide))
    ranks = VirtualRanks(plan)
    given = {"Q": (q,), "KV": (k, v), "DOUT": (dout,)}
    shard(ranks, given, out.astype(number), lse.astype(number))
    log.append((plan, ranks.run()))
    shares = ("DQ", 0, q), ("DKV", 0, k), ("DKV", 1, v)
    gradients = [collect(ranks, t, n, like.shape) for t, n, like in shares]
    if sinks is not None:
        gradients.append(sink_gradient(*(x.astype(number) for x in (dout, out, lse, sinks))))
    return tuple(x.astype(rounded) for x in gradients)


def shard(ranks: VirtualRanks, given: dict[str, Arrays], *stats: Array) -> None:
    """Cut the shards out of the whole arrays: copies, so that ranks share no memory."""
    for tensor, number, owner in _places(ranks.plan):
        block = ranks.plan.side(tensor).blocks[number]
        if tensor == "OUT":
            arrays: Arrays = tuple(_cut(x, block) for x in stats)
        elif tensor == "STATS":
            (dout,) = (_cut(x, block) for x in given["DOUT"])
            out, lse = (_cut(x, block) for x in stats)
            arrays = lse, np.sum(dout.astype(out.dtype) * out, axis=-1)
        else:
            arrays = tuple(_cut(x, block) for x in given[tensor])
        ranks.memory[owner].keep((tensor, number), arrays)


def _places(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """Yields (tensor, block, rank) of every input that is resident before step 0."""
    for tensor in INPUTS[plan.pass_]:
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
    """One array of an accumulator in sequence order, `fill` where an owner has none."""
    whole = np.full(shape, fill, ranks.number)
    for number, block in enumerate(ranks.plan.side(tensor).blocks):
        total = ranks.memory[block.home].sums.get((tensor, number))
        if total is not None:
            whole[:, block.heads.start : block.heads.stop, block.tokens()] = total[part]
    return whole
