"""jax_kernels   the text of a JAX program that computes: masks by tiles, kernels, rectangles."""

MASKS = {
    "full": '''
def sees(i, j):
    """Which keys j the queries i may see, [n, 1] and [1, m] or the other way round: all."""
    return jnp.ones(jnp.broadcast_shapes(i.shape, j.shape), bool)


def reach(i, j):
    """Whether any query of i = (first, last) may see any key of j, and whether all see all."""
    some = j[0] <= j[1]
    return some, some
''',
    "causal": '''
def sees(i, j):
    """Which keys j the queries i may see, [n, 1] and [1, m] or the other way round; the last query
    meets the last key."""
    return j <= i


def reach(i, j):
    """Whether any query of i = (first, last) may see any key of j, and whether all see all."""
    return j[0] <= i[1], j[1] <= i[0]
''',
    "boxes": '''
def sees(i, j):
    """Which keys j the queries i may see, [n, 1] and [1, m] or the other way round; the last query
    meets the last key."""
    i0, i1, j0, j1, low, high = jnp.asarray(BOXES)
    a, b, c, d = i.min(), i.max(), j.min(), j.max()
    near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1)
    near = near & (low <= d - a) & (c - b <= high)
    order = jnp.flatnonzero(near, size=len(near), fill_value=0)
    none = jnp.zeros(jnp.broadcast_shapes(i.shape, j.shape), bool)

    def add(n, seen):
        box = order[n]
        inside = (i0[box] <= i) & (i < i1[box]) & (j0[box] <= j) & (j < j1[box])
        return seen | (inside & (low[box] <= j - i) & (j - i <= high[box]))

    return lax.fori_loop(0, near.sum(), add, none)


def reach(i, j):
    """Whether any query of i = (first, last) may see any key of j, and whether all see all."""
    i0, i1, j0, j1, low, high = jnp.asarray(BOXES)[:, :, None]
    (a, b), (c, d) = i, j
    near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1)
    near = near & (low <= d - a) & (c - b <= high)
    inside = (i0 <= a) & (b < i1) & (j0 <= c) & (d < j1)
    inside = inside & (low <= c - b) & (d - a <= high)
    return near.any(axis=0), inside.any(axis=0)
''',
}

TILES = '''
def ends(at):
    """The first and the last position of tiles [n, tile], and whether all of a tile is tokens."""
    first = jnp.where(at >= 0, at, FAR).min(axis=-1)
    return first, at.max(axis=-1), at.min(axis=-1) >= 0


def seen_tiles(q_at, kv_at, offset):
    """Which KV tiles a query tile has to meet, in front: (how many, their numbers, unmasked)."""
    (a, b, whole), (c, d, wholes) = ends(q_at), ends(kv_at)
    some, every = reach((a + offset, b + offset), (c, d))
    some = some & (b >= 0) & (d >= 0)
    order = jnp.flatnonzero(some, size=len(some), fill_value=0)
    return some.sum(), order.astype(jnp.uint32), every & whole & wholes


def tile_mask(q_at, kv_at, offset, unmasked):
    """Which pairs of a tile count, for positions [n, 1] and [1, m] or the other way round; padding
    has position -1 and never does."""

    def masked():
        return (q_at >= 0) & (kv_at >= 0) & sees(q_at + offset, kv_at)

    shape = jnp.broadcast_shapes(q_at.shape, kv_at.shape)
    return lax.cond(unmasked, lambda: jnp.ones(shape, bool), masked)


def tile_start(store, slot, row):
    """Where a tile begins in a store [slots, ..., rows, width]; unsigned, so never from the end."""
    return slot, *[np.uint32(0)] * (store.ndim - 3), row, np.uint32(0)


def cut_tile(store, slot, row, size):
    """Rows of one block: store [slots, ..., rows, width] -> [..., size, width]."""
    shape = (1, *store.shape[1:-2], size, store.shape[-1])
    return lax.dynamic_slice(store, tile_start(store, slot, row), shape)[0]


def put_tile(store, part, slot, row):
    """The store with some rows of one block replaced."""
    return lax.dynamic_update_slice(store, part[None], tile_start(store, slot, row))


def pair_starts(store, slot, row):
    """Where a tile of keys and where one of values begins: store [slots, 2, ..., rows, width]."""
    slot, _, *rest = tile_start(store, slot, row)
    return [(slot, np.uint32(n), *rest) for n in range(2)]


def cut_pair(store, slot, row, size):
    """Rows of the keys and of the values of one block, apart: two of [..., size, width]."""
    shape = (1, 1, *store.shape[2:-2], size, store.shape[-1])
    starts = pair_starts(store, slot, row)
    return [lax.dynamic_slice(store, start, shape)[0, 0] for start in starts]


def add_pair(store, parts, slot, row):
    """The store with something added to the keys and the values of some rows of one block."""
    for start, part in zip(pair_starts(store, slot, row), parts):
        part = part[None, None]
        old = lax.dynamic_slice(store, start, part.shape)
        store = lax.dynamic_update_slice(store, old + part, start)
    return store


def tiles_at(table, blocks):
    """The tiles of some blocks: their positions [n, tile], and the row where each begins."""
    at = jnp.asarray(table)[blocks].reshape(-1, table.shape[-1])
    rows = np.arange(table.shape[1], dtype=np.uint32) * np.uint32(table.shape[2])
    return at, jnp.tile(rows, len(blocks))
'''

PER_KV_HEAD = '''
def per_kv_head(x, k):
    """Queries [batch, heads, rows, width] that share a KV head, one below the other."""
    return x.reshape(*k.shape[:2], -1, x.shape[-1])
'''

KERNEL = '''
def products(form, a, b):
    """An einsum of scores or weights with inputs, as precise as sums are; of 16-bit inputs
    accelerators multiply 16-bit numbers, as they are built for."""
    number = wide(b.dtype)

    def exact(a, b):
        a, b = a.astype(number), b.astype(number)
        return jnp.einsum(form, a, b, precision=lax.Precision.HIGHEST)

    def fast(a, b):
        return jnp.einsum(form, a.astype(b.dtype), b, preferred_element_type=number)

    if b.dtype.itemsize > 2:
        return exact(a, b)
    return lax.platform_dependent(a, b, cpu=exact, default=fast)


def by_kv_head(function, *arrays):
    """Run a kernel on arrays [batch, KV heads, ...]: at once, but on a CPU one head after the
    other, so that the scores of a tile stay in its cache."""

    def one_by_one(*arrays):
        heads = arrays[0].shape[:2]
        flat = [x.reshape(-1, *x.shape[2:]) for x in arrays]
        found = lax.map(lambda one: function(*one), tuple(flat))
        return tuple(x.reshape(*heads, *x.shape[1:]) for x in found)

    at_once = jax.vmap(jax.vmap(function))
    return lax.platform_dependent(*arrays, cpu=one_by_one, default=at_once)


def transposed(x):
    """x.T; on a CPU as an array of its own, which multiplies faster."""

    def copied(x):
        return lax.optimization_barrier(x.T)

    return lax.platform_dependent(x, cpu=copied, default=jnp.transpose)


@jax.jit  # traced once for all the loops that use it
def kernel(part, q, k, v, seen):
    """Add one tile to (sum of weighted values, largest score, sum of weights) of its rows."""

    def one(total, top, weight, q, k, v):
        scores = products("id,dj->ij", q, transposed(k)) * SCALE
        per_query = scores.reshape(-1, *seen.shape)
        scores = jnp.where(seen, per_query, -jnp.inf).reshape(scores.shape)
        new_top = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
        base = jnp.where(new_top == -jnp.inf, 0, new_top)
        weights, old = jnp.exp(scores - base), jnp.exp(top - base)
        total = total * old + products("ij,jd->id", weights, v)
        return total, new_top, weight * old + weights.sum(axis=-1, keepdims=True)

    of_queries = (per_kv_head(x, k) for x in (*part, q))
    found = by_kv_head(one, *of_queries, k, v)
    return tuple(x.reshape(y.shape) for x, y in zip(found, part))
'''

KERNEL_BACKWARD = '''
@jax.jit
def kernel_backward(q, dout, stats, k, v, seen):
    """The share of one tile in dq, transposed, dk and dv, given lse and rowsum(dout * out) of
    its rows. Keys are rows here, queries columns: no product has to turn a tile of weights."""

    def one(q, dout, stats, k, v):
        lse, rowsum = stats[:, 0], stats[:, 1]
        scores = products("jd,id->ji", k, q) * SCALE
        weights = jnp.exp(scores - jnp.where(lse == -jnp.inf, 0, lse))
        per_query = weights.reshape(len(k), -1, seen.shape[1])
        weights = jnp.where(seen[:, None], per_query, 0).reshape(weights.shape)
        slope = weights * (products("jd,id->ji", v, dout) - rowsum) * SCALE
        dk, dv = products("ji,id->jd", slope, q), products("ji,id->jd", weights, dout)
        return products("dj,ji->di", transposed(k), slope), dk, dv

    of_queries = (per_kv_head(x, k) for x in (q, dout, stats))
    return by_kv_head(one, *of_queries, k, v)
'''

FORWARD = '''
def attend(setup, state, row):
    """One rectangle of the forward pass: every query tile meets the KV tiles that it sees."""
    q_at, q_rows = tiles_at(setup.q_at, row["q"] // len(SLICES[0]))
    kv_at, kv_rows = tiles_at(setup.kv_at, row["kv"] // len(SLICES[1]))
    slots = {t: jnp.repeat(row[t], setup.q_at.shape[1]) for t in ("Q", "OUT")}
    kv_slots = jnp.repeat(row["KV"], setup.kv_at.shape[1])
#H

    def meet(sums, tile):
        at, first, slot = tile
        q = cut_tile(state["Q"], slot["Q"], first, len(at))
        count, order, unmasked = seen_tiles(at, kv_at, setup.offset)

        def add(n, part):
            n = order[n]
            k, v = cut_pair(state["KV"], kv_slots[n], kv_rows[n], kv_at.shape[1])
            seen = tile_mask(at[:, None], kv_at[n][None], setup.offset, unmasked[n])
#K
            return kernel(part, q, k, v, seen)

        part = tuple(cut_tile(x, slot["OUT"], first, len(at)) for x in sums)
        part = lax.fori_loop(0, count, add, part)
        pairs = zip(sums, part)
        return tuple(put_tile(x, y, slot["OUT"], first) for x, y in pairs), None

    tiles = q_at, q_rows, slots
    sums, _ = lax.scan(meet, state["OUT"], tiles, unroll=len(q_at) == 1)
    return state | {"OUT": sums}, None
'''

BACKWARD = '''
def attend_backward(setup, state, row):
    """One rectangle of the backward pass."""
    q_at, q_rows = tiles_at(setup.q_at, row["q"] // len(SLICES[0]))
    kv_at, kv_rows = tiles_at(setup.kv_at, row["kv"] // len(SLICES[1]))
    tensors = "Q", "DOUT", "STATS", "DQ"
    slots = {t: jnp.repeat(row[t], setup.q_at.shape[1]) for t in tensors}
    tiles = setup.kv_at.shape[1]
    kv_slots, dkv_slots = (jnp.repeat(row[t], tiles) for t in ("KV", "DKV"))
#H

    def meet(sums, tile):
        at, first, slot = tile
        rows = [cut_tile(state[t], slot[t], first, len(at)) for t in tensors[:3]]
        count, order, unmasked = seen_tiles(at, kv_at, setup.offset)

        def add(n, sums):
            n = order[n]
            k, v = cut_pair(state["KV"], kv_slots[n], kv_rows[n], kv_at.shape[1])
            seen = tile_mask(at[None], kv_at[n][:, None], setup.offset, unmasked[n])
#K
            dq, *dkv = kernel_backward(*rows, k, v, seen)
#B
            return sums[0] + dq, add_pair(sums[1], dkv, dkv_slots[n], kv_rows[n])

        like = per_kv_head(rows[0], state["KV"][0, 0]).mT
        none = jnp.zeros(like.shape, sums[0].dtype)
        dq, dkv = lax.fori_loop(0, count, add, (none, sums[1]))
        dq = dq.mT.reshape(rows[0].shape)
        dq = dq + cut_tile(sums[0], slot["DQ"], first, len(at))
        return (put_tile(sums[0], dq, slot["DQ"], first), dkv), None

    tiles = q_at, q_rows, slots
    sums = state["DQ"], state["DKV"]
    (dq, dkv), _ = lax.scan(meet, sums, tiles, unroll=len(q_at) == 1)
    return state | {"DQ": dq, "DKV": dkv}, None
'''

PLAIN = "            return kernel(part, q, k, v, seen)\n"
HEAD_CHOICE = {  # what stands at a mark where query slices and KV slices do not line up
    "#H\n": """    heads = row["q"].max() % len(SLICES[0]), row["kv"].max() % len(SLICES[1])
    heads = jnp.asarray(HEADS_OF)[heads]
    common = (heads >= 0)[:, None, None]
""",
    "#K\n": "            k, v = (x[:, jnp.maximum(heads, 0)] for x in (k, v))\n",
    'per_kv_head(rows[0], state["KV"][0, 0]).mT\n': "rows[0].mT\n",
    PLAIN: """            new = kernel(part, q, k, v, seen)
            return tuple(jnp.where(common, x, y) for x, y in zip(new, part))
""",
    "#B\n": """            dq, *dkv = (jnp.where(common, x, 0) for x in (dq, *dkv))
            none = jnp.zeros((*sums[1].shape[2:4], *k.shape[2:]), sums[1].dtype)
            dkv = [none.at[:, jnp.maximum(heads, 0)].add(x) for x in dkv]
""",
}
