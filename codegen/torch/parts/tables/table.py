"""Runs a plan by its tables: step by step, what each rank sends, receives and attends."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ringloom.codegen.torch.parts.agree import agree
from ringloom.codegen.torch.parts.kernels import counts_from_end
from ringloom.codegen.torch.parts.merge import wide
from ringloom.codegen.torch.parts.operators import operator
from ringloom.codegen.torch.parts.sinks import sink_gradient, sunk
from ringloom.codegen.torch.parts.tables.memory import Memory, forms, joined
from ringloom.codegen.torch.parts.vocabulary.accumulation import (
    add_gradients,
    every,
    merge_attention,
    narrow,
    zero_output,
    zeros,
)
from ringloom.codegen.torch.parts.vocabulary.messages import Message, initialise, start, wait

V_HEAD_DIM = 1
SINKS = KEEPING = DYNAMIC = False
TABLES: dict[str, Any] = {}


def run(memory: Memory, name: str, attend_blocks: Callable[..., None]) -> None:
    """All steps of a pass on this rank.

    Messages leave as a step began, attends add to sums, and then the sums that arrive are added.
    A copy may be under way for longer: what reads it waits for it. What is sent has until the end
    of the next step, when its memory is free again.
    """
    group, before = memory.group, None
    initialise(group, memory.shards["Q"][0])  # some ranks have no message in the first step
    for sends, receives, attends, drops in memory.tables[name][group.rank()]:
        sent = [(x, to) for to, *block in sends for x in memory.take(*block) if x.numel()]
        arriving = [(source, *block, memory.room(*block)) for source, *block in receives]
        received = [(x, source) for source, *_, room in arriving for x in room if x.numel()]
        works = start(sent, received, group).works
        if len(works) == 1:  # NCCL ends a step's messages as one
            works *= len(sent) + len(received)
        for queries, keys, calls in attends:
            attend_blocks(memory, queries, keys, calls)
        brings = iter(works[len(sent) :])
        for _, tensor, number, _, room in arriving:
            own = [next(brings) for x in room if x.numel()]
            memory.arrive(tensor, number, Message(own, [], partial(list, room)))
        for tensor, number in drops:  # copies that were read for the last time
            memory.drop((tensor, number))
        wait(before)
        before = Message(works[: len(sent)], [x for x, _ in sent], list)
    for message in (before, *memory.coming.values()):
        wait(message)


def attend_blocks(memory: Memory, queries: list[int], keys: list[int], calls: Any) -> None:
    """Merge the attention of query blocks to key blocks into OUT."""
    q = joined([memory["Q", number] for number in queries])
    kv = joined([memory["KV", number] for number in keys])
    out = zero_output(q)
    for band, rows, cols, heads, kv_heads in map(read, late(calls, q[0], *kv)):
        merge_attention(part(out, heads), part(q, heads), part(kv, kv_heads), band, rows, cols)
    memory.add_joined("OUT", queries, out)


def attend_blocks_backward(memory: Memory, queries: list[int], keys: list[int], calls: Any) -> None:
    """Add the gradients of that attention to DQ and DKV."""
    visiting = joined([memory.queries(number) for number in queries])
    kv = joined([memory["KV", number] for number in keys])
    dq, dkv = zeros(visiting[1:2]), zeros(kv)
    for band, rows, cols, heads, kv_heads in map(read, late(calls, visiting[1], *kv)):
        inputs = part(visiting, heads), part(kv, kv_heads)
        add_gradients(part(dq, heads), part(dkv, kv_heads), *inputs, band, rows, cols)
    memory.add_joined("DQ", queries, dq)
    memory.add_joined("DKV", keys, dkv)


def late(calls: list[Any], q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
    """Kernel calls, a full one and the causal one after it as one that ends at the last row."""
    if not counts_from_end(q, k, v):
        return calls
    made = calls[:1]
    for call in calls[1:]:
        (full, *before), (band, *after) = made[-1], call
        (rows, cols, *heads), (own, others, *theirs) = before, after
        goes_on = len(others) == 2 and cols[1:] == others[:1] and (rows, heads) == (own, theirs)
        if goes_on and band is True and full is False:
            made[-1] = [True, rows, [cols[0], others[1]], *heads]
        else:
            made.append(call)
    return made


def read(call: Any) -> tuple[Any, ...]:
    """A kernel call: its band, and slices of rows, columns, heads and KV heads."""
    band, *parts = call
    return band, *(slice(*x) if x else every for x in parts)


def part(tensors: list[Tensor], heads: slice) -> list[Tensor]:
    """Some heads of each tensor, as views."""
    return [x[:, heads] for x in tensors]


group_of: Any = dist.distributed_c10d._resolve_process_group

if not DYNAMIC:

    def group_named(name: str) -> Any:
        """The tables, and the group of that name."""
        return TABLES, group_of(name)


def run_forward(inputs: list[Tensor], name: str, about: str, wrong: str, seq: int) -> list[Tensor]:
    """Output and log-sum-exp of the local queries, and copies for the backward pass."""
    (q, k, v), where = inputs[:3], group_named(name)
    if DYNAMIC:
        about = f"{about}, tables {where[0].digest}"
    agree(where[1], q, k, about, wrong, seq)
    memory = Memory(where, Q=[q], KV=[k, v])
    run(memory, "FORWARD", attend_blocks)
    out, lse = memory.collect("OUT")
    if SINKS:
        sinks = inputs[3]
        out, lse = sunk(out, lse, sinks)
    kept = (x.clone() for place in memory.kept for x in memory.take(*place, True))
    return [out.to(q.dtype), lse, *kept]


if SINKS:

    @operator("attention")
    def forward(
        q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, name: str, about: str, wrong: str, seq: int
    ) -> list[Tensor]:
        return run_forward([q, k, v, sinks], name, about, wrong, seq)

else:

    @operator("attention")
    def forward(
        q: Tensor, k: Tensor, v: Tensor, name: str, about: str, wrong: str, seq: int
    ) -> list[Tensor]:
        return run_forward([q, k, v], name, about, wrong, seq)


if KEEPING:

    @forward.register_fake
    def outputs_like(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
        """Tensors like all that `forward` returns."""
        memory = Memory(group_named(rest[-4]), Q=[q], KV=[k, v])
        copies = (x for place in memory.kept for x in memory.room(*place, True))
        out = q.new_empty((*q.shape[:3], V_HEAD_DIM))
        return [out, q[..., :1].to(wide(q), copy=True), *copies]


@operator("attention_backward")
def backward(dout: Tensor, saved: list[Tensor], name: str) -> list[Tensor]:
    """Gradients of the local queries, keys and values."""
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
