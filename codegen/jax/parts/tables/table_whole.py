"""Blocks of all heads: from a shard into slots and back, and one tile attended."""

import jax.numpy as jnp

from codegen.jax.parts.masked import attend_masked, masked_gradients
from codegen.jax.parts.tables.table import added, meeting, places


def from_shard(x, side, rank):
    """The blocks that a rank owns, of its shard [batch, heads, tokens, width]."""
    blocks = x.at[:, :, places(side, rank)].get(mode="fill", fill_value=0)
    return jnp.moveaxis(blocks, 2, 0)


def into_shard(blocks, like, side, rank):
    """The shard of a rank, from the first of some slots, which hold the blocks that it owns."""
    at = places(side, rank)
    shard = jnp.zeros((*like.shape[:3], blocks.shape[-1]), blocks.dtype)
    return shard.at[:, :, at].set(jnp.moveaxis(blocks[: len(at)], 0, 2), mode="drop")


def attend_tile(state, tile):
    """Add what a block of queries finds among a block of keys."""
    i, j, q, kv, out, *box = tile
    (q,), (k, v) = ([x[n] for x in state[name]] for name, n in (("Q", q), ("KV", kv)))
    parts = attend_masked(q, k, v, *meeting(i, j, *box))
    return added(state, "OUT", out[None], [x[None] for x in parts])


def attend_tile_backward(state, tile):
    """Add the gradients of a block of queries and a block of keys."""
    i, j, q, dout, stats, kv, dq, dkv, *box = tile
    slots = {"DOUT": dout, "Q": q, "KV": kv, "STATS": stats}
    arrays = [x[n] for name, n in slots.items() for x in state[name]]
    parts = masked_gradients(*arrays, *meeting(i, j, *box))
    state = added(state, "DQ", dq[None], [parts[0][None]])
    return added(state, "DKV", dkv[None], [x[None] for x in parts[1:]])
