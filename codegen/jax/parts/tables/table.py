"""The interpreter of a table program: one scan per section of steps that send alike."""

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from codegen.jax.parts.masked import attend_masked, attend_masked_backward, merge, wide
from codegen.jax.parts.stubs import KEYS, QUERIES, allowed

RANKS = HEADS = KV_HEADS = V_HEAD_DIM = 1
FORWARD_HOPS = BACKWARD_HOPS = ()
FORWARD_SLOTS: dict[str, int] = {}
BACKWARD_SLOTS: dict[str, int] = {}
KEPT: dict[str, list[list[int]]] = {}

# ---- Schedule: all ranks run the same steps; tables say which blocks they send and attend.


class Hop(NamedTuple):
    """In these steps ranks send up to `width` blocks of each tensor to the rank `by` further on."""

    steps: range
    tensors: tuple[str, ...]
    by: int
    width: int
    finished: bool = False  # sums to which nothing will be added, sent in the type of the model


class Side(NamedTuple):
    """The blocks of queries, or of keys, as arrays."""

    at: np.ndarray  # positions [blocks, tokens]; -1 stands for none, here and below
    tokens: np.ndarray  # where these tokens are in the shard of their owner [blocks, tokens]
    heads: np.ndarray  # the first head of each block, and how many [blocks, 2]
    own: np.ndarray  # the blocks of each rank [ranks, most]


def side_of(blocks, positions):
    """The side of blocks as text: owner, first of its tokens, tokens, first head, heads of each."""
    owner, first, count, *heads = np.array(blocks.replace("|", "").split(), int).reshape(-1, 5).T
    shards = [positions(rank) for rank in range(RANKS)]
    real = [np.flatnonzero(shard >= 0) for shard in shards]
    tokens = [real[r][a : a + n] for r, a, n in zip(owner, first, count, strict=True)]
    at = [shards[r][x] for r, x in zip(owner, tokens, strict=True)]
    own = [np.flatnonzero(owner == rank) for rank in range(RANKS)]
    return Side(padded_rows(at), padded_rows(tokens), np.stack(heads, 1), padded_rows(own))


def padded_rows(rows, nothing=-1):
    """Rows of different lengths as one array."""
    width = max(map(len, rows))
    rows = [np.pad(row, (0, width - len(row)), constant_values=nothing) for row in rows]
    return np.array(rows, np.int32)


def numbers(text, width):
    """A table of a line per step and rank: moves [steps, ranks, slots], tiles [.., n, width]."""
    lines = [line.split("|") for line in text.replace("-", str(NOWHERE)).strip().split("\n")]
    columns = zip(*([np.array(part.split(), int) for part in line] for line in lines), strict=True)
    moves, tiles = (padded_rows(column, NOWHERE) for column in columns)
    steps, most = len(moves) // RANKS, tiles.shape[1] // width
    return moves.reshape(steps, RANKS, moves.shape[1]), tiles.reshape(steps, RANKS, most, width)


NOWHERE = 2**30  # stands for no slot, no token, no tile
ABSENT = {"OUT": (0, -jnp.inf), "DQ": (0,), "DKV": (0, 0)}  # what a sum is where there is none


def run_forward(q, k, v, axis, rows):
    """Output, and what the backward pass needs, named for checkpoint policies."""
    rank = lax.axis_index(axis)
    results = [q, q[..., :1]]  # equal
    results = [jnp.zeros((*q.shape[:-1], V_HEAD_DIM), q.dtype), q[..., :1]]  # unequal
    arrays = {"Q": [q], "KV": [k, v], "OUT": results}
    state = run(FORWARD_HOPS, rows, begin(arrays, FORWARD_SLOTS, rank), attend_tile, axis)
    out, lse = (into_shard(x, q, QUERIES, rank) for x in state["OUT"])
    kept = [[x[jnp.array(n)[rank]] for x in state[name]] for name, n in KEPT.items()]  # keeping
    kept = checkpoint_name(kept, "attention_kept")  # keeping
    out, lse = checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")
    return out.astype(q.dtype), (q, k, v, out, lse)  # fresh
    return out.astype(q.dtype), (q, k, v, out, lse, *kept)  # keeping


def run_backward(axis, saved, dout, rows):
    """Gradients of a rank's queries, keys and values."""
    q, k, v, out, lse = saved  # fresh
    q, k, v, out, lse, *kept = saved  # keeping
    rank = lax.axis_index(axis)
    delta = (dout.astype(wide(q)) * out).sum(-1, keepdims=True)
    arrays = {"Q": [q], "DOUT": [dout], "STATS": [lse, delta], "KV": [k, v]}
    arrays |= {"DQ": [q], "DKV": [k, v]}
    held = dict(zip(KEPT, kept, strict=False))  # none if no forward pass ran  # keeping
    state = begin(arrays, BACKWARD_SLOTS, rank)  # fresh
    state = begin(arrays, BACKWARD_SLOTS, rank, held)  # keeping
    state = run(BACKWARD_HOPS, rows, state, attend_tile_backward, axis)
    dq = into_shard(state["DQ"][0], q, QUERIES, rank)
    dk, dv = (into_shard(x, k, KEYS, rank) for x in state["DKV"])
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)


def run(hops, rows, state, attend, axis):
    """Run all steps, those of the same hops in one scan."""
    (moves, tiles), rank = rows, lax.axis_index(axis)
    cuts = sorted({0, len(moves)}.union(*({h.steps.start, h.steps.stop} for h in hops)))
    for a, b in pairwise(cuts):
        active = [*with_pairs([h for h in hops if a in h.steps], moves[a:b])]
        own = (jnp.asarray(x[a:b])[:, rank] for x in (moves, tiles))
        state, _ = lax.scan(partial(run_step, active, attend, axis), state, tuple(own))
    return state


def with_pairs(hops, moves):
    """Hops, each with its pairs of ranks of which one sends, in slots [steps, ranks, numbers]."""
    at = 0
    for hop in hops:
        sent = (moves[:, :, at : at + hop.width] < NOWHERE).any((0, 2))
        yield hop, [(r, (r + hop.by) % RANKS) for r in np.flatnonzero(sent).tolist()]
        at += 2 * hop.width * len(hop.tensors)


def run_step(hops, attend, axis, state, row):
    """One step: what is sent leaves first, then tiles are attended, then all arrives."""
    (slots, tiles), arriving = row, []
    for (_, tensors, _, width, finished), pairs in hops:
        for name in tensors:
            leave, arrive, slots = slots[:width], slots[width : 2 * width], slots[2 * width :]
            blocks = taken(state, name, leave)
            if name in ABSENT:
                state = state | {name: replaced(state[name], leave, ABSENT[name])}
            if finished:
                blocks = [x.astype(state["Q"][0].dtype) if x.shape[-1] > 1 else x for x in blocks]
            arriving.append((name, arrive, lax.ppermute(blocks, axis, pairs)))
    state = lax.fori_loop(0, (tiles[:, 0] < NOWHERE).sum(), lambda n, x: attend(x, tiles[n]), state)
    for name, arrive, blocks in arriving:
        state = added(state, name, arrive, blocks)
    return state, None


def meeting(i, j):  # bound
    """Positions of a block of queries and of a block of keys, and which pairs count."""
    return jnp.asarray(QUERIES.at)[i], jnp.asarray(KEYS.at)[j], allowed


def taken(state, name, slots):
    """The blocks in some slots of a tensor; nothing where there is no slot."""
    pairs = zip(state[name], ABSENT.get(name, (0, 0)), strict=False)
    return [x.at[slots].get(mode="fill", fill_value=fill) for x, fill in pairs]


def replaced(arrays, slots, blocks):
    """The arrays of a tensor with other blocks in some slots."""
    pairs = zip(arrays, blocks, strict=True)
    return [x.at[slots].set(block, mode="drop") for x, block in pairs]


def added(state, name, slots, blocks):
    """The state with blocks in some slots: copies, or sums added to those that are there."""
    if name == "OUT":
        blocks = merge(*taken(state, name, slots), *blocks)
    elif name in ABSENT:
        blocks = [x + y for x, y in zip(taken(state, name, slots), blocks, strict=True)]
    return state | {name: replaced(state[name], slots, blocks)}


def begin(arrays, sizes, rank, held=()):
    """The slots of each tensor: a rank's own blocks, those that it holds, and room; no sums yet."""
    state = {}
    for name, shards in arrays.items():
        blocks = [from_shard(x, KEYS if "KV" in name else QUERIES, rank) for x in shards]
        if name in held:  # keeping
            blocks = [jnp.concatenate(x) for x in zip(blocks, held[name], strict=True)]
        shapes = [(sizes[name], *x.shape[1:]) for x in blocks]
        if name in ABSENT:
            sums = zip(shapes, ABSENT[name], strict=True)
            state[name] = [jnp.full(shape, nothing, wide(shards[0])) for shape, nothing in sums]
        else:
            copies = zip(shapes, blocks, strict=True)
            state[name] = [jnp.zeros(shape, x.dtype).at[: len(x)].set(x) for shape, x in copies]
    return state


def places(side, rank):
    """Where in its shard the tokens of a rank's own blocks are, NOWHERE for none."""  # whole
    """Where in its shard a rank's own blocks are: heads and tokens, NOWHERE for none."""  # heads
    own = jnp.asarray(side.own)[rank]
    tokens = jnp.asarray(side.tokens)[own]
    tokens = jnp.where((own[:, None] >= 0) & (tokens >= 0), tokens, NOWHERE)
    return tokens  # whole
    first, count = jnp.asarray(side.heads)[own].T[..., None]  # heads
    n = jnp.arange(side.heads[:, 1].max())  # heads
    heads = jnp.where((own[:, None] >= 0) & (n < count), first + n, NOWHERE)  # heads
    return heads[:, :, None], tokens[:, None]  # heads


def from_shard(x, side, rank):
    """The blocks that a rank owns, of its shard [batch, heads, tokens, width]."""
    blocks = x.at[:, :, places(side, rank)].get(mode="fill", fill_value=0)  # whole
    return jnp.moveaxis(blocks, 2, 0)  # whole
    return jnp.moveaxis(x.at[:, *places(side, rank)].get(mode="fill", fill_value=0), 1, 0)  # heads


def into_shard(blocks, like, side, rank):
    """The shard of a rank, from the first of some slots, which hold the blocks that it owns."""
    at = places(side, rank)
    shard = jnp.zeros((*like.shape[:3], blocks.shape[-1]), blocks.dtype)
    return shard.at[:, :, at].set(jnp.moveaxis(blocks[: len(at)], 0, 2), mode="drop")  # whole
    return shard.at[:, *at].set(jnp.moveaxis(blocks[: len(at[0])], 0, 1), mode="drop")  # heads


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
    (q,), keys = ([x[n] for x in state[name]] for name, n in (("Q", q), ("KV", kv)))  # whole
    parts = attend_masked(q, keys, *meeting(i, j, *box))  # whole
    head, meets = kv_heads_of(i, j)  # heads
    q, keys = state["Q"][0][q], [x[kv][:, head] for x in state["KV"]]  # heads
    out_part, lse = attend_masked(q, keys, *meeting(i, j, *box))  # heads
    parts = jnp.where(meets, out_part, 0), jnp.where(meets, lse, -jnp.inf)  # heads
    return added(state, "OUT", out[None], [x[None] for x in parts])


def attend_tile_backward(state, tile):
    """Add the gradients of a block of queries and a block of keys."""
    i, j, q, dout, stats, kv, dq, dkv, *box = tile
    head, meets = kv_heads_of(i, j)  # heads
    slots = {"Q": q, "DOUT": dout, "STATS": stats, "KV": kv}
    *queries, k, v = (x[n] for name, n in slots.items() for x in state[name])
    dq_part, parts = attend_masked_backward(queries, (k, v), *meeting(i, j, *box))  # whole
    keys = k[:, head], v[:, head]  # heads
    grads = attend_masked_backward(queries, keys, *meeting(i, j, *box))  # heads
    dq_part, parts = jax.tree.map(lambda x: jnp.where(meets, x, 0), grads)  # heads
    pairs = zip((k, v), parts, strict=True)  # heads
    parts = [jnp.zeros(x.shape, wide(x)).at[:, head].add(y) for x, y in pairs]  # heads
    state = added(state, "DQ", dq[None], [dq_part[None]])
    return added(state, "DKV", dkv[None], [x[None] for x in parts])
