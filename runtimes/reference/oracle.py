"""Runs any plan in numpy, on virtual ranks that share no memory.

shard     copies the parts of q, k, v and dout to their owners and to initial copies
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
from ringloom.runtimes.arrays import Array, dtype_of, sum_dtype_of
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
    """Runs plans on the backend `numpy`, see `ringloom.runtimes.backends`; adds events to `log`.

    Complete sums are rounded to the workload's dtype.
    """
    dtype, sum_dtype = dtype_of(plans.workload.dtype), sum_dtype_of(plans.workload.dtype)
    log, results, arrays = [] if log is None else log, list[Array](), {"Q": (q,), "KV": (k, v)}
    if plans.forward is not None and function != "backward":
        ranks = _run(plans.forward, log, arrays)
        out = collect(ranks, "OUT", 0, (*q.shape[:3], v.shape[-1]))
        lse = collect(ranks, "OUT", 1, q.shape[:3], fill=-np.inf)
        if sinks is not None:
            out, lse = with_sink(out, lse, sinks.astype(lse.dtype))
        lse = lse[..., None]
        results.append(out.astype(dtype))
        if function == "forward":
            return *results, lse
    if plans.backward is not None:
        assert dout is not None
        assert out is not None
        assert lse is not None
        stats = out.astype(sum_dtype), lse[..., 0].astype(sum_dtype)
        ranks = _run(plans.backward, log, arrays | {"DOUT": (dout,)}, *stats)
        outputs = ("DQ", 0, q), ("DKV", 0, k), ("DKV", 1, v)
        gradients = [collect(ranks, tensor, part, x.shape) for tensor, part, x in outputs]
        if sinks is not None:
            gradients.append(sink_gradient(dout.astype(sum_dtype), *stats, sinks.astype(sum_dtype)))
        results += (x.astype(dtype) for x in gradients)
    return tuple(results)


def _run(plan: Plan, log: list[Recorded], whole: dict[str, Arrays], *stats: Array) -> VirtualRanks:
    """Runs a plan on whole arrays; returns its ranks and appends its events to the log."""
    ranks = VirtualRanks(plan)
    shard(ranks, whole, *stats)
    log.append((plan, ranks.run()))
    return ranks


def shard(ranks: VirtualRanks, whole: dict[str, Arrays], *stats: Array) -> None:
    """Copies its shards to each rank, so that ranks share no memory; `stats`: out and lse."""
    for tensor, number, rank in _initial_blocks(ranks.plan):
        block = ranks.plan.side(tensor).blocks[number]
        if tensor == "OUT":
            arrays: Arrays = tuple(_cut(x, block) for x in stats)
        elif tensor == "STATS":
            (dout,) = (_cut(x, block) for x in whole["DOUT"])
            out, lse = (_cut(x, block) for x in stats)
            arrays = lse, np.sum(dout.astype(out.dtype) * out, axis=-1)
        else:
            arrays = tuple(_cut(x, block) for x in whole[tensor])
        ranks.memory[rank].keep((tensor, number), arrays)


def _initial_blocks(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """Yields (tensor, block, rank) of every input that is present before step 0."""
    for tensor in INPUTS[plan.pass_]:
        for number, block in enumerate(plan.side(tensor).blocks):
            yield tensor, number, block.home
    for copy in plan.start:
        for number, rank in zip(*(column.tolist() for column in copy.flat()), strict=True):
            yield from ((tensor, number, rank) for tensor in copy.tensors)


def _cut(whole: Array, block: Block) -> Array:
    return whole[:, block.heads.start : block.heads.stop, block.tokens()]


def collect(
    ranks: VirtualRanks, tensor: str, part: int, shape: tuple[int, ...], fill: float = 0.0
) -> Array:
    """Returns an accumulator in sequence order, with `fill` for blocks that received no sum."""
    whole = np.full(shape, fill, ranks.number)
    for number, block in enumerate(ranks.plan.side(tensor).blocks):
        total = ranks.memory[block.home].sums.get((tensor, number))
        if total is not None:
            whole[:, block.heads.start : block.heads.stop, block.tokens()] = total[part]
    return whole
