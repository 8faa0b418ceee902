"""The backward pass of a table program."""

from typing import TYPE_CHECKING

from jax import lax

from codegen.jax.parts.merge import wide
from codegen.jax.parts.table import absent, run, stored

BACKWARD_HOPS = ()
BACKWARD_SLOTS: dict[str, int] = {}

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import KEYS, QUERIES
    from codegen.jax.parts.table_whole import attend_tile_backward, into_shard


def run_backward(axis, saved, dout, rows):
    """Gradients of a rank's queries, keys and values."""
    q, k, v, out, lse, kept = saved
    held = dict(kept)  # () where no forward pass went before
    rank = lax.axis_index(axis)
    delta = (dout.astype(wide(q)) * out).sum(-1, keepdims=True)
    queries = {"Q": [q], "DOUT": [dout], "STATS": [lse, delta]}
    inputs = {name: (arrays, QUERIES) for name, arrays in queries.items()} | {"KV": ([k, v], KEYS)}
    state = {
        name: stored(*arrays, rank, BACKWARD_SLOTS[name], held.get(name, ()))
        for name, arrays in inputs.items()
    }
    state["DQ"] = absent("DQ", [q], QUERIES, rank, BACKWARD_SLOTS["DQ"])
    state["DKV"] = absent("DKV", [k, v], KEYS, rank, BACKWARD_SLOTS["DKV"])
    state = run(BACKWARD_HOPS, rows, state, attend_tile_backward, axis)
    dq = into_shard(state["DQ"][0], q, QUERIES, rank)
    dk, dv = (into_shard(x, k, KEYS, rank) for x in state["DKV"])
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)
