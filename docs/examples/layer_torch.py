"""A decoder layer around the `attention` of an emitted program.

    ringloom emit torch zigzag --ranks 4 --seq 64k --heads 32 --kv-heads 8 -o attention.py

The layer has RMSNorm, rotary embedding, attention and SwiGLU. A checkpoint keeps the input of the
layer and recomputes the rest in the backward pass, which would repeat all transfers of distributed
attention. The policy therefore also keeps the results of attention (DistFlashAttn, section 3.3).
"""

from functools import partial

import torch
from torch.nn.functional import silu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)


def init(seed, dim, hidden, heads, kv_heads, head_dim, dtype=torch.float32, device="cpu"):
    """Returns random parameters by name, the same on every rank for a given seed."""
    random = torch.Generator().manual_seed(seed)
    shapes = {"wq": (heads, head_dim, dim), "wk": (kv_heads, head_dim, dim)}
    shapes |= {"wv": (kv_heads, head_dim, dim), "wo": (heads, head_dim, dim)}
    shapes |= {"gate": (hidden, dim), "up": (hidden, dim), "down": (hidden, dim)}
    params = {name: torch.ones(dim, dtype=dtype) for name in ("attention_norm", "ffn_norm")}
    for name, shape in shapes.items():
        width = {"wo": heads * head_dim, "down": hidden}.get(name, dim)
        value = torch.randn(shape, generator=random, dtype=torch.float64) / width**0.5
        params[name] = value.to(dtype)
    return {name: value.to(device).requires_grad_() for name, value in params.items()}


def decoder_layer(params, x, positions, attend):
    """Computes the layer of x [batch, tokens, dim], differentiable in x and in the parameters.

    positions: the positions of these tokens. attend: a function of q, k and v, such as
    `partial(attention, group=group)`. A rank's gradients of the parameters include only its own
    tokens: sum them over the group.
    """
    contexts = partial(create_selective_checkpoint_contexts, keep_attention)
    return checkpoint(layer, params, x, positions, attend, use_reentrant=False, context_fn=contexts)


def keep_attention(context, operator, *args, **kwargs):
    """Checkpoint policy: saves the results of attention and recomputes everything else."""
    if operator.namespace == "ringloom":  # each pass of an emitted program is one operator
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def layer(params, x, positions, attend):
    """Computes the layer without a checkpoint."""
    h = rms_norm(x, params["attention_norm"])
    q, k, v = (torch.einsum("btd,hed->bhte", h, params[name]) for name in ("wq", "wk", "wv"))
    out = attend(rotate(q, positions), rotate(k, positions), v)
    x = x + torch.einsum("bhte,hed->btd", out, params["wo"])
    h = rms_norm(x, params["ffn_norm"])
    return x + (silu(h @ params["gate"].T) * (h @ params["up"].T)) @ params["down"]


def rms_norm(x, weight):
    """Divides x by its root mean square along the last axis, in at least 32 bits."""
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    return (y * torch.rsqrt((y * y).mean(dim=-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def rotate(x, positions):
    """Applies RoPE to x [..., tokens, head_dim]; entries i and i + head_dim / 2 form a pair."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = positions.to(x.device)[:, None] * speeds  # in 64 bits, which large positions need
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin, (a, b) = angles.cos().to(dtype), angles.sin().to(dtype), x.split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
