"""A table program's passes by the tables that stand in it, if the forward pass leaves no copies."""

from typing import Any

from torch import Tensor

from codegen.torch.parts.table import Memory, attend_blocks, attend_blocks_backward, run

QUERIES: Any = ()
KEYS: Any = ()
FORWARD: Any = ()
BACKWARD: Any = ()


def forward(q: Tensor, k: Tensor, v: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the local queries."""
    memory = Memory(QUERIES, KEYS, group.rank(), Q=(q,), KV=(k, v))
    run(memory, FORWARD[memory.rank], attend_blocks, group)
    out, lse = memory.collect("OUT")
    return out.to(q.dtype), lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the local queries, keys and values."""
    shards: dict[str, Any] = {"Q": (q,), "KV": (k, v), "DOUT": (dout,), "OUT": (out, lse)}
    memory = Memory(QUERIES, KEYS, group.rank(), **shards)
    run(memory, BACKWARD[memory.rank], attend_blocks_backward, group)
    (dq,), (dk, dv) = memory.collect("DQ"), memory.collect("DKV")
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)
