"""torch_layer_text   the text of a decoder layer: parameters, parts, the layer, its reference."""

PARAMETERS = '''
NORM_EPS, ROPE_BASE = 1e-5, {rope_base}
DIM, HIDDEN = {dim}, {hidden}  # widths of the model and of its feed-forward network
ROWS = 1024  # tokens that go through the feed-forward network at a time
BEFORE = ("attention_norm", "wq", "wk", "wv")  # parameters on the way to attention
AFTER = ("wo", "ffn_norm", "gate", "up", "down")  # and from there on
NAMES = BEFORE + AFTER


def init(seed, dtype=torch.float32, device="cpu", *, dim=DIM, hidden=HIDDEN):
    """Random parameters, name -> leaf tensor: for one seed the same ones on every rank.

    Matrices are [width out, width in], as torch.nn.Linear has them.
    """
    random = torch.Generator().manual_seed(seed)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {{
        "attention_norm": (dim,),
        "wq": (queries, dim),
        "wk": (keys, dim),
        "wv": (keys, dim),
        "wo": (dim, queries),
        "ffn_norm": (dim,),
        "gate": (hidden, dim),
        "up": (hidden, dim),
        "down": (dim, hidden),
    }}
    params = {{}}
    for name, shape in shapes.items():
        value = torch.ones(shape, dtype=torch.float64)
        if len(shape) == 2:
            value = torch.randn(shape, generator=random, dtype=torch.float64)
            value /= shape[1] ** 0.5
        params[name] = value.to(device, dtype).requires_grad_()
    return params
'''

PARTS = '''
def rms_norm(x, weight):
    """x over its root mean square along the last axis, in at least 32 bits."""
    y = x.to(wide(x.dtype))
    y = y * torch.rsqrt((y * y).mean(dim=-1, keepdim=True) + NORM_EPS)
    return y.to(x.dtype) * weight


def rotate(x, at):
    """Rotary embedding of x [..., tokens, head_dim] at positions `at`: entry i turns with entry
    i + head_dim / 2, by the position over ROPE_BASE ** (2 i / head_dim)."""
    half = HEAD_DIM // 2
    angles = at[:, None] / ROPE_BASE ** (np.arange(half) / half)
    angles = torch.as_tensor(angles, device=x.device)
    cos, sin = (f(angles).to(wide(x.dtype)) for f in (torch.cos, torch.sin))
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def project(params, x, at):
    """The way to attention: queries, keys and values [batch, heads, tokens, head_dim] of x
    [batch, tokens, dim] at positions `at`."""
    h = rms_norm(x, params["attention_norm"])
    q, k, v = (h @ params[name].T for name in ("wq", "wk", "wv"))
    q, k, v = (y.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for y in (q, k, v))
    return rotate(q, at), rotate(k, at), v


def finish(params, x, out):
    """The way on from attention, token by token: residual, feed-forward network, residual."""
    x = x + out.transpose(1, 2).flatten(2) @ params["wo"].T
    h = rms_norm(x, params["ffn_norm"])
    h = torch.nn.functional.silu(h @ params["gate"].T) * (h @ params["up"].T)
    return x + h @ params["down"].T
'''

LAYER = '''
def decoder_layer(params, x, *, group=None):
    """A decoder layer on sharded sequences, differentiable in x and in the parameters.

    x: this rank's tokens [batch, len(positions(rank)), dim]; result: like x. All ranks of the
    group (default: the world) call it together, with the same parameters. A rank's gradients of
    the parameters are the share of its tokens: sum them over the group, as data parallelism does.
    """
    return layer_of_length(params, x, group, SEQ)


@torch.compiler.disable
def layer_of_length(params, x, group, seq):
    """The same for other lengths, as the self-check needs it."""
    group = dist.group.WORLD if group is None else group
    check_layer(params, x, group, seq)
    return DecoderLayer.apply(x, group, seq, *(params[name] for name in NAMES))


def check_layer(params, x, group, seq):
    """Raise ValueError for parameters or tokens that this program is not made for."""
    check_group(group)
    if set(params) != set(NAMES):
        raise ValueError(f"the parameters are {[*params]}, not {[*NAMES]}")
    tokens, dim = len(positions(group.rank(), seq)), params["wo"].shape[0]
    if x.ndim != 3 or x.shape[1:] != (tokens, dim):
        raise ValueError(f"x is {[*x.shape]}, not [batch, {tokens}, {dim}]")
    if not x.is_floating_point():
        raise ValueError(f"x is {x.dtype}, not floats: embeddings, not tokens")
    for name, heads in (("wq", HEADS), ("wk", KV_HEADS), ("wv", KV_HEADS)):
        if params[name].shape != (heads * HEAD_DIM, dim):
            wanted = [heads * HEAD_DIM, dim]
            raise ValueError(f"{name} is {[*params[name].shape]}, not {wanted}")


class DecoderLayer(torch.autograd.Function):
    """A layer that keeps x and what attention returned, and nothing else.

    The backward pass computes norms, projections, rotations and the feed-forward network again,
    but not attention nor its messages (DistFlashAttn, section 3.3).
    """

    @staticmethod
    def forward(ctx, x, group, seq, *values):
        params = dict(zip(NAMES, values, strict=True))
        kind = x.device.type
        ctx.autocast = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.where = group, seq, seq
        q, k, v = project(params, x, positions(group.rank(), seq))
        out, lse, *ctx.kept = forward_pass(q, k, v, *ctx.where)
        ctx.save_for_backward(x, out, lse, *values)
        parts = zip(x.split(ROWS, dim=1), out.split(ROWS, dim=2), strict=True)
        return torch.cat([finish(params, *part) for part in parts], dim=1)

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivatives()
        x, out, lse, *values = ctx.saved_tensors
        dtype, enabled = ctx.autocast
        params = dict(zip(NAMES, map(leaf, values), strict=True))
        with torch.autocast(x.device.type, dtype, enabled):
            dx, dout, after = finish_backward(params, x, out, dy)
            with torch.enable_grad():
                x = leaf(x)
                qkv = project(params, x, positions(ctx.where[0].rank(), ctx.where[1]))
            inputs = [y.detach() for y in qkv]
            slopes = backward_pass(dout, *inputs, out, lse, *ctx.where, *ctx.kept)
            wanted = [x, *(params[name] for name in BEFORE)]
            dx_before, *before = torch.autograd.grad(qkv, wanted, slopes)
        return dx + dx_before, None, None, *before, *after


def finish_backward(params, x, out, dy):
    """`finish` again, some rows at a time, for the gradients of x, out and its parameters."""
    used = [params[name] for name in AFTER]
    sums = [torch.zeros_like(value, dtype=wide(value.dtype)) for value in used]
    dxs, douts = [], []
    parts = x.split(ROWS, dim=1), out.split(ROWS, dim=2), dy.split(ROWS, dim=1)
    for x_part, out_part, dy_part in zip(*parts, strict=True):
        inputs = leaf(x_part), leaf(out_part)
        with torch.enable_grad():
            y = finish(params, *inputs)
        dx, dout, *shares = torch.autograd.grad(y, [*inputs, *used], dy_part)
        dxs.append(dx)
        douts.append(dout)
        for total, share in zip(sums, shares, strict=True):
            total += share
    shares = [total.to(value.dtype) for total, value in zip(sums, used, strict=True)]
    return torch.cat(dxs, dim=1), torch.cat(douts, dim=2), shares


def leaf(x):
    """The same values as the start of a graph of its own."""
    return x.detach().requires_grad_()
'''

REFERENCE = '''
def reference(params, x, rows=None):
    """The layer by its definition on one device, differentiable.

    x: all tokens [batch, seq, dim] in the order of the sequence; result: like x, or only its
    rows at some positions.
    """
    rows = torch.arange(x.shape[1], device=x.device) if rows is None else rows
    q, k, v = project(params, x, np.arange(x.shape[1]))
    k, v = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (k, v))
    again = partial(torch.utils.checkpoint.checkpoint, dense, use_reentrant=False)
    parts = rows.split(max(1, 2**24 // (HEADS * x.shape[1])))
    out = torch.cat([again(q[:, :, some], k, v, some) for some in parts], dim=2)
    return finish(params, x[:, rows], out)


def dense(q, k, v, rows):
    """Attention of some rows by its definition."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * SCALE
    scores = scores.masked_fill(~allowed(rows, k.shape[2], 0), -torch.inf)
    return torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v
'''

CHECK = '''
def check(group, device, seq, kv_seq, dtype):
    """Compare a layer of small widths with the reference in float64: output and all gradients.

    Every rank compares its own rows. Above 16k tokens only sampled rows get a gradient and are
    compared. Errors count in units of the largest entry, if that is above 1. Returns the errors
    of y, dx and the parameters' gradients, and those of the reference in `dtype`.
    """
    mine = torch.as_tensor(positions(group.rank(), seq), device=device)
    params = init(0, dtype, device, dim=64, hidden=96)
    random = torch.Generator().manual_seed(1)
    x, dy = (
        torch.randn(1, seq, 64, generator=random, dtype=torch.float64).to(device, dtype)
        for _ in range(2)
    )
    chosen = torch.arange(0, seq, max(1, seq // 16384 and seq // 256), device=device)
    kept = torch.zeros(seq, dtype=dtype, device=device)
    kept[chosen] = 1
    dy = dy * kept[:, None]
    here = torch.isin(mine, chosen)

    local = leaf(x[:, mine])
    y = layer_of_length(params, local, group, seq)
    y.backward(dy[:, mine])
    shares = [params[name].grad for name in NAMES]
    for share in shares:
        dist.all_reduce(share, group=group)
    found = [y.detach()[:, here], local.grad, *shares]
    exact = reference_parts(params, x, dy, mine, here, group, torch.float64)
    rough = exact
    if dtype.itemsize < 4:
        rough = reference_parts(params, x, dy, mine, here, group, dtype)
    errors, floors = [], []
    for a, b, c in zip(found, exact, rough, strict=True):
        unit = max(1.0, worst(b, torch.zeros_like(b), group))
        errors.append(worst(a, b, group) / unit)
        floors.append(worst(c, b, group) / unit)
    return errors, floors


def reference_parts(params, x, dy, mine, here, group, dtype):
    """y, dx and gradients of the parameters by the reference: every rank its rows, then summed."""
    params = {name: leaf(params[name].to(dtype)) for name in NAMES}
    x, rows = leaf(x.to(dtype)), mine[here]
    y = reference(params, x, rows)
    y.backward(dy[:, rows].to(dtype))
    grads = [x.grad, *(params[name].grad for name in NAMES)]
    for grad in grads:
        dist.all_reduce(grad, group=group)
    return [y.detach(), grads[0][:, mine], *grads[1:]]
'''
