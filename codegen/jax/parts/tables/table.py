"""The interpreter of a table program: one scan per section of steps with the same hops."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from ringloom.codegen.jax.parts.masked import (
    accum_dtype,
    attend_masked,
    attend_masked_backward,
    merge,
)
from ringloom.codegen.jax.parts.stubs import allowed, kv_positions, positions
from ringloom.codegen.jax.parts.tables.arrays import nowhere, side_of, steps_of

HEADS = KV_HEADS = V_HEAD_DIM = 1
RANKS = 0
ANY_HEADS = APART = BACKWARD = DYNAMIC = False
TABLES: dict[str, Any] = {"QUERIES": [], "KEYS": [], "KEPT": {}, "PASSES": {}}


# ---- Schedule: all ranks run the same steps; the tables list the blocks of each rank.


key_positions = kv_positions if APART else positions
query_blocks = side_of(TABLES["QUERIES"], [positions(n) for n in range(RANKS)], HEADS)
key_blocks = side_of(TABLES["KEYS"], [key_positions(n) for n in range(RANKS)], KV_HEADS)
passes = {name: steps_of(table) for name, table in TABLES["PASSES"].items()}
empty = {"OUT": (0, -jnp.inf), "DQ": (0,), "DKV": (0, 0)}  # values of empty sums


def run_forward(q, k, v, axis, tiles):
    """Return output and residuals, with names for checkpoint policies."""
    rank, steps = lax.axis_index(axis), passes["forward"]
    out = jnp.zeros((*q.shape[:-1], V_HEAD_DIM), q.dtype)
    state = begin({"Q": [q], "KV": [k, v], "OUT": [out, q[..., :1]]}, steps.slots, rank, {})
    state = run(steps, tiles, state, attend_tile, axis)
    out, lse = (into_shard(x, q, query_blocks, rank) for x in state["OUT"])
    kept = [[x[jnp.array(n)[rank]] for x in state[name]] for name, n in TABLES["KEPT"].items()]
    out, lse = checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")
    return out.astype(q.dtype), (q, k, v, out, lse, *checkpoint_name(kept, "attention_kept"))


if not DYNAMIC:

    def forward(q, k, v, axis):
        """Return output and residuals."""
        return run_forward(q, k, v, axis, passes["forward"].tiles)


if BACKWARD:

    def run_backward(axis, saved, dout, tiles):
        """Return the gradients of a rank's queries, keys and values."""
        q, k, v, out, lse, *kept = saved
        rank, steps = lax.axis_index(axis), passes["backward"]
        delta = (dout.astype(accum_dtype(q)) * out).sum(-1, keepdims=True)
        arrays = {"Q": [q], "DOUT": [dout], "STATS": [lse, delta], "KV": [k, v]}
        arrays |= {"DQ": [q], "DKV": [k, v]}
        held = dict(zip(TABLES["KEPT"], kept, strict=False))  # empty if no forward pass ran
        state = begin(arrays, steps.slots, rank, held)
        state = run(steps, tiles, state, attend_tile_backward, axis)
        dq = into_shard(state["DQ"][0], q, query_blocks, rank)
        dk, dv = (into_shard(x, k, key_blocks, rank) for x in state["DKV"])
        return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)

    if not DYNAMIC:

        def backward(axis, saved, dout):
            """Return the gradients of a rank's queries, keys and values."""
            return run_backward(axis, saved, dout, passes["backward"].tiles)


def run(steps, tiles, state, attend, axis):
    """Run all steps of a pass, one scan per section."""
    rank, at = lax.axis_index(axis), 0
    for count, hops in steps.sections:
        own = [jnp.asarray(x[at : at + count])[:, rank] for x in (steps.moves, tiles)]
        state, _ = lax.scan(partial(run_step, hops, attend, axis), state, (*own,))
        at += count
    return state


def run_step(hops, attend, axis, state, row):
    """Run one step: send messages, attend tiles, then receive messages."""
    (slots, tiles), received = row, []
    for name, by, finished, width, senders in hops:
        sources, targets, slots = slots[:width], slots[width : 2 * width], slots[2 * width :]
        blocks = get_slots(state, name, sources)
        if name in empty:
            state = state | {name: set_slots(state[name], sources, empty[name])}
        if finished:  # complete sums are sent in the dtype of the inputs
            blocks = [x.astype(state["Q"][0].dtype) if x.shape[-1] > 1 else x for x in blocks]
        pairs = [(rank, (rank + by) % RANKS) for rank in senders]
        received.append((name, targets, lax.ppermute(blocks, axis, pairs)))
    state = lax.fori_loop(0, (tiles[:, 0] < nowhere).sum(), lambda n, x: attend(x, tiles[n]), state)
    for name, targets, blocks in received:
        state = add_to_slots(state, name, targets, blocks)
    return state, None


# ---- Slots: the blocks of each tensor on a rank.


def begin(arrays, sizes, rank, held):
    """Return the slots of each tensor: the rank's blocks, kept copies, free slots; empty sums."""
    state = {}
    for name, shards in arrays.items():
        blocks = [from_shard(x, key_blocks if "KV" in name else query_blocks, rank) for x in shards]
        if name in held:
            blocks = [jnp.concatenate(x) for x in zip(blocks, held[name], strict=True)]
        shapes = [(sizes[name], *x.shape[1:]) for x in blocks]
        if name in empty:
            sums = zip(shapes, empty[name], strict=True)
            state[name] = [
                jnp.full(shape, identity, accum_dtype(shards[0])) for shape, identity in sums
            ]
        else:
            copies = zip(shapes, blocks, strict=True)
            state[name] = [jnp.zeros(shape, x.dtype).at[: len(x)].set(x) for shape, x in copies]
    return state


def get_slots(state, name, slots):
    """Return the blocks in some slots of a tensor, and empty values for `nowhere`."""
    pairs = zip(state[name], empty.get(name, (0, 0)), strict=False)
    return [x.at[slots].get(mode="fill", fill_value=fill) for x, fill in pairs]


def set_slots(arrays, slots, blocks):
    """Replace the blocks in some slots of a tensor."""
    pairs = zip(arrays, blocks, strict=True)
    return [x.at[slots].set(block, mode="drop") for x, block in pairs]


def add_to_slots(state, name, slots, blocks):
    """Put blocks into some slots: copies replace blocks, sums are added."""
    if name == "OUT":
        blocks = merge(*get_slots(state, name, slots), *blocks)
    elif name in empty:
        blocks = [x + y for x, y in zip(get_slots(state, name, slots), blocks, strict=True)]
    return state | {name: set_slots(state[name], slots, blocks)}


def shard_index(side, rank):
    """Return the heads and tokens of a rank's blocks in its shard; `nowhere` for no block."""
    own = jnp.asarray(side.owned)[rank]
    tokens = jnp.asarray(side.tokens)[own]
    tokens = jnp.where((own[:, None] >= 0) & (tokens >= 0), tokens, nowhere)
    if ANY_HEADS:
        return slice(None), tokens
    else:
        first, count = jnp.asarray(side.heads)[own].T[..., None]
        n = jnp.arange(side.heads[:, 1].max())
        heads = jnp.where((own[:, None] >= 0) & (n < count), first + n, nowhere)
        return heads[:, :, None], tokens[:, None]


blocks_axis = 2 if ANY_HEADS else 1  # the axis of blocks after indexing by `shard_index`


def from_shard(x, side, rank):
    """Return the blocks that a rank owns, from its shard [batch, heads, tokens, width]."""
    blocks = x.at[:, *shard_index(side, rank)].get(mode="fill", fill_value=0)
    return jnp.moveaxis(blocks, blocks_axis, 0)


def into_shard(blocks, like, side, rank):
    """Return the shard of a rank from its first slots, which contain the blocks that it owns."""
    blocks = jnp.moveaxis(blocks[: side.owned.shape[1]], 0, blocks_axis)
    shard = jnp.zeros((*like.shape[:3], blocks.shape[-1]), blocks.dtype)
    return shard.at[:, *shard_index(side, rank)].set(blocks, mode="drop")


# ---- Tiles: a block of queries and a block of keys, under the mask.

if not DYNAMIC:

    def tile_mask(i, j):
        """Return the positions of a query block and a key block, and the mask."""
        return jnp.asarray(query_blocks.at)[i], jnp.asarray(key_blocks.at)[j], allowed


def attend_tile(state, tile):
    """Attend a block of queries to a block of keys, and merge the result."""
    i, j, q, kv, out, *box = tile
    q, kv = state["Q"][0][q], [x[kv] for x in state["KV"]]
    if ANY_HEADS:
        part = attend_masked(q, kv, *tile_mask(i, j, *box))
    else:
        head, meets = kv_heads_of(i, j)
        part, lse = attend_masked(q, [x[:, head] for x in kv], *tile_mask(i, j, *box))
        part = jnp.where(meets, part, 0), jnp.where(meets, lse, -jnp.inf)
    return add_to_slots(state, "OUT", out[None], [x[None] for x in part])


def attend_tile_backward(state, tile):
    """Add the gradients from attending a block of queries to a block of keys."""
    i, j, q, dout, stats, kv, dq, dkv, *box = tile
    slots = {"Q": q, "DOUT": dout, "STATS": stats, "KV": kv}
    *queries, k, v = (x[n] for name, n in slots.items() for x in state[name])
    if ANY_HEADS:
        dq_part, parts = attend_masked_backward(queries, (k, v), *tile_mask(i, j, *box))
    else:
        head, meets = kv_heads_of(i, j)
        keys = k[:, head], v[:, head]
        grads = attend_masked_backward(queries, keys, *tile_mask(i, j, *box))
        dq_part, parts = jax.tree.map(lambda x: jnp.where(meets, x, 0), grads)
        pairs = zip((k, v), parts, strict=True)
        parts = [jnp.zeros(x.shape, accum_dtype(x)).at[:, head].add(y) for x, y in pairs]
    state = add_to_slots(state, "DQ", dq[None], [dq_part[None]])
    return add_to_slots(state, "DKV", dkv[None], [x[None] for x in parts])


def kv_heads_of(i, j):
    """Return the key head that each head of a query block uses, and True where there is one."""
    (first, count), (kv_first, kv_count) = (
        jnp.asarray(query_blocks.heads)[i],
        jnp.asarray(key_blocks.heads)[j],
    )
    n = jnp.arange(query_blocks.heads[:, 1].max())
    head = (first + n) // (HEADS // KV_HEADS) - kv_first
    meets = (n < count) & (head >= 0) & (head < kv_count)
    return jnp.where(meets, head, 0), meets[:, None, None]
