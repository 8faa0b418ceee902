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
    """Which KV tiles a query tile has to meet, those that need no mask in front: (how many need
    none, how many there are, their numbers)."""
    (a, b, whole), (c, d, wholes) = ends(q_at), ends(kv_at)
    some, every = reach((a + offset, b + offset), (c, d))
    some = some & (b >= 0) & (d >= 0)
    clear = some & every & whole & wholes
    order = jnp.argsort(jnp.where(clear, 0, jnp.where(some, 1, 2)), stable=True)
    return clear.sum(), some.sum(), order.astype(jnp.uint32)


def tile_mask(q_at, kv_at, offset):
    """Which pairs of a tile count, for positions [n, 1] and [1, m] or the other way round; padding
    has position -1 and never does."""
    return (q_at >= 0) & (kv_at >= 0) & sees(q_at + offset, kv_at)


def tiles_of(setup, row):
    """The query tiles and the KV tiles of a rectangle: positions [n, tile], the row where each
    begins, its slots by tensor, and what each query tile sees."""
    tables, sides = (setup.q_at, setup.kv_at), ({}, {})
    for side, table, name, slices in zip(sides, tables, ("q", "kv"), SLICES):
        at = jnp.asarray(table)[row[name] // len(slices)]
        side["at"] = at.reshape(-1, table.shape[2])
        rows = np.arange(table.shape[1], dtype=np.uint32) * np.uint32(table.shape[2])
        side["row"] = jnp.tile(rows, len(at))
    for tensor, slots in row.items():
        of_kv = tensor in ("KV", "DKV")
        if tensor not in ("q", "kv"):
            sides[of_kv][tensor] = jnp.repeat(slots, tables[of_kv].shape[1])
    q, kv = sides
    q["seen"] = lax.map(lambda at: seen_tiles(at, kv["at"], setup.offset), q["at"])
    return q, kv


class Lanes(NamedTuple):
    """Some lanes: a lane is a KV head of one batch entry and the query heads that meet it."""

    batch: Ints  # the first entry
    head: Ints  # the first KV head
    batches: int  # how many of them
    heads: int
    every: int  # the KV heads of a batch entry


def place(store, slot, lanes, row, rows):
    """Where rows of some lanes of a block begin in a store [slots, ..., batch, heads, rows, width],
    unsigned, so never from the end, and how much they are."""
    group = store.shape[-3] // lanes.every
    at = *slot, lanes.batch, lanes.head * np.uint32(group), row, np.uint32(0)
    sizes = lanes.batches, lanes.heads * group, rows, store.shape[-1]
    return at, (*[1] * len(slot), *sizes)


def cut_tile(store, slot, lanes, *rows):
    """Rows of some lanes of one block: [lanes, heads of a lane * rows, width]."""
    tile = lax.dynamic_slice(store, *place(store, slot, lanes, *rows))
    return tile.reshape(lanes.batches * lanes.heads, -1, store.shape[-1])


def put_tile(store, part, *where):
    """The store with some rows of some lanes of one block replaced."""
    at, sizes = place(store, *where)
    return lax.dynamic_update_slice(store, part.reshape(sizes), at)


def cut_pair(store, slot, *where):
    """Rows of the keys and of the values of one block, apart."""
    return [cut_tile(store, (slot, np.uint32(n)), *where) for n in range(2)]
'''

ADD_TILE = '''
def add_tile(store, part, *where):
    """The store with something added to some rows of some lanes of one block."""
    at, sizes = place(store, *where)
    part = lax.dynamic_slice(store, at, sizes) + part.reshape(sizes)
    return lax.dynamic_update_slice(store, part, at)


def add_pair(store, parts, slot, *where):
    """The store with something added to the keys and the values of some rows of one block."""
    for n, part in enumerate(parts):
        store = add_tile(store, part, (slot, np.uint32(n)), *where)
    return store
'''

BY_LANES = '''
def by_lanes(function, batches, heads, sums):
    """function(lanes, sums) -> sums for all lanes: at once, but on a CPU one after the other, so
    that the scores of a tile stay in its cache."""

    def one_by_one(sums):
        def one(n, sums):
            batch, head = jnp.divmod(n.astype(jnp.uint32), np.uint32(heads))
            return function(Lanes(batch, head, 1, 1, heads), sums)

        return lax.fori_loop(0, batches * heads, one, sums)

    def at_once(sums):
        none = np.uint32(0)
        return function(Lanes(none, none, batches, heads, heads), sums)

    return lax.platform_dependent(sums, cpu=one_by_one, default=at_once)
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


def scales(dtype):
    """What queries and what scores are multiplied by: 16-bit queries would be rounded."""
    return (SCALE, 1) if dtype.itemsize > 2 else (1, SCALE)


def transposed(x):
    """x.mT; on a CPU as an array of its own, which multiplies faster."""

    def copied(x):
        return lax.optimization_barrier(x.mT)

    return lax.platform_dependent(x, cpu=copied, default=lambda x: x.mT)


LN2 = math.log(2)


def exp(x):
    """e**x for x <= 80, within 2e-7 where x <= 0; in float32 on a CPU by a power of two and a
    fraction, in three quarters of the time that XLA's own takes."""
    if x.dtype != jnp.float32:
        return jnp.exp(x)

    def by_powers(x):
        x = jnp.maximum(x * np.float32(1 / LN2), np.float32(-128))
        whole = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
        x = x - whole
        # e**x is (even + odd) / (even - odd) for small x: a Pade approximant, of 2**x here.
        even = np.float32(1) + x * x * np.float32(LN2**2 / 10)
        odd = x * (np.float32(LN2 / 2) + x * x * np.float32(LN2**3 / 120))
        # Floats of this size count in ones: their last bits are the exponent of 2**-whole.
        bits = lax.bitcast_convert_type(np.float32(1.5 * 2**23 + 127) - whole, "int32")
        power = lax.bitcast_convert_type(bits << 23, jnp.float32)
        # What ends in a division XLA works out once, not once for every use.
        return (even + odd) / ((even - odd) * power)

    return lax.platform_dependent(x, cpu=by_powers, default=jnp.exp)


@jax.jit  # traced once for all the loops that use it
def kernel(part, q, k, v, seen):
    """Add one tile to (sum of weighted values, largest score, sum of weights) of its rows, lane by
    lane; seen: which pairs count, None is all of them."""

    def one(total, top, weight, q, k, v):
        scores = products("id,dj->ij", q, transposed(k)) * scales(k.dtype)[1]
        if seen is not None:
            per_query = scores.reshape(-1, *seen.shape)
            scores = jnp.where(seen, per_query, -jnp.inf).reshape(scores.shape)
        new_top = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
        base = jnp.where(new_top == -jnp.inf, 0, new_top)
        weights, old = exp(scores - base), jnp.exp(top - base)
        total = total * old + products("ij,jd->id", weights, v)
        return total, new_top, weight * old + weights.sum(axis=-1, keepdims=True)

    return jax.vmap(one)(*part, q, k, v)
'''

KERNEL_BACKWARD = '''
@jax.jit
def kernel_backward(q, dout, turned, stats, k, v, seen):
    """The share of one tile in dq, transposed, dk and dv, lane by lane, given q and dout, both also
    transposed, and lse and rowsum(dout * out) of its rows. Keys are rows here, queries columns: no
    product has to turn a tile of weights."""

    def one(q, dout, turned, stats, k, v):
        (lse, rowsum), scale = stats, scales(k.dtype)[1]
        weights = exp(products("jd,di->ji", k, turned[0]) * scale - lse)
        if seen is not None:
            per_query = weights.reshape(len(k), -1, seen.shape[1])
            weights = jnp.where(seen[:, None], per_query, 0).reshape(weights.shape)
        slope = weights * (products("jd,di->ji", v, turned[1]) - rowsum) * scale
        dk, dv = products("ji,id->jd", slope, q), products("ji,id->jd", weights, dout)
        return products("dj,ji->di", transposed(k), slope), dk, dv

    return jax.vmap(one)(q, dout, turned, stats, k, v)
'''

FORWARD = '''
def attend(setup, state, row):
    """One rectangle of the forward pass: every query tile meets the KV tiles that it sees."""
    tiles, kv = tiles_of(setup, row)
    keys = state["KV"]
#H

    def in_lanes(lanes, sums):
        def meet(sums, tile):
            at, where = tile["at"], (lanes, tile["row"], tiles["at"].shape[1])
            clear, count, order = tile["seen"]
            q = cut_tile(state["Q"], (tile["Q"],), *where)
            q = q * scales(q.dtype)[0]

            def add(masked, n, part):
                n = order[n]
                there = lanes, kv["row"][n], kv["at"].shape[1]
                k, v = cut_pair(keys, kv["KV"][n], *there)
                seen = at[:, None], kv["at"][n][None], setup.offset
                seen = tile_mask(*seen) if masked else None
                return kernel(part, q, k, v, seen)

            slot = (tile["OUT"],)
            old = tuple(cut_tile(x, slot, *where) for x in sums)
            part = lax.fori_loop(0, clear, partial(add, False), old)
            part = lax.fori_loop(clear, count, partial(add, True), part)
#F
            pairs = zip(sums, part)
            return tuple(put_tile(x, y, slot, *where) for x, y in pairs), None

        return lax.scan(meet, sums, tiles, unroll=len(tiles["at"]) == 1)[0]

    sums = by_lanes(in_lanes, *keys.shape[2:4], state["OUT"])
    return state | {"OUT": sums}, None
'''

BACKWARD = '''
def attend_backward(setup, state, row):
    """One rectangle of the backward pass."""
    tiles, kv = tiles_of(setup, row)
    keys, sums = state["KV"], (state["DQ"], state["DKV"])
#H
#S

    def in_lanes(lanes, sums):
        def meet(sums, tile):
            at, where = tile["at"], (lanes, tile["row"], tiles["at"].shape[1])
            clear, count, order = tile["seen"]
            inputs = ((state[t], (tile[t],)) for t in ("Q", "DOUT", "STATS"))
            q, dout, stats = (cut_tile(x, slot, *where) for x, slot in inputs)
            q = q * scales(q.dtype)[0]
            lse, rowsum = stats[:, :, 0], stats[:, :, 1]
            stats = jnp.where(lse == -jnp.inf, 0, lse), rowsum
            rows = q, dout, (transposed(q), transposed(dout)), stats

            def add(masked, n, sums):
                n = order[n]
                there = lanes, kv["row"][n], kv["at"].shape[1]
                k, v = cut_pair(keys, kv["KV"][n], *there)
                seen = at[None], kv["at"][n][:, None], setup.offset
                seen = tile_mask(*seen) if masked else None
                dq, *dkv = kernel_backward(*rows, k, v, seen)
                return sums[0] + dq, add_pair(sums[1], dkv, kv["DKV"][n], *there)

            none = jnp.zeros(q.mT.shape, sums[0].dtype)
            found = lax.fori_loop(0, clear, partial(add, False), (none, sums[1]))
            dq, dkv = lax.fori_loop(clear, count, partial(add, True), found)
            dq = dq.mT * scales(q.dtype)[0]
#B
            return (add_tile(sums[0], dq, (tile["DQ"],), *where), dkv), None

        return lax.scan(meet, sums, tiles, unroll=len(tiles["at"]) == 1)[0]

    dq, dkv = by_lanes(in_lanes, *keys.shape[2:4], sums)
#D
    return state | {"DQ": dq, "DKV": dkv}, None
'''

PER_HEAD = '''
def per_head(setup, store, row):
    """The keys and values of a rectangle for each query head, [blocks, 2, batch, heads, rows,
    width], the block of each KV tile, and the KV head of each query head, -1 is none."""
    heads = row["q"].max() % len(SLICES[0]), row["kv"].max() % len(SLICES[1])
    heads = jnp.asarray(HEADS_OF)[heads]
    blocks = store.at[row["KV"]].get(mode="clip")[:, :, :, jnp.maximum(heads, 0)]
    tiles = np.repeat(np.arange(len(blocks), dtype=np.uint32), setup.kv_at.shape[1])
    return blocks, jnp.asarray(tiles), heads


def with_head(heads, lanes, new, old):
    """What is new in the lanes of query heads that have a KV head."""
    heads = lax.dynamic_slice_in_dim(heads, lanes.head, lanes.heads)
    heads = jnp.tile(heads, lanes.batches)
    return jnp.where((heads >= 0)[:, None, None], new, old)
'''

HEAD_CHOICE = {  # what stands at a mark where query slices and KV slices do not line up
    "#H\n": """    keys, kv["KV"], heads = per_head(setup, keys, row)
""",
    "#F\n": """            chosen = partial(with_head, heads, lanes)
            part = tuple(map(chosen, part, old))
""",
    "#S\n": """    kv["DKV"], sums = kv["KV"], (sums[0], jnp.zeros(keys.shape, sums[1].dtype))
""",
    "#B\n": """            dq = with_head(heads, lanes, dq, 0)
""",
    "#D\n": """    none = jnp.zeros((*dkv.shape[:3], *state["KV"].shape[3:]), dkv.dtype)
    heads = jnp.where(heads < 0, NOWHERE, heads)
    dkv = none.at[:, :, :, heads].add(dkv, mode="drop")
    dkv = state["DKV"].at[row["DKV"]].add(dkv, mode="drop")
""",
}
