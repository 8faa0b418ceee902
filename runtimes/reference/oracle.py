"""Runs any plan in numpy, on virtual ranks that share nothing but messages.

shard     gives every owner and every initial copy its part of q, k, v, dout
run       executes the steps of the plan, without access to the whole arrays
collect   assembles the owners' accumulators in sequence order

Plans contain no sinks: the owner of a query merges its sink into the final out and lse, like a key
with the value 0.
"""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.ir import INPUTS, Plan
from ringloom.planner.partitions import Block
from ringloom.planner.plans import Plans
from ringloom.runtimes.arrays import Array, dtype_of, wide
from ringloom.runtimes.recording.events import Recorded
from ringloom.runtimes.reference.online_softmax import sink_gradient, with_sink
from ringloom.runtimes.reference.virtual_ranks import Arrays, VirtualRanks


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
    """Runs plans on the backend `numpy`, see `ringloom.runtimes.backends`; logs events.

    Complete sums are rounded to the workload's dtype.
    """
    rounded, number = (of(plans.workload.dtype) for of in (dtype_of, wide))
    log, results, given = [] if log is None else log, list[Array](), {"Q": (q,), "KV": (k, v)}
    if plans.forward is not None and function != "backward":
        ranks = _ran(plans.forward, log, given)
        out = collect(ranks, "OUT", 0, (*q.shape[:3], v.shape[-1]))
        lse = collect(ranks, "OUT", 1, q.shape[:3], fill=-np.inf)
        if sinks is not None:
            out, lse = with_sink(out, lse, sinks.astype(lse.dtype))
        lse = lse[..., None]
        results.append(out.astype(rounded))
        if function == "forward":
            return *results, lse
    if plans.backward is not None:
        assert dout is not None
        assert out is not None
        assert lse is not None
        stats = out.astype(number), lse[..., 0].astype(number)
        ranks = _ran(plans.backward, log, given | {"DOUT": (dout,)}, *stats)
        shares = ("DQ", 0, q), ("DKV", 0, k), ("DKV", 1, v)
        gradients = [collect(ranks, t, n, like.shape) for t, n, like in shares]
        if sinks is not None:
            gradients.append(sink_gradient(dout.astype(number), *stats, sinks.astype(number)))
        results += (x.astype(rounded) for x in gradients)
    return tuple(results)


def _ran(plan: Plan, log: list[Recorded], given: dict[str, Arrays], *stats: Array) -> VirtualRanks:
    """Runs a plan on these arrays; returns its ranks and appends its events to the log."""
    ranks = VirtualRanks(plan)
    shard(ranks, given, *stats)
    log.append((plan, ranks.run()))
    return ranks


def shard(ranks: VirtualRanks, given: dict[str, Arrays], *stats: Array) -> None:
    """Gives each rank copies of its shards, so that ranks share no memory."""
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
    """Yields (tensor, block, rank) of every input that is present before step 0."""
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
    """Returns an accumulator in sequence order, with `fill` where its owner has none."""
    whole = np.full(shape, fill, ranks.number)
    for number, block in enumerate(ranks.plan.side(tensor).blocks):
        total = ranks.memory[block.home].sums.get((tensor, number))
        if total is not None:
            whole[:, block.heads.start : block.heads.stop, block.tokens()] = total[part]
    return whole
