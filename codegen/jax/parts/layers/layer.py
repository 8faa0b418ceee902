"""A decoder layer around attention: RMSNorm, rotary embedding, attention, SwiGLU."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from codegen.jax.parts.dense import dense
from codegen.jax.parts.masked import wide
from codegen.jax.parts.stubs import attention, positions

RANKS = SEQ = HEADS = KV_HEADS = HEAD_DIM = DIM = HIDDEN = 1
NORM_EPS, ROPE_BASE = 1e-5, 10000.0


# ---- Decoder layer


def init(seed, dtype=jnp.float32, *, dim=DIM, hidden=HIDDEN):
    """Random parameters, name -> array; matrices are [width in, width out]."""
    random, queries, keys = np.random.default_rng(seed), HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {"wq": (dim, queries), "wk": (dim, keys), "wv": (dim, keys), "wo": (queries, dim)}
    shapes |= {"gate": (dim, hidden), "up": (dim, hidden), "down": (hidden, dim)}
    params = {n: random.standard_normal(s) / math.sqrt(s[0]) for n, s in shapes.items()}
    params |= {name: np.ones(dim) for name in ("attention_norm", "ffn_norm")}
    return {name: jnp.asarray(x, dtype) for name, x in params.items()}


def rms_norm(x, weight):
    """x over its root mean square along the last axis, in at least 32 bits."""
    y = x.astype(wide(x))
    y = y * lax.rsqrt((y * y).mean(-1, keepdims=True) + NORM_EPS)
    return y.astype(x.dtype) * weight


def turns(at, dtype):
    """cos and sin [tokens, head_dim / 2] of the angles at known positions."""
    speeds = ROPE_BASE ** -(np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = np.maximum(at, 0)[:, None] * speeds  # in 64 bits: far positions need them
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotate(x, cos, sin):
    """Rotary embedding of x [..., tokens, head_dim]: entry i turns with entry i + head_dim / 2."""
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def project(params, x, at):
    """Queries, keys and values [batch, heads, tokens, head_dim] of x at known positions."""
    h, angles = rms_norm(x, params["attention_norm"]), turns(at, wide(x))
    q, k, v = (
        jnp.moveaxis((h @ params[name]).reshape(*h.shape[:2], -1, HEAD_DIM), 2, 1)
        for name in ("wq", "wk", "wv")
    )
    return rotate(q, *angles), rotate(k, *angles), v


def finish(params, x, out):
    """The way on from attention, token by token: residual, feed-forward network, residual."""
    x = x + jnp.moveaxis(out, 1, 2).reshape(*x.shape[:2], -1) @ params["wo"]
    h = rms_norm(x, params["ffn_norm"])
    return x + (jax.nn.silu(h @ params["gate"]) * (h @ params["up"])) @ params["down"]


def reference(params, x):
    """The layer by its definition on one device, differentiable, in the order of the sequence."""
    return finish(params, x, dense(*project(params, x, np.arange(x.shape[1]))))


def decoder_layer(
    params: dict[str, jax.Array],
    x: jax.Array,
    tables: dict[str, jax.Array],  # given
    *,
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
) -> jax.Array:
    """A decoder layer on sequences sharded over an axis of a mesh, differentiable in both.

    x, and the result: [batch, tokens, dim], tokens in layout order.
    Padding counts as zero, whatever it holds, and the result is zero there.  # padded
    The backward pass computes norms, projections, rotations and the feed-forward network again, but
    not attention nor its messages (DistFlashAttn, section 3.3). Raises ValueError for integers.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x is {x.dtype}{[*x.shape]}, not floats [batch, tokens, dim]")
    at = np.concatenate([positions(rank, SEQ) for rank in range(RANKS)])  # fixed
    at = np.concatenate([positions(rank, x.shape[1]) for rank in range(RANKS)])  # free
    attend = partial(attention, mesh=mesh, axis=axis, batch_axis=batch_axis)  # bound
    attend = partial(attention, tables=tables, mesh=mesh, axis=axis, batch_axis=batch_axis)  # given
    saved = "attention_out", "attention_lse", "attention_kept"
    tokens = jnp.asarray(at >= 0)[:, None]  # padded

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(*saved))
    def layer(params, x):
        x = jnp.where(tokens, x, 0)  # padded
        return finish(params, x, attend(*project(params, x, at)))  # unpadded
        return jnp.where(tokens, finish(params, x, attend(*project(params, x, at))), 0)  # padded

    return layer(params, x)
