"""A decoder layer around the `attention` of an emitted program.

    ringloom emit jax zigzag --ranks 4 --seq 64k --heads 32 --kv-heads 8 -o attention.py

RMSNorm, rotary embedding, attention, SwiGLU. A checkpoint keeps the input of the layer and computes
the rest again in the backward pass; around distributed attention that would repeat all transfers.
Its policy therefore keeps what attention returned, too (DistFlashAttn, section 3.3).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# What an emitted program names: its results, and copies that its backward pass reads.
KEEP_ATTENTION = jax.checkpoint_policies.save_only_these_names(
    "attention_out", "attention_lse", "attention_kept"
)


def init(seed, dim, hidden, heads, kv_heads, head_dim, dtype=jnp.float32):
    """Random parameters by name."""
    random = np.random.default_rng(seed)
    shapes = {"wq": (heads, head_dim, dim), "wk": (kv_heads, head_dim, dim)}
    shapes |= {"wv": (kv_heads, head_dim, dim), "wo": (heads, head_dim, dim)}
    shapes |= {"gate": (hidden, dim), "up": (hidden, dim), "down": (hidden, dim)}
    params = {name: np.ones(dim) for name in ("attention_norm", "ffn_norm")}
    for name, shape in shapes.items():
        width = {"wo": heads * head_dim, "down": hidden}.get(name, dim)
        params[name] = random.standard_normal(shape) / width**0.5
    return {name: jnp.asarray(value, dtype) for name, value in params.items()}


def decoder_layer(params, x, at, attend):
    """The layer of x [batch, tokens, dim], differentiable in x and in the parameters.

    at: the positions of the tokens in layout order, a numpy array; -1 is padding, whose results
    mean nothing. attend: attention of q, k and v as an emitted program takes them,
    `partial(attention, mesh=mesh)`.
    """
    kept = jax.checkpoint(partial(layer, at=at, attend=attend), policy=KEEP_ATTENTION)
    return kept(params, x)


def layer(params, x, at, attend):
    """The layer without a checkpoint."""
    h = rms_norm(x, params["attention_norm"])
    q, k, v = (jnp.einsum("btd,hed->bhte", h, params[name]) for name in ("wq", "wk", "wv"))
    out = attend(rotate(q, at), rotate(k, at), v)
    x = x + jnp.einsum("bhte,hed->btd", out, params["wo"])
    h = rms_norm(x, params["ffn_norm"])
    return x + (jax.nn.silu(h @ params["gate"].T) * (h @ params["up"].T)) @ params["down"]


def rms_norm(x, weight):
    """x over its root mean square along the last axis, in at least 32 bits."""
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def rotate(x, at):
    """Rotary embedding of x [..., tokens, head_dim]: entry i turns with entry i + head_dim / 2."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** -(np.arange(half) / half)
    angles = at[:, None] * speeds  # in 64 bits: far positions need them
    kind = jnp.promote_types(x.dtype, jnp.float32)
    cos, sin, (a, b) = np.cos(angles).astype(kind), np.sin(angles).astype(kind), jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
