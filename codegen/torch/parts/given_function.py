"""The function to call, with tables: attention as one registered operator."""

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group as group_named

from codegen.torch.parts.given import Tables, known
from codegen.torch.parts.merge import wide
from codegen.torch.parts.table import Memory, attend_blocks, attend_blocks_backward, forms, run

RANKS, HEADS, KV_HEADS, HEAD_DIM = 1, 1, 1, 1

# ---- The function to call.


def attention(
    q: Tensor, k: Tensor, v: Tensor, tables: Tables, *, group: ProcessGroup | None = None
) -> Tensor:
    """Exact attention of a sharded sequence; all ranks of the group call it with equal tables.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards as
    `positions` and `kv_positions` tell; the result is like q. Raises ValueError for other shapes,
    mixed types, too few ranks or other tables on other ranks.
    """
    group = group or dist.group.WORLD
    if group is None or group.size() != RANKS:
        size = group.size() if group else "not been initialized"
        raise ValueError(f"the program is for {RANKS} ranks, but the group has {size}")
    for name, x, heads in (("q", q, HEADS), ("k", k, KV_HEADS), ("v", v, KV_HEADS)):
        tokens = len(tables.shards["q" if name == "q" else "kv"][group.rank()])
        shape = q.shape[0], heads, tokens, HEAD_DIM
        if x.shape != shape or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype} {list(x.shape)}, not {q.dtype} {list(shape)}")
    q, k, v = (x.contiguous() for x in (q, k, v))
    out: Tensor = attend_shards(q, k, v, tables.name, group.group_name)[0]
    return out


digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


@torch.library.custom_op(f"ringloom::attention_{digest}", mutates_args=())
def attend_shards(
    q: Tensor, k: Tensor, v: Tensor, tables: str, group: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output, log-sum-exp and copies: one operator for compilers and checkpoint policies."""
    given, ranks = known[tables], group_named(group)
    agree(given, ranks, q.device)
    memory = Memory(given.queries, given.keys, ranks.rank(), Q=(q,), KV=(k, v))
    memory.kept = [(tensor, number) for tensor, number in given.kept[memory.rank]]
    run(memory, given.forward[memory.rank], attend_blocks, ranks)
    out, lse = memory.collect("OUT")
    return (
        out.to(q.dtype),
        lse,
        [x.clone() for place in memory.kept for x in memory.take(*place, True)],
    )


@attend_shards.register_fake
def like_results(
    q: Tensor, k: Tensor, v: Tensor, tables: str, group: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    given, rank = known[tables], group_named(group).rank()
    memory = Memory(given.queries, given.keys, rank, Q=(q,), KV=(k, v))
    kept = [x for tensor, n in given.kept[rank] for x in memory.room(tensor, n, True)]
    return torch.empty_like(q), torch.empty_like(q[..., :1], dtype=wide(q)), kept


@torch.library.custom_op(f"ringloom::attention_backward_{digest}", mutates_args=())
def shard_gradients(
    dout: Tensor, saved: list[Tensor], tables: str, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; saved: these, the output, the log-sum-exp and copies."""
    (q, k, v, out, lse, *kept), given, ranks = saved, known[tables], group_named(group)
    shards: dict[str, Any] = {"Q": (q,), "KV": (k, v), "DOUT": (dout,), "OUT": (out, lse)}
    memory, copies = Memory(given.queries, given.keys, ranks.rank(), **shards), iter(kept)
    for tensor, number in given.kept[memory.rank]:
        memory[tensor, number] = tuple(next(copies) for _ in forms[tensor])
    run(memory, given.backward[memory.rank], attend_blocks_backward, ranks)
    (dq,), (dk, dv) = memory.collect("DQ"), memory.collect("DKV")
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


shard_gradients.register_fake(lambda dout, saved, *_: tuple(map(torch.empty_like, saved[:3])))


def save(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, tables, ctx.group = inputs
    out, lse, kept = output
    ctx.tables = known[tables]
    ctx.save_for_backward(*tensors, out, lse, *kept)
    ctx.mark_non_differentiable(lse, *kept)
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, dout: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    if not ctx.tables.both:
        raise NotImplementedError("these tables have no backward plan")
    saved = [*ctx.saved_tensors]
    return *shard_gradients(dout.contiguous(), saved, ctx.tables.name, ctx.group), None, None


attend_shards.register_autograd(differentiate, setup_context=save)


def agree(tables: Tables, group: ProcessGroup, device: torch.device) -> None:
    """Raise ValueError unless all ranks have equal tables; asked once per group and tables."""
    if group.group_name in tables.agreed:
        return
    own = int(tables.digest, 16)
    ends = torch.tensor([own, -own], device=device)
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=group)
    if ends.tolist() != [own, -own]:
        raise ValueError(f"rank {group.rank()} has other tables than some other rank")
    tables.agreed.add(group.group_name)
