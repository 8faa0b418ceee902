"""Blocks of some heads: from a shard into slots and back, and one tile attended."""

import jax.numpy as jnp

from codegen.jax.parts.masked import attend_masked, masked_gradients, wide
from codegen.jax.parts.stubs import KEYS, QUERIES
from codegen.jax.parts.tables.table import NOWHERE, added, meeting, places

HEADS = KV_HEADS = 1


def from_shard(x, side, rank):
    """The blocks that a rank owns, of its shard [batch, heads, tokens, width]."""
    at = head_places(side, rank)[:, :, None], places(side, rank)[:, None]
    return jnp.moveaxis(x.at[:, *at].get(mode="fill", fill_value=0), 1, 0)


def into_shard(blocks, like, side, rank):
    """The shard of a rank, from the first of some slots, which hold the blocks that it owns."""
    at = head_places(side, rank)[:, :, None], places(side, rank)[:, None]
    shard = jnp.zeros((*like.shape[:3], blocks.shape[-1]), blocks.dtype)
    return shard.at[:, *at].set(jnp.moveaxis(blocks[: len(at[0])], 0, 1), mode="drop")


def head_places(side, rank):
    """The heads of the blocks that a rank owns [blocks, most heads], a large number for none."""
    own = jnp.asarray(side.own)[rank]
    first, count = jnp.asarray(side.heads)[own].T[..., None]
    n = jnp.arange(side.heads[:, 1].max())
    return jnp.where((own[:, None] >= 0) & (n < count), first + n, NOWHERE)


def kv_heads_of(i, j):
    """Which head of a block of keys each head of a block of queries meets, and if it meets one."""
    (first, count), (kv_first, kv_count) = jnp.asarray(QUERIES.heads)[i], jnp.asarray(KEYS.heads)[j]
    n = jnp.arange(QUERIES.heads[:, 1].max())
    head = (first + n) // (HEADS // KV_HEADS) - kv_first
    meets = (n < count) & (head >= 0) & (head < kv_count)
    return jnp.where(meets, head, 0), meets[:, None, None]


def attend_tile(state, tile):
    """Add what a block of queries finds among a block of keys."""
    i, j, q, kv, out, *box = tile
    head, meets = kv_heads_of(i, j)
    q, (k, v) = state["Q"][0][q], (x[kv][:, head] for x in state["KV"])
    out_part, lse = attend_masked(q, k, v, *meeting(i, j, *box))
    parts = jnp.where(meets, out_part, 0), jnp.where(meets, lse, -jnp.inf)
    return added(state, "OUT", out[None], [x[None] for x in parts])


def attend_tile_backward(state, tile):
    """Add the gradients of a block of queries and a block of keys."""
    i, j, q, dout, stats, kv, dq, dkv, *box = tile
    head, meets = kv_heads_of(i, j)
    slots = {"DOUT": dout, "Q": q, "KV": kv, "STATS": stats}
    dout, q, k, v, *stats = (x[n] for name, n in slots.items() for x in state[name])
    parts = masked_gradients(dout, q, k[:, head], v[:, head], *stats, *meeting(i, j, *box))
    dq_part, *parts = (jnp.where(meets, x, 0) for x in parts)
    pairs = zip((k, v), parts, strict=True)
    dk, dv = (jnp.zeros(x.shape, wide(x)).at[:, head].add(y) for x, y in pairs)
    state = added(state, "DQ", dq[None], [dq_part[None]])
    return added(state, "DKV", dkv[None], [dk[None], dv[None]])
