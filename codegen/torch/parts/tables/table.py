"""Runs a plan by its tables: step by step, what each rank sends, receives and attends."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.agree import agree
from codegen.torch.parts.kernels import attend, attend_backward
from codegen.torch.parts.merge import merge, wide
from codegen.torch.parts.operators import operator
from codegen.torch.parts.passing import initialise
from codegen.torch.parts.sinks import sink_gradient, sunk
from codegen.torch.parts.visitors import with_output

HEAD_DIM = V_HEAD_DIM = 1
TABLES: dict[str, Any] = {}

Place = tuple[str, int]  # a tensor and the number of a block
Values = tuple[Tensor, ...]
sums = ("OUT", "DQ", "DKV")  # moved whole; the other tensors are copied
# What a value consists of, x: as wide as a key, v: as a value, 1: one number per token and head.
forms = {"Q": "x", "DOUT": "v", "KV": "xv", "STATS": "11", "OUT": "v1", "DQ": "x", "DKV": "xv"}


class Memory(dict[Place, Values]):
    """The values that a rank has: at first the blocks of its shards.

    `kept`: the places of what the forward pass leaves here for the backward pass.
    """

    def __init__(self, where: tuple[dict[str, Any], Any], **shards: Values) -> None:
        super().__init__()
        (self.tables, self.group), self.shards = where, shards
        self.rank = self.group.rank()
        self.kept = [(tensor, number) for tensor, number in self.tables["KEPT"][self.rank]]
        for tensor, shard in shards.items():
            for place, at in self.own(tensor):
                self[place] = tuple(x[at] for x in shard)

    def blocks(self, tensor: str) -> tuple[Any, Values]:
        """The blocks of the side of a tensor, and shards like those of the tensor."""
        if tensor in ("KV", "DKV"):
            return self.tables["KEYS"], self.shards["KV"]
        return self.tables["QUERIES"], self.shards["Q"]

    def own(self, tensor: str) -> Iterator[tuple[Place, Any]]:
        """The blocks of this rank, and where they are in its shard."""
        for number, (home, *at) in enumerate(self.blocks(tensor)[0]):
            if home == self.rank:
                yield (tensor, number), index(*at)

    def collect(self, tensor: str) -> Values:
        """The sums of this rank's blocks as shards; what nobody added to is zero."""
        whole = nothing(tensor, *self.blocks(tensor)[1])
        for place, at in self.own(tensor):
            for x, part in zip(whole, self.get(place, ()), strict=False):
                x[at] = part
        return whole

    def room(self, tensor: str, number: int, finished: bool = False) -> Values:
        """Room for a value; sums to which nothing will be added are in the type of the inputs."""
        blocks, (like, *_) = self.blocks(tensor)
        _, heads, rows = index(*blocks[number][1:])
        shape = len(like), len(range(like.shape[1])[heads]), rows.stop - rows.start
        narrow = like.dtype if finished or tensor not in sums else wide(like)
        types = {"x": (HEAD_DIM, narrow), "v": (HEAD_DIM, narrow), "1": (1, wide(like))}
        types["v"] = V_HEAD_DIM, narrow  # unequal
        parts = (types[part] for part in forms[tensor])
        return tuple(like.new_empty((*shape, n), dtype=dtype) for n, dtype in parts)

    def take(self, tensor: str, number: int, finished: bool) -> Values:
        """Return a message: a copy of an input, or a sum, which is gone from here then."""
        place, room = (tensor, number), self.room(tensor, number, finished)
        likes = room[: len(forms[tensor].rstrip("1"))]
        if tensor not in sums:
            value = self[place]  # statless
            value = copied(self, place)  # stats
        else:
            value = self.pop(place) if place in self else nothing(tensor, *likes)
        if place in self.kept:
            self[place] = value
        return tuple(x.to(y.dtype).contiguous() for x, y in zip(value, room, strict=True))

    def add(self, tensor: str, number: int, *value: Tensor) -> None:
        """Add to a sum; what is not here yet begins with the value."""
        place = tensor, number
        if place not in self:
            self[place] = value
        elif tensor == "OUT":
            merge(*self[place], *value)
        else:
            for x, part in zip(self[place], value, strict=True):
                x += part

    def joined(self, tensor: str, numbers: list[int]) -> Values:
        """Blocks one after the other."""
        return cat([self[tensor, number] for number in numbers])

    def add_parts(self, tensor: str, numbers: list[int], *wholes: Tensor) -> None:
        """Add to the sums of several blocks."""
        ends = [self.blocks(tensor)[0][number][1] for number in numbers]
        parts = [x.split([end - first for first, end in ends], dim=2) for x in wholes]
        for number, *value in zip(numbers, *parts, strict=True):
            self.add(tensor, number, *value)


def run(memory: Memory, name: str, attend_tiles: Callable[..., None]) -> None:
    """All steps of a pass on this rank.

    Messages leave as a step began, attends add to sums, and then what arrives is added.
    """
    group = memory.group
    initialise(group, memory.shards["Q"][0])  # some ranks have no message in the first step
    for sends, receives, attends, drops in memory.tables[name][memory.rank]:
        leaving = [(to, memory.take(tensor, n, done)) for to, tensor, n, done in sends]
        arriving = [(source, memory.room(tensor, n, done)) for source, tensor, n, done in receives]
        ops = [
            dist.P2POp(operation, x, group=group, group_peer=peer)
            for operation, values in ((dist.isend, leaving), (dist.irecv, arriving))
            for peer, value in values
            for x in value
            if x.numel()
        ]
        works = dist.batch_isend_irecv(ops) if ops else []
        for queries, keys, calls in attends:
            attend_tiles(memory, queries, keys, calls)
        for work in works:
            work.wait()
        for (_, tensor, n, _), (_, value) in zip(receives, arriving, strict=True):
            memory.add(tensor, n, *value)
        for tensor, n in drops:  # copies that were read for the last time
            memory.pop((tensor, n), None)


def index(rows: Any = (), heads: Any = ()) -> tuple[slice, ...]:
    """The index of some rows of some heads; where none are named, of all."""
    return slice(None), *(slice(*ends) if ends else slice(None) for ends in (heads, rows))


def nothing(tensor: str, *likes: Tensor) -> Values:
    """Zero accumulators; for OUT with a log-sum-exp of -inf."""
    like = likes[0].new_empty((*likes[0].shape[:3], V_HEAD_DIM))  # unequal
    likes = (like,) if tensor == "OUT" else likes  # unequal
    zeros = tuple(torch.zeros_like(x, dtype=wide(x)) for x in likes)
    return (*zeros, torch.full_like(zeros[0][..., :1], -torch.inf)) if tensor == "OUT" else zeros


def cat(values: list[Values]) -> Values:
    """Values of several blocks, joined along their rows."""
    if len(values) == 1:
        return values[0]
    return tuple(torch.cat(parts, dim=2) for parts in zip(*values, strict=True))


def attend_blocks(memory: Memory, queries: list[int], keys: list[int], calls: Any) -> None:
    """Add the attention of query blocks to key blocks to OUT."""
    (q,), (k, v) = memory.joined("Q", queries), memory.joined("KV", keys)
    out, lse = nothing("OUT", q)
    for at, to, band in map(read_call, calls):
        merge(out[at], lse[at], *attend(q[at], k[to], v[to], band))
    memory.add_parts("OUT", queries, out, lse)


def attend_blocks_backward(memory: Memory, queries: list[int], keys: list[int], calls: Any) -> None:
    """Add the gradients of that attention to DQ and DKV."""
    (q,), (k, v) = memory.joined("Q", queries), memory.joined("KV", keys)
    (dout,) = memory.joined("DOUT", queries)
    out, lse = memory.joined("OUT", queries)  # statless
    out, lse = cat([outputs(memory, number) for number in queries])  # stats
    dq, dk, dv = nothing("DQ", q, k, v)
    for at, to, band in map(read_call, calls):
        shares = attend_backward(dout[at], q[at], out[at], lse[at], k[to], v[to], band)
        for x, share in zip((dq[at], dk[to], dv[to]), shares, strict=True):
            x += share
    memory.add_parts("DQ", queries, dq)
    memory.add_parts("DKV", keys, dk, dv)


def copied(memory: Memory, place: Place) -> Any:  # stats
    """A value that a message copies; STATS are computed where OUT is."""
    tensor, number = place
    if tensor != "STATS" or ("OUT", number) not in memory:
        return memory[place]
    (dout,), (out, lse) = memory["DOUT", number], memory["OUT", number]
    return lse, (dout.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1, keepdim=True)


def outputs(memory: Memory, number: int) -> Values:  # stats
    """(out, lse) of a block of queries, out being a stand-in where only STATS came."""
    if ("OUT", number) in memory:
        return memory["OUT", number]
    (dout,), (lse, delta) = memory["DOUT", number], memory["STATS", number]
    return with_output([dout, dout, lse, delta])[2:]


def read_call(call: Any) -> tuple[Any, Any, Any]:
    """A kernel call: index of the queries, index of the keys, and the band."""
    band, rows, cols, heads, kv_heads = (*call, (), (), (), ())[:5]
    return index(rows, heads), index(cols, kv_heads), band


group_of: Any = dist.distributed_c10d._resolve_process_group


def group_named(name: str) -> Any:  # bound
    """The tables, and the group of that name."""
    return TABLES, group_of(name)


@operator("attention")
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,  # sinks
    name: str,
    about: str,
    wrong: str,
    seq: int,
) -> list[Tensor]:
    """Output and log-sum-exp of the local queries, and copies for the backward pass."""
    where = group_named(name)
    about = f"{about}, tables {where[0].digest}"  # given
    agree(where[1], q, k, about, wrong, seq)
    memory = Memory(where, Q=(q,), KV=(k, v))
    run(memory, "FORWARD", attend_blocks)
    out, lse = memory.collect("OUT")
    out, lse = sunk(out, lse, sinks)  # sinks
    for place in memory.kept:  # sinks
        if place[0] == "OUT" and place in memory:  # sinks
            _, heads, _ = index(*memory.tables["QUERIES"][place[1]][1:])  # sinks
            part, part_lse = memory[place]  # sinks
            memory[place] = sunk(part, part_lse, sinks[heads])  # sinks
    kept = (x.clone() for place in memory.kept for x in memory.take(*place, True))
    return [out.to(q.dtype), lse, *kept]


@forward.register_fake  # keeping
def outputs_like(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:  # keeping
    """Tensors like all that `forward` returns."""
    memory = Memory(group_named(rest[-4]), Q=(q,), KV=(k, v))
    copies = (x for tensor, n in memory.kept for x in memory.room(tensor, n, True))
    out = q.clone()
    out = q.new_empty((*q.shape[:3], V_HEAD_DIM))  # unequal
    return [out, q[..., :1].to(wide(q), copy=True), *copies]


@operator("attention_backward")
def backward(dout: Tensor, saved: list[Tensor], name: str) -> list[Tensor]:
    """Gradients of the local queries, keys and values."""
    q, k, v, out, lse, *kept = saved  # sinkless
    q, k, v, sinks, out, lse, *kept = saved  # sinks
    memory = Memory(group_named(name), Q=(q,), KV=(k, v), DOUT=(dout,), OUT=(out, lse))
    if not memory.tables["BACKWARD"]:  # given
        raise NotImplementedError("these tables have no backward plan")  # given
    copies = iter(kept)
    for tensor, number in memory.kept:
        memory[tensor, number] = tuple(next(copies) for _ in forms[tensor])
    run(memory, "BACKWARD", attend_blocks_backward)
    (dq,), (dk, dv) = memory.collect("DQ"), memory.collect("DKV")
    return [x.to(q.dtype) for x in (dq, dk, dv)]  # sinkless
    return [*(x.to(q.dtype) for x in (dq, dk, dv)), sink_gradient(dout, sinks, out, lse)]  # sinks
