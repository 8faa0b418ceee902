"""jax_layer_text   the text of a decoder layer: parameters, parts, the layer, its reference."""

PARAMETERS = '''
NORM_EPS, ROPE_BASE = 1e-5, {rope_base}
DIM, HIDDEN = {dim}, {hidden}  # widths of the model and of its feed-forward network
ROWS = 1024  # tokens that go through the feed-forward network at a time


def init(seed, dtype=jnp.float32, *, dim=DIM, hidden=HIDDEN):
    """Random parameters, name -> array; matrices are [width in, width out]."""
    random = np.random.default_rng(seed)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {{
        "wq": (dim, queries),
        "wk": (dim, keys),
        "wv": (dim, keys),
        "wo": (queries, dim),
        "gate": (dim, hidden),
        "up": (dim, hidden),
        "down": (hidden, dim),
    }}
    norms = {{name: np.ones(dim) for name in ("attention_norm", "ffn_norm")}}
    made = {{n: random.standard_normal(s) / math.sqrt(s[0]) for n, s in shapes.items()}}
    return {{name: jnp.asarray(x, dtype) for name, x in (norms | made).items()}}
'''

PARTS = '''
def rms_norm(x, weight):
    """x over its root mean square along the last axis, in at least 32 bits."""
    y = x.astype(wide(x.dtype))
    y = y * lax.rsqrt((y * y).mean(axis=-1, keepdims=True) + NORM_EPS)
    return y.astype(x.dtype) * weight


def turns(at, last, dtype):
    """cos and sin [tokens, head_dim / 2] of the angles at positions 0 to `last`: entry i turns by
    the position over ROPE_BASE ** (2 i / head_dim). Angles of far positions need 64 bits, which
    devices may not have: so two small tables, of thousands and of the rest, are made beforehand."""
    half = HEAD_DIM // 2
    speeds = ROPE_BASE ** -(np.arange(half) / half)
    steps = 1024 * np.arange(last // 1024 + 1), np.arange(1024)
    tables = (np.exp(1j * step[:, None] * speeds) for step in steps)
    high, low = jnp.divmod(jnp.maximum(at, 0), 1024)
    pairs = zip(tables, (high, low))
    (a, b), (c, d) = [
        [jnp.asarray(part, dtype)[some] for part in (table.real, table.imag)]
        for table, some in pairs
    ]
    return a * c - b * d, b * c + a * d


def rotate(x, cos, sin):
    """Rotary embedding of x [..., tokens, head_dim]: entry i turns with entry i + head_dim / 2."""
    a, b = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return turned.astype(x.dtype)


def project(params, x, at, last):
    """The way to attention: queries, keys and values [batch, heads, tokens, head_dim] of x
    [batch, tokens, dim] at positions `at`, of which `last` is the largest."""
    h = rms_norm(x, params["attention_norm"])
    q, k, v = (
        jnp.moveaxis((h @ params[name]).reshape(*h.shape[:2], -1, HEAD_DIM), 2, 1)
        for name in ("wq", "wk", "wv")
    )
    angles = turns(at, last, wide(x.dtype))
    return rotate(q, *angles), rotate(k, *angles), v


def finish(params, x, out):
    """The way on from attention, token by token: residual, feed-forward network, residual."""
    x = x + jnp.moveaxis(out, 1, 2).reshape(*x.shape[:2], -1) @ params["wo"]
    h = rms_norm(x, params["ffn_norm"])
    h = jax.nn.silu(h @ params["gate"]) * (h @ params["up"])
    return x + h @ params["down"]


def finish_by_rows(params, x, out):
    """The same some rows at a time, so that no more of the wide middle is ever there at once."""
    batch, tokens, dim = x.shape
    parts = max(1, -(-tokens // ROWS))
    room = -tokens % parts
    x = jnp.pad(x, ((0, 0), (0, room), (0, 0)))
    out = jnp.pad(out, ((0, 0), (0, 0), (0, room), (0, 0)))
    x = jnp.moveaxis(x.reshape(batch, parts, -1, dim), 1, 0)
    out = jnp.moveaxis(out.reshape(batch, HEADS, parts, -1, HEAD_DIM), 2, 0)
    again = jax.checkpoint(finish)
    found = lax.map(lambda some: again(params, *some), (x, out))
    return jnp.moveaxis(found, 0, 1).reshape(batch, -1, dim)[:, :tokens]
'''

LAYER = '''
def decoder_layer(params, x, *, mesh, axis="sp", batch_axis=None):
    """A decoder layer on sequences sharded over one axis of a mesh, differentiable in both.

    x: [batch, tokens, dim], global, tokens in layout order (see `shard`); result: like x, without
    meaning at padding. Where the batch is sharded too, `batch_axis` names its mesh axes.
    The backward pass computes norms, projections, rotations and the feed-forward network again,
    but not attention nor its messages (DistFlashAttn, section 3.3).
    """
    return layer_of_length(params, x, Where(mesh, axis, batch_axis, None), SEQ)


@partial(jax.jit, static_argnums=(2, 3))
def layer_of_length(params, x, where, seq):
    """The same for other lengths, as the self-check needs it."""
    check_layer(params, x, where, seq)
    names = "attention_out", "attention_lse", "attention_kept"
    saved = jax.checkpoint_policies.save_only_these_names(*names)
    body = partial(layer_body, where=where, seq=seq)
    return jax.checkpoint(body, policy=saved)(params, x)


def layer_body(params, x, where, seq):
    """The layer, and nothing said about what is kept of it."""
    at = np.concatenate([positions(rank, seq) for rank in range(P)]).astype(np.int32)
    before = partial(project, last=seq - 1)
    qkv = where.shard_map(before, "", "bt.", "t", out=["bht."] * 3)(params, x, at)
    out = differentiable(*qkv, where, seq, seq)

    def after(*inputs):
        return (finish_by_rows(*inputs),)

    (y,) = where.shard_map(after, "", "bt.", "bht.", out=["bt."])(params, x, out)
    return y


def check_layer(params, x, where, seq):
    """Raise ValueError for a mesh, parameters or tokens that this program is not made for."""
    ranks = where.mesh.shape[where.axis]
    if ranks != P:
        raise ValueError(f"this is for {P} ranks, but axis {where.axis!r} has {ranks}")
    dim, tokens = params["wo"].shape[1], P * len(positions(0, seq))
    if x.ndim != 3 or x.shape[1:] != (tokens, dim):
        raise ValueError(f"x is {[*x.shape]}, not [batch, {tokens}, {dim}]")
    for name, heads in (("wq", HEADS), ("wk", KV_HEADS), ("wv", KV_HEADS)):
        shape, wanted = params[name].shape, (dim, heads * HEAD_DIM)
        if shape != wanted:
            raise ValueError(f"{name} is {[*shape]}, not {[*wanted]}")
'''

REFERENCE = '''
def reference(params, x, rows=None):
    """The layer by its definition on one device, differentiable.

    x: all tokens [batch, seq, dim] in the order of the sequence; result: like x, or only its
    rows at some positions.
    """
    rows = np.arange(x.shape[1]) if rows is None else rows
    q, k, v = project(params, x, np.arange(x.shape[1]), x.shape[1] - 1)
    k, v = (jnp.repeat(y, HEADS // KV_HEADS, axis=1) for y in (k, v))
    parts = np.array_split(rows, -(-len(rows) // 512))
    out = []
    for some in parts:
        again = jax.checkpoint(partial(dense, rows=some))
        out.append(again(q[:, :, some], k, v))
    return finish(params, x[:, rows], jnp.concatenate(out, axis=2))


def dense(q, k, v, rows):
    """Attention of some rows by its definition."""
    seen = allowed(rows, k.shape[2], 0)
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * SCALE
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.where(seen.any(axis=-1)[:, None], weights @ v, 0)
'''

CHECK = '''
def check(mesh, seq, dtype):
    """Compare a layer of small widths with the reference in float64: output and all gradients.

    Above 16k tokens only sampled rows get a gradient and are compared. Errors count in units of
    the largest entry, if that is above 1. Returns name, error and limit of each result, as the
    shards of this process see them.
    """
    params = init(0, dtype, dim=64, hidden=96)
    random = np.random.default_rng(1)
    x, dy = (random.standard_normal((1, seq, 64)).astype(dtype) for _ in range(2))
    rows = np.arange(0, seq, max(1, seq // 16384 and seq // 256))
    dy[:, np.setdiff1d(np.arange(seq), rows)] = 0
    at = np.array([positions(rank, seq) for rank in range(P)])
    where = Where(mesh, mesh.axis_names[0], None, None)

    def layer(params, x):
        return layer_of_length(params, x, where, seq)

    y, pull_back = jax.vjp(layer, params, scattered(x, at, mesh))
    dparams, dx = pull_back(scattered(dy, at, mesh))
    exact = by_definition(params, x, dy, rows, "float64")
    rough = by_definition(params, x, dy, rows, dtype) if dtype.itemsize < 4 else exact
    limits = {"float64": (1e-12, 1e-11), "float32": (5e-6, 2e-5)}.get(dtype.name)
    verdicts = []
    for name in ("y", "dx", *params):
        found = {"y": y, "dx": dx}.get(name, dparams.get(name))
        truth, other = (np.asarray(some[name], np.float64) for some in (exact, rough))
        unit = max(1.0, abs(truth).max())
        error = max(difference(s, truth, at, rows) for s in found.addressable_shards)
        own = abs(other - truth).max() / unit
        most = limits[name != "y"] if limits else 2 * own
        verdicts.append((name, error / unit, most))
    return verdicts


def by_definition(params, x, dy, rows, dtype):
    """y at some rows, padded with zeros, dx and the gradients of the parameters, by name."""
    params, x, dy = jax.tree.map(lambda y: jnp.asarray(y, dtype), (params, x, dy))
    y, pull_back = jax.vjp(lambda params, x: reference(params, x, rows), params, x)
    dparams, dx = pull_back(dy[:, rows])
    return {"y": jnp.zeros_like(x).at[:, rows].set(y), "dx": dx, **dparams}


def scattered(x, at, mesh):
    """A whole array [batch, tokens, dim] as a global one in layout order."""
    order = np.concatenate(at)
    whole = np.where((order >= 0)[:, None], x[:, np.maximum(order, 0)], x.dtype.type(0))
    sharding = jax.NamedSharding(mesh, Spec(None, mesh.axis_names[0]))
    shape = whole.shape
    return jax.make_array_from_callback(shape, sharding, lambda index: whole[index])


def difference(shard, exact, at, rows):
    """The largest error of one shard, of tokens in the rows that are compared; inf for NaN."""
    mine = np.asarray(shard.data).astype(np.float64)
    if exact.ndim == 3:  # tokens: [batch, tokens, dim]
        here = at[(shard.index[1].start or 0) // at.shape[1]]
        some = np.isin(here, rows)
        mine, exact = mine[:, some], exact[:, here[some]]
    error = np.abs(mine - exact).max(initial=0.0)
    return float(np.nan_to_num(error, nan=np.inf))
'''
