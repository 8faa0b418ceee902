"""Runs a plan from its tables, which list the sends, receives and attends of each rank and step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ringloom.codegen.torch.parts.agree import check_agreement
from ringloom.codegen.torch.parts.kernels import counts_from_end
from ringloom.codegen.torch.parts.merge import accum_dtype
from ringloom.codegen.torch.parts.operators import operator
from ringloom.codegen.torch.parts.sinks import apply_sinks, sink_gradient
from ringloom.codegen.torch.parts.tables.memory import Memory, forms, join_blocks
from ringloom.codegen.torch.parts.vocabulary.accumulation import (
    add_gradients,
    all_tokens,
    merge_attention,
    narrow,
    zero_output,
    zeros,
)
from ringloom.codegen.torch.parts.vocabulary.messages import PendingMessage, initialise, start, wait

V_HEAD_DIM = 1
SINKS = KEEPING = DYNAMIC = False
TABLES: dict[str, Any] = {}


def run(memory: Memory, name: str, attend_blocks: Callable[..., None]) -> None:
    """Run all steps of a pass on this rank.

    In each step, messages start with the values before the step, attends add to sums, then arriving
    sums are added. A copy may stay in transit longer: the first attend that reads it waits for it.
    Sends must complete by the end of the next step, which frees their memory.
    """
    group, previous = memory.group, None
    initialise(group, memory.shards["Q"][0])  # in case some ranks have no message in the first step
    for sends, receives, attends, drops in memory.tables[name][group.rank()]:
        sent = [(x, to) for to, *block in sends for x in memory.take(*block) if x.numel()]
        arriving = [(source, *block, memory.allocate(*block)) for source, *block in receives]
        received = [(x, source) for source, *_, value in arriving for x in value if x.numel()]
        works = start(sent, received, group).works
        if len(works) == 1:  # NCCL completes the messages of a step together
            works *= len(sent) + len(received)
        for queries, keys, calls in attends:
            attend_blocks(memory, queries, keys, calls)
        receiving = iter(works[len(sent) :])
        for _, tensor, number, _, value in arriving:
            pending = [next(receiving) for x in value if x.numel()]
            memory.arrive(tensor, number, PendingMessage(pending, [], partial(list, value)))
        for tensor, number in drops:  # copies that are not read again
            memory.drop((tensor, number))
        wait(previous)
        previous = PendingMessage(works[: len(sent)], [x for x, _ in sent], list)
    for message in (previous, *memory.pending.values()):
        wait(message)


def attend_blocks(memory: Memory, queries: list[int], keys: list[int], calls: Any) -> None:
    """Attend query blocks to key blocks, and merge the result into OUT."""
    q = join_blocks([memory["Q", number] for number in queries])
    kv = join_blocks([memory["KV", number] for number in keys])
    out = zero_output(q)
    for band, rows, cols, heads, kv_heads in map(parse_call, fuse_causal_calls(calls, q[0], *kv)):
        merge_attention(
            select_heads(out, heads),
            select_heads(q, heads),
            select_heads(kv, kv_heads),
            band,
            rows,
            cols,
        )
    memory.add_joined("OUT", queries, out)


def attend_blocks_backward(memory: Memory, queries: list[int], keys: list[int], calls: Any) -> None:
    """Compute the gradients of query and key blocks, and add them to DQ and DKV."""
    visiting = join_blocks([memory.queries(number) for number in queries])
    kv = join_blocks([memory["KV", number] for number in keys])
    dq, dkv = zeros(visiting[1:2]), zeros(kv)
    for band, rows, cols, heads, kv_heads in map(
        parse_call, fuse_causal_calls(calls, visiting[1], *kv)
    ):
        inputs = select_heads(visiting, heads), select_heads(kv, kv_heads)
        add_gradients(
            select_heads(dq, heads), select_heads(dkv, kv_heads), *inputs, band, rows, cols
        )
    memory.add_joined("DQ", queries, dq)
    memory.add_joined("DKV", keys, dkv)


def fuse_causal_calls(calls: list[Any], q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
    """Fuse each full call with the causal call to its right, if kernels align masks at the end."""
    if not counts_from_end(q, k, v):
        return calls
    fused = calls[:1]
    for call in calls[1:]:
        (left_band, rows, cols, *heads), (band, next_rows, next_cols, *next_heads) = fused[-1], call
        adjacent = len(next_cols) == 2 and cols[1:] == next_cols[:1]
        adjacent &= (rows, heads) == (next_rows, next_heads)
        if adjacent and band is True and left_band is False:
            fused[-1] = [True, rows, [cols[0], next_cols[1]], *heads]
        else:
            fused.append(call)
    return fused


def parse_call(call: Any) -> tuple[Any, ...]:
    """Return the band of a kernel call, and slices of rows, columns, heads and KV heads."""
    band, *parts = call
    return band, *(slice(*x) if x else all_tokens for x in parts)


def select_heads(tensors: list[Tensor], heads: slice) -> list[Tensor]:
    """Select some heads of each tensor, as views."""
    return [x[:, heads] for x in tensors]


group_of: Any = dist.distributed_c10d._resolve_process_group

if not DYNAMIC:

    def group_named(name: str) -> Any:
        """Return the tables of this program and the group of this name."""
        return TABLES, group_of(name)


def run_forward(
    inputs: list[Tensor], name: str, settings: str, problem: str, seq: int
) -> list[Tensor]:
    """Return output and log-sum-exp of the local queries, and copies for the backward pass."""
    (q, k, v), (tables, group) = inputs[:3], group_named(name)
    if DYNAMIC:
        settings = f"{settings}, tables {tables.digest}"
    check_agreement(group, q, k, settings, problem, seq)
    memory = Memory((tables, group), Q=[q], KV=[k, v])
    run(memory, "FORWARD", attend_blocks)
    out, lse = memory.collect("OUT")
    if SINKS:
        sinks = inputs[3]
        out, lse = apply_sinks(out, lse, sinks)
    kept = (x.clone() for place in memory.kept for x in memory.take(*place, True))
    return [out.to(q.dtype), lse, *kept]


if SINKS:

    @operator("attention")
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor,
        name: str,
        settings: str,
        problem: str,
        seq: int,
    ) -> list[Tensor]:
        return run_forward([q, k, v, sinks], name, settings, problem, seq)

else:

    @operator("attention")
    def forward(
        q: Tensor, k: Tensor, v: Tensor, name: str, settings: str, problem: str, seq: int
    ) -> list[Tensor]:
        return run_forward([q, k, v], name, settings, problem, seq)


if KEEPING:

    @forward.register_fake
    def outputs_like(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> list[Tensor]:
        """Return empty tensors shaped like the results of `forward`."""
        memory = Memory(group_named(others[-4]), Q=[q], KV=[k, v])
        copies = (x for place in memory.kept for x in memory.allocate(*place, True))
        out = q.new_empty((*q.shape[:3], V_HEAD_DIM))
        return [out, q[..., :1].to(accum_dtype(q), copy=True), *copies]


@operator("attention_backward")
def backward(dout: Tensor, saved: list[Tensor], name: str) -> list[Tensor]:
    """Return the gradients of the local queries, keys and values."""
    if SINKS:
        q, k, v, sinks, out, lse, *kept = saved
    else:
        q, k, v, out, lse, *kept = saved
    memory = Memory(group_named(name), Q=[q], KV=[k, v], DOUT=[dout], OUT=[out, lse])
    if DYNAMIC and not memory.tables["BACKWARD"]:
        raise NotImplementedError("these tables have no backward plan")
    copies = iter(kept)
    for place in memory.kept:
        memory[place] = [next(copies) for _ in forms[place[0]]]
    run(memory, "BACKWARD", attend_blocks_backward)
    grads = narrow([*memory.collect("DQ"), *memory.collect("DKV")], q)
    return [*grads, sink_gradient(dout, sinks, out, lse)] if SINKS else grads
