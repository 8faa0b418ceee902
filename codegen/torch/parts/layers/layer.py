"""A decoder layer around attention, whose backward pass does not recompute attention."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from codegen.torch.parts.merge import wide
from codegen.torch.parts.stubs import allowed, backward, forward, positions, tables

RANKS, SEQ, HEADS, KV_HEADS, HEAD_DIM, DIM, HIDDEN = 1, 1, 1, 1, 1, 1, 1
PLAN: dict[str, Any] = {}


# ---- Decoder layer: RMSNorm, rotary embedding by true positions, attention, SwiGLU.

names_before = ("attention_norm", "wq", "wk", "wv")  # parameters on the way to attention
names_after = ("wo", "ffn_norm", "gate", "up", "down")  # and from there on
names = names_before + names_after
rows = 1024  # tokens that go through the feed-forward network at a time
Params = dict[str, Tensor]


def init(
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    *,
    dim: int = DIM,
    hidden: int = HIDDEN,
) -> Params:
    """Random parameters: for one seed the same ones on every rank; matrices are [out, in]."""
    random, queries, keys = (
        torch.Generator().manual_seed(seed),
        HEADS * HEAD_DIM,
        KV_HEADS * HEAD_DIM,
    )
    shapes = {"wq": (queries, dim), "wk": (keys, dim), "wv": (keys, dim), "wo": (dim, queries)}
    shapes |= {"gate": (hidden, dim), "up": (hidden, dim), "down": (dim, hidden)}
    params = {name: torch.ones(dim, dtype=dtype) for name in ("attention_norm", "ffn_norm")}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=random, dtype=torch.float64) / shape[1] ** 0.5
        params[name] = value.to(dtype)
    return {name: params[name].to(device).requires_grad_() for name in names}


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x over its root mean square along the last axis, in at least 32 bits."""
    y = x.to(wide(x))
    return (y * torch.rsqrt((y * y).mean(dim=-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def rotate(x: Tensor, at: Tensor) -> Tensor:
    """Rotary embedding of x [..., tokens, head_dim]: entry i turns with entry i + head_dim / 2."""
    half = HEAD_DIM // 2
    speeds = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = at.to(x.device)[:, None] * speeds
    cos, sin, (a, b) = angles.cos().to(wide(x)), angles.sin().to(wide(x)), x.split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def project(params: Params, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [batch, heads, tokens, head_dim] of tokens at some positions."""
    h = rms_norm(x, params["attention_norm"])
    q, k, v = (
        (h @ params[name].T).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        for name in ("wq", "wk", "wv")
    )
    return rotate(q, at), rotate(k, at), v


def finish(params: Params, x: Tensor, out: Tensor) -> Tensor:
    """The way on from attention, token by token: residual, feed-forward network, residual."""
    x = x + out.transpose(1, 2).flatten(2) @ params["wo"].T
    h = rms_norm(x, params["ffn_norm"])
    h = torch.nn.functional.silu(h @ params["gate"].T) * (h @ params["up"].T)
    return x + h @ params["down"].T


class DecoderLayer(torch.autograd.Function):
    """Keeps x and what attention returned; its backward pass repeats the rest, not attention."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, where: Any, *values: Tensor) -> Tensor:
        ctx.where, ctx.rank, params = where, where[-1].rank(), dict(zip(names, values, strict=True))
        kind = x.device.type
        ctx.cast = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        q, k, v = project(params, x, own_positions(x, where))
        saved = forward(q.contiguous(), k.contiguous(), v.contiguous(), named(where))
        ctx.save_for_backward(x, *values, *saved)
        parts = zip(x.split(rows, dim=1), saved[0].split(rows, dim=2), strict=True)
        return torch.cat([finish(params, *part) for part in parts], dim=1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *values = map(leaf, ctx.saved_tensors[: 1 + len(names)])
        saved, params = ctx.saved_tensors[1 + len(names) :], dict(zip(names, values, strict=True))
        with torch.autocast(x.device.type, *ctx.cast), torch.enable_grad():
            dx, dout, after = finish_backward(params, x, saved[0], dy)
            qkv = project(params, x, own_positions(x, ctx.where))
            inputs = [y.detach().contiguous() for y in qkv]
            slopes = backward(dout, [*inputs, *saved], named(ctx.where))
            used = [x, *(params[name] for name in names_before)]
            dx_before, *before = torch.autograd.grad(qkv, used, slopes)
        return dx + dx_before, None, *before, *after


def finish_backward(
    params: Params, x: Tensor, out: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """`finish` again, some rows at a time, for the gradients of x, out and its parameters."""
    used = [params[name] for name in names_after]
    sums, dxs, douts = [torch.zeros_like(y, dtype=wide(y)) for y in used], [], []
    parts = x.split(rows, dim=1), out.split(rows, dim=2), dy.split(rows, dim=1)
    for x_part, out_part, dy_part in zip(*parts, strict=True):
        inputs = leaf(x_part), leaf(out_part)
        dx, dout, *shares = torch.autograd.grad(finish(params, *inputs), [*inputs, *used], dy_part)
        dxs.append(dx)
        douts.append(dout)
        for total, share in zip(sums, shares, strict=True):
            total += share
    shares = [total.to(value.dtype) for total, value in zip(sums, used, strict=True)]
    return torch.cat(dxs, dim=1), torch.cat(douts, dim=2).contiguous(), shares


def leaf(x: Tensor) -> Tensor:
    """The same values as the start of a graph of its own."""
    return x.detach().requires_grad_()


def decoder_layer(params: Params, x: Tensor, *, group: Any = None) -> Tensor:  # :layer
    """A decoder layer on sharded sequences, differentiable in x and in the parameters.

    x: this rank's tokens [batch, tokens, dim], at its `positions`; the result is like x. All ranks
    of the group call it together, with the same parameters. A rank's gradients of the parameters
    are the share of its tokens: sum them over the group, as data parallelism does. Raises
    ValueError for other shapes.
    """
    if not all(map(torch.equal, tables.shards["q"], tables.shards["kv"])):  # given
        raise ValueError("a decoder layer needs queries and keys of a token on the same rank")
    group = group or dist.group.WORLD
    if group.size() != RANKS:
        raise ValueError(f"the program is for {RANKS} ranks, but the group has {group.size()}")
    if set(params) != set(names):
        raise ValueError(f"the parameters are {[*params]}, not {[*names]}")
    where: Any = (group,)  # bound
    where = tables, group  # given
    tokens, dim = len(own_positions(x, where)), params["wo"].shape[0]
    if x.ndim != 3 or [*x.shape[1:]] != [tokens, dim] or not x.is_floating_point():
        raise ValueError(f"x is {x.dtype} {[*x.shape]}, not floats [batch, {tokens}, {dim}]")
    for name, heads in (("wq", HEADS), ("wk", KV_HEADS), ("wv", KV_HEADS)):
        if [*params[name].shape] != (wanted := [heads * HEAD_DIM, dim]):
            raise ValueError(f"{name} is {[*params[name].shape]}, not {wanted}")
    y: Tensor = DecoderLayer.apply(x, where, *(params[name] for name in names))
    return y


def own_positions(x: Tensor, where: Any) -> Tensor:
    """The positions of this rank's tokens."""
    tokens = x.shape[1] * RANKS  # free
    tokens = SEQ  # fixed bound
    return positions(where[-1].rank(), tokens)  # :positions


def named(where: Any) -> str:
    """The group as operators take it."""  # bound
    """The tables and the group as operators take them."""  # given
    name: str = where[-1].group_name
    name = f"{where[0].name} {name}"  # given
    return name


def reference(params: Params, x: Tensor) -> Tensor:  # :reference
    """The layer by its definition on one device; x: all tokens in sequence order."""
    q, k, v = project(params, x, torch.arange(x.shape[1]))
    rules: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}
    parts = list[Tensor]()
    for own in torch.arange(x.shape[1]).split(256):
        seen = allowed(own[:, None], torch.arange(x.shape[1])).to(x.device)  # bound
        seen = allowed(own, tables).to(x.device)  # given
        parts.append(scaled_dot_product_attention(q[:, :, own], k, v, seen, **rules))
    return finish(params, x, torch.cat(parts, 2))


# ---- Self-check: every rank compares its tokens with the layer on one device, in float64.


def compared(seq: Any, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """The output, dx and the gradients of the parameters, each beside that of the reference."""
    tables, seq = seq, seq.seq  # given
    random, params = torch.Generator().manual_seed(0), init(0, kind[1], kind[0], dim=64, hidden=96)
    x, dy = (torch.randn(1, seq, 64, generator=random).to(*kind) for _ in range(2))
    at = positions(dist.get_rank(), seq).to(x.device)  # bound
    at = positions(dist.get_rank(), tables).to(x.device)  # given
    ours, exact = leaf(x[:, at]), {name: leaf(params[name].double()) for name in names}
    y, whole = decoder_layer(params, ours), leaf(x.double())  # :ours
    y.backward(dy[:, at])
    wanted = reference(exact, whole)  # :wanted
    wanted.backward(dy.double())
    pairs = [(y, wanted[:, at]), (ours.grad, whole.grad[:, at])]
    for name in names:
        dist.all_reduce(total := params[name].grad.double())
        unit = exact[name].grad.abs().max().clamp_min(1)
        pairs.append((total / unit, exact[name].grad / unit))
    return [(pad(x.flatten(), (0, 1)), pad(y.flatten(), (0, 1))) for x, y in pairs]  # never empty
