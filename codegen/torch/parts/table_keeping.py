"""A table program's passes by the tables in it, where the forward pass keeps copies."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from codegen.torch.parts.table import Memory, attend_blocks, attend_blocks_backward, forms, run

QUERIES: Any = ()
KEYS: Any = ()
FORWARD: Any = ()
BACKWARD: Any = ()
KEPT: Any = ()


def forward(q: Tensor, k: Tensor, v: Tensor, group: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output and log-sum-exp of the local queries, and copies for the backward pass."""
    memory = Memory(QUERIES, KEYS, group.rank(), Q=(q,), KV=(k, v))
    memory.kept = [(tensor, number) for tensor, number in KEPT[memory.rank]]
    run(memory, FORWARD[memory.rank], attend_blocks, group)
    out, lse = memory.collect("OUT")
    kept = [x.clone() for place in memory.kept for x in memory.take(*place, True)]
    return out.to(q.dtype), lse, kept


def kept_like(q: Tensor, k: Tensor, v: Tensor, group: Any) -> list[Tensor]:
    """Tensors like the copies that `forward` returns."""
    memory = Memory(QUERIES, KEYS, group.rank(), Q=(q,), KV=(k, v))
    return [x for tensor, n in KEPT[memory.rank] for x in memory.room(tensor, n, True)]


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    kept: Sequence[Tensor],
    group: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the local queries, keys and values."""
    shards: dict[str, Any] = {"Q": (q,), "KV": (k, v), "DOUT": (dout,), "OUT": (out, lse)}
    memory = Memory(QUERIES, KEYS, group.rank(), **shards)
    copies = iter(kept)
    for tensor, number in KEPT[memory.rank]:
        memory[tensor, number] = tuple(next(copies) for _ in forms[tensor])
    run(memory, BACKWARD[memory.rank], attend_blocks_backward, group)
    (dq,), (dk, dv) = memory.collect("DQ"), memory.collect("DKV")
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)
