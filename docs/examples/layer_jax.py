"""A decoder layer around the `attention` of an emitted program.

    ringloom emit jax zigzag --ranks 4 --seq 64k --heads 32 --kv-heads 8 -o attention.py

The layer has RMSNorm, rotary embedding, attention and SwiGLU. A checkpoint keeps the input of the
layer and recomputes the rest in the backward pass, which would repeat all transfers of distributed
attention. The policy therefore also keeps the results of attention (DistFlashAttn, section 3.3).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Emitted programs use these names for their results and for copies that the backward pass reads.
KEEP_ATTENTION = jax.checkpoint_policies.save_only_these_names(
    "attention_out", "attention_lse", "attention_kept"
)


def init(seed, dim, hidden, heads, kv_heads, head_dim, dtype=jnp.float32):
    """Returns random parameters by name."""
    random = np.random.default_rng(seed)
    shapes = {"wq": (heads, head_dim, dim), "wk": (kv_heads, head_dim, dim)}
    shapes |= {"wv": (kv_heads, head_dim, dim), "wo": (heads, head_dim, dim)}
    shapes |= {"gate": (hidden, dim), "up": (hidden, dim), "down": (hidden, dim)}
    params = {name: np.ones(dim) for name in ("attention_norm", "ffn_norm")}
    for name, shape in shapes.items():
        width = {"wo": heads * head_dim, "down": hidden}.get(name, dim)
        params[name] = random.standard_normal(shape) / width**0.5
    return {name: jnp.asarray(value, dtype) for name, value in params.items()}


def decoder_layer(params, x, positions, attend):
    """Computes the layer of x [batch, tokens, dim], differentiable in x and in the parameters.

    positions: the positions of the tokens in layout order, a numpy array; -1 is padding, whose
    results are meaningless. attend: a function of q, k and v, such as `partial(attention,
    mesh=mesh)`.
    """
    checkpointed = jax.checkpoint(
        partial(layer, positions=positions, attend=attend), policy=KEEP_ATTENTION
    )
    return checkpointed(params, x)


def layer(params, x, positions, attend):
    """Computes the layer without a checkpoint."""
    h = rms_norm(x, params["attention_norm"])
    q, k, v = (jnp.einsum("btd,hed->bhte", h, params[name]) for name in ("wq", "wk", "wv"))
    out = attend(rotate(q, positions), rotate(k, positions), v)
    x = x + jnp.einsum("bhte,hed->btd", out, params["wo"])
    h = rms_norm(x, params["ffn_norm"])
    return x + (jax.nn.silu(h @ params["gate"].T) * (h @ params["up"].T)) @ params["down"]


def rms_norm(x, weight):
    """Divides x by its root mean square along the last axis, in at least 32 bits."""
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def rotate(x, positions):
    """Applies RoPE to x [..., tokens, head_dim]; entries i and i + head_dim / 2 form a pair."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** -(np.arange(half) / half)
    angles = positions[:, None] * speeds  # in 64 bits, which large positions need
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    cos, sin, (a, b) = (
        np.cos(angles).astype(dtype),
        np.sin(angles).astype(dtype),
        jnp.split(x, 2, -1),
    )
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
