"""jax_passes   the text of a JAX program around its kernels: shards, tables, blocks, attention."""

SHARDS = '''
def positions(rank, seq=SEQ):
    """The positions of the queries that a rank holds, in the order of its shard; -1 is padding."""
    return shard_positions({q_pieces}, rank)


def kv_positions(rank, kv_seq=KV_SEQ):
    """The positions of the keys that a rank holds, in the order of its shard; -1 is padding."""
    return shard_positions({kv_pieces}, rank)


def shard_positions(pieces, rank):
    """The positions of one rank: as many pieces as any rank has, all as long as the longest."""
    return piece_positions(pieces)[owned(pieces, P)[rank]].reshape(-1)


def piece_positions(pieces):
    """The positions of every piece [pieces + 1, longest], -1 beyond its end; the last has none."""
    longest = max(1, *(sum(map(len, piece)) for piece, _ in pieces))
    table = np.full((len(pieces) + 1, longest), -1)
    for row, (piece, _) in zip(table, pieces):
        row[: sum(map(len, piece))] = positions_of(piece)
    return table


def shard(x, rank, axis=2, kv=False):
    """The part of a whole array that belongs on a rank, padding zero{kv_note}."""
    at = {at}
    xp = np if isinstance(x, np.ndarray) else jnp
    real = (at >= 0).reshape(-1, *[1] * (x.ndim - 1 - axis % x.ndim))
    return xp.where(real, xp.take(x, np.maximum(at, 0), axis=axis), x.dtype.type(0))


def unshard(parts, axis=2, kv=False):
    """The whole array in sequence order from the parts of all ranks{kv_note}."""
    parts = list(parts)
    kv = kv or parts[0].shape[axis] != len(positions(0))
    order = np.concatenate(list(map(kv_positions if kv else positions, range(P))))
    pick = np.argsort(order, kind="stable")[np.count_nonzero(order < 0) :]
    xp = np if isinstance(parts[0], np.ndarray) else jnp
    return xp.take(xp.concatenate(parts, axis=axis), pick, axis=axis)
'''

SETUP = '''
class Setup(NamedTuple):
    """What one pass has to know about its lengths: tables that are the same on every device."""

    offset: int  # what turns the index of a query into its position
    q_at: Ints  # the positions of every piece [pieces + 1, tiles, tile], -1 is padding
    kv_at: Ints
    placement: Placement

    def rows(self, tensor):
        """The rows of every block, padding included."""
        at = self.kv_at if tensor == "KV" else self.q_at
        return at.shape[1] * at.shape[2]


@lru_cache
def setups(seq, kv_seq):
    """The setup of each pass, forward first; the forward pass keeps what the backward holds."""
    sides = {q_pieces}, {kv_pieces}
    tables = [tiled(piece_positions(pieces), n) for pieces, n in zip(sides, TILE)]
    homes = [with_slices(owned(p, P), len(s)) for p, s in zip(sides, SLICES)]
    blocks = [len(pieces) * len(slices) for pieces, slices in zip(sides, SLICES)]
    found, keep = [], {{}}
    for tensors, (loops, held) in zip(TENSORS[::-1], chosen(seq, kv_seq)[::-1]):
        of_kv = {{tensor: tensor in ("KV", "DKV") for tensor in tensors}}
        where = {{tensor: homes[kv] for tensor, kv in of_kv.items()}}
        counts = {{tensor: blocks[kv] for tensor, kv in of_kv.items()}}
        placement = Placement(loops, held, where, counts, keep)
        keep = {{tensor: held for tensor, held in placement.held.items() if held.size}}
        found.append(Setup(kv_seq - seq, *tables, placement))
    return found[::-1]


def chosen(seq, kv_seq):
    """The loops of each pass, and the copies that are there at its start."""
    found = []
    for backward in range(len(TENSORS)):
        rows = partial(schedule, backward, seq=seq, kv_seq=kv_seq)
        nodes = list(rows(everything=False))
        held = [node for node in nodes if isinstance(node, Held)]
        steps, full = steps_of(nodes), partial(rows, everything=True)
        found.append((loops_of(steps, P) if held else simpler(steps, full, P), held))
    return found


def with_slices(home, slices):
    """The blocks at home on each rank from the pieces: block = piece * slices + slice."""
    blocks = home[:, :, None] * slices + np.arange(slices)
    return np.where(home[:, :, None] >= 0, blocks, -1).reshape(len(home), -1)


def tiled(table, most):
    """Positions [n, longest] cut into tiles of at most so many: [n, tiles, tile]."""
    tiles = -(-table.shape[1] // most)
    room = -table.shape[1] % tiles
    table = np.pad(table, ((0, 0), (0, room)), constant_values=-1)
    return table.reshape(len(table), tiles, -1).astype(np.int32)
'''

BLOCKS = '''
def wide(dtype):
    """What partial sums are kept in."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def to_blocks(setup, tensor, x):
    """A local shard [batch, heads, tokens, width] as blocks [n, batch, heads, rows, width]."""
    slices = SLICES[tensor == "KV"]
    rows = setup.rows(tensor)
    pieces = setup.placement.slots[tensor].fixed // len(slices)
    x = jnp.moveaxis(x.reshape(*x.shape[:2], pieces, -1, x.shape[-1]), 2, 0)
    x = jnp.pad(x, ((0, 0),) * 3 + ((0, rows - x.shape[3]), (0, 0)))
{split}    return x


def from_blocks(setup, tensor, blocks, like):
    """The blocks at home as a local shard with the heads and tokens of `like`."""
{slices}    blocks = blocks[: setup.placement.slots[tensor].fixed]
{join}    x = x[:, :, :, : like.shape[2] // len(x)]
    return jnp.moveaxis(x, 0, 2).reshape(*like.shape[:3], -1)


def with_room(setup, tensor, blocks, held=()):
    """The slots of a tensor: the blocks at home, held copies, and room for more."""
    blocks = jnp.concatenate([blocks, *held])
    room = setup.placement.slots[tensor].size - len(blocks)
    return jnp.pad(blocks, ((0, room),) + ((0, 0),) * (blocks.ndim - 1))


def no_sums(setup, tensor, like, width):
    """Running sums [slots, ..., width] that are zero, beside inputs `like` [slots, ..., width]."""
    shape = (setup.placement.slots[tensor].size, *like.shape[1:-1], width)
    return jnp.zeros(shape, wide(like.dtype))
'''

SPLIT = """    most = max(map(len, slices))
    x = jnp.pad(x, ((0, 0),) * 2 + ((0, most),) + ((0, 0),) * 2)
    parts = [x[:, :, s.start : s.start + most] for s in slices]
    x = jnp.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])
"""

JOIN = """    x = blocks.reshape(-1, len(slices), *blocks.shape[1:])
    x = jnp.concatenate([x[:, n, :, : len(s)] for n, s in enumerate(slices)], axis=2)
"""

ATTENTION = '''
class Where(NamedTuple):
    """A mesh, and which of its axes the tokens, the batch and the heads are sharded over."""

    mesh: Mesh
    axis: str
    batch_axis: str | tuple[str, ...] | None
    head_axis: str | tuple[str, ...] | None

    def shard_map(self, function, *specs, out):
        """The function on every device's shards; specs say by letter which axis is which."""
        axes = {"b": self.batch_axis, "h": self.head_axis, "t": self.axis, ".": None}
        specs, out = ([Spec(*map(axes.get, s)) for s in some] for some in (specs, out))
        known = {"mesh": self.mesh, "in_specs": tuple(specs), "out_specs": tuple(out)}
        return jax.shard_map(function, **known, check_vma=False)


def attention(q, k, v, *, mesh, axis="sp", batch_axis=None, head_axis=None):
    """Exact attention, differentiable in q, k and v, sharded by tokens over one axis of a mesh.

    q: [batch, heads, tokens, head_dim]; k, v: [batch, KV heads, KV tokens, head_dim]; out: like q.
    Tokens are in layout order: the shards of all ranks one after the other (see `shard`).
    Where the batch or the heads are sharded too, `batch_axis` and `head_axis` name their mesh axes.
    """
    where = Where(mesh, axis, batch_axis, head_axis)
    return attention_of_length(q, k, v, where, SEQ, KV_SEQ)


def check_shapes(q, k, v, where, seq, kv_seq):
    """Raise ValueError for a mesh or arrays that this program is not made for."""
    if where.mesh.shape[where.axis] != P:
        size = where.mesh.shape[where.axis]
        raise ValueError(f"this is for {P} ranks, but axis {where.axis!r} has {size}")
    tokens, kv_tokens = P * len(positions(0, seq)), P * len(kv_positions(0, kv_seq))
    heads, kv_heads = q.shape[1], k.shape[1]
    for name, x, shape in (
        ("q", q, (heads, tokens, HEAD_DIM)),
        ("k", k, (kv_heads, kv_tokens, HEAD_DIM)),
        ("v", v, (kv_heads, kv_tokens, HEAD_DIM)),
    ):
        if x.shape != (q.shape[0], *shape):
            raise ValueError(f"{name} is {[*x.shape]}, not {[q.shape[0], *shape]}")
    shards = math.prod(where.mesh.shape[a] for a in axes_of(where.head_axis))
    if HEADS_DIFFER:
        raise ValueError(
            f"{heads} query heads and {kv_heads} KV heads on {shards} head shards: this program is"
            f" for HEADS_TEXT"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v differ in dtype: {q.dtype}, {k.dtype}, {v.dtype}")


def axes_of(names):
    """The mesh axes of a dimension as a tuple."""
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)
'''

FUNCTION = '''
@partial(jax.jit, static_argnums=(3, 4, 5))
def attention_of_length(q, k, v, where, seq, kv_seq):
    """The same for other lengths, as the self-check needs it."""
    check_shapes(q, k, v, where, seq, kv_seq)
    return differentiable(q, k, v, where, seq, kv_seq)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def differentiable(q, k, v, where, seq, kv_seq):
    """The forward and the backward plan as one function."""
    return run_forward(q, k, v, where, seq, kv_seq)[0].astype(q.dtype)


@partial(jax.jit, static_argnums=(3, 4, 5))
def run_forward(q, k, v, where, seq, kv_seq):
    """Output, log-sum-exp and the copies that the backward pass reuses."""
    run = partial(forward_pass, seq=seq, kv_seq=kv_seq, axis=where.axis)
    out = "bht.", "bht.", "t.bh.."
    return where.shard_map(run, "bht.", "bht.", "bht.", out=out)(q, k, v)


def remember(q, k, v, where, seq, kv_seq):
    """The forward pass, and what the backward pass needs of it."""
    out, lse, kept = run_forward(q, k, v, where, seq, kv_seq)
    out = checkpoint_name(out, "attention_out")
    lse = checkpoint_name(lse, "attention_lse")
    kept = checkpoint_name(kept, "attention_kept")
    return out.astype(q.dtype), (q, k, v, out, lse, kept)


def run_backward(where, seq, kv_seq, known, dout):
    """The gradients of q, k and v."""
    run = partial(backward_pass, seq=seq, kv_seq=kv_seq, axis=where.axis)
    specs = (*["bht."] * 5, "t.bh..", "bht.")
    return where.shard_map(run, *specs, out=["bht."] * 3)(*known, dout)


differentiable.defvjp(remember, run_backward)
'''

FUNCTION_FORWARD_ONLY = '''
@partial(jax.jit, static_argnums=(3, 4, 5))
def attention_of_length(q, k, v, where, seq, kv_seq):
    """The same for other lengths, as the self-check needs it."""
    check_shapes(q, k, v, where, seq, kv_seq)
    return forward_only(q, k, v, where, seq, kv_seq)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def forward_only(q, k, v, where, seq, kv_seq):
    """The forward plan; gradients would need a backward plan, so asking for them is an error."""
    return run_forward(q, k, v, where, seq, kv_seq)[0].astype(q.dtype)


def run_forward(q, k, v, where, seq, kv_seq):
    """Output, log-sum-exp and no copies for a backward pass."""
    run = partial(forward_pass, seq=seq, kv_seq=kv_seq, axis=where.axis)
    out = "bht.", "bht.", "t.bh.."
    return where.shard_map(run, "bht.", "bht.", "bht.", out=out)(q, k, v)


def refuse(*_):
    """There is no backward plan in this file."""
    raise NotImplementedError("this program was emitted without a backward plan")


forward_only.defvjp(refuse, refuse)
'''

FORWARD_PASS = '''
def forward_pass(q, k, v, *, seq, kv_seq, axis):
    """On one device: output, not rounded, lse [batch, heads, tokens, 1] and copies to be kept."""
    setup = setups(seq, kv_seq)[0]
    blocks = to_blocks(setup, "Q", q)
    kv = jnp.stack([to_blocks(setup, "KV", x) for x in (k, v)], axis=1)
    total, weight = (no_sums(setup, "OUT", blocks, width) for width in (HEAD_DIM, 1))
    state = {
        "Q": with_room(setup, "Q", blocks),
        "KV": with_room(setup, "KV", kv),
        "OUT": (total, weight - jnp.inf, weight),
    }
    state = follow(setup, state, attend, axis)
    out, lse = normalised(*(from_blocks(setup, "OUT", x, q) for x in state["OUT"]))
    kept = jnp.asarray(setup.placement.kept.get("KV", np.zeros((P, 0), np.int32)))
    kept = state["KV"].at[kept[lax.axis_index(axis)]].get(mode="clip")
    return out, lse, kept
'''

BACKWARD_PASS = '''
def backward_pass(q, k, v, out, lse, kept, dout, *, seq, kv_seq, axis):
    """On one device: the gradients of its queries, keys and values."""
    setup = setups(seq, kv_seq)[1]
    rowsum = (dout.astype(out.dtype) * out).sum(axis=-1, keepdims=True)
    stats = jnp.concatenate([lse, rowsum], axis=-1)
    blocks = {"Q": q, "DOUT": dout, "STATS": stats}
    state = {t: with_room(setup, t, to_blocks(setup, t, x)) for t, x in blocks.items()}
    kv = jnp.stack([to_blocks(setup, "KV", x) for x in (k, v)], axis=1)
    state["KV"] = with_room(setup, "KV", kv, [kept])
    state["DQ"] = no_sums(setup, "DQ", state["Q"], HEAD_DIM)
    state["DKV"] = no_sums(setup, "DKV", kv, HEAD_DIM)
    state = follow(setup, state, attend_backward, axis)
    dq = from_blocks(setup, "DQ", state["DQ"], q)
    dk, dv = (from_blocks(setup, "DKV", state["DKV"][:, n], k) for n in range(2))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)
'''
