"""jax_dynamic_text   what a JAX program says otherwise when its mask is an argument: old -> new."""

HEADER = {
    '"""Attention over': '"""Attention under any mask over',
    "keys, mask full,\n": "keys, any mask of at most <most> boxes,\n",
    "use       out = attention(q, k, v, mesh": "use       out = attention(q, k, v, tables, mesh",
    "checked   every": (
        "tables    what ringloom.tables(plan, 'jax') returns for a plan of these lengths, or\n"
        "          load() reads: its mask, so that a new one compiles nothing. What is sent is\n"
        "          what a full mask needs; tiles that a mask hides are found on the devices and\n"
        "          skipped\n"
        "checked   every"
    ),
    "# The mask: query": "# A mask is a table of boxes: query",
    "of the rows (i0": "of its columns (i0",
    "MASK = np.zeros((0, 6), dtype=np.int32)": "MOST_BOXES = <most>",
    '"mask": "full",': '"mask": "an argument",',
    "BOXES = np.ascontiguousarray(MASK.T)  # one row per bound\n\n\n": "",
}

# In programs whose schedule is a rule: under a full mask it yields every row.
RULES = {
    "    live = live_pieces(q, kv, kv_seq - seq, MASK) | everything\n": (
        "    live = np.full((len(q), len(kv)), everything)\n"
    ),
}

KERNELS = {
    "import Callable, Iterable": "import Iterable",
    "nodes = list(rows(everything=False))": "nodes = list(rows(everything=True))",
    "steps, full = steps_of(nodes), partial(rows, everything=True)\n"
    "        found.append((loops_of(steps, P) if held else simpler(steps, full, P), held))": (
        "found.append((loops_of(steps_of(nodes), P), held))"
    ),
    "def sees(i, j):": "def sees(i, j, boxes):",
    "def reach(i, j):": "def reach(i, j, boxes):",
    "= jnp.asarray(BOXES)\n": "= boxes\n",
    "= jnp.asarray(BOXES)[:, :, None]\n": "= boxes[:, :, None]\n",
    "def seen_tiles(q_at, kv_at, offset):": "def seen_tiles(q_at, kv_at, offset, boxes):",
    "reach((a + offset, b + offset), (c, d))": "reach((a + offset, b + offset), (c, d), boxes)",
    "def tile_mask(q_at, kv_at, offset):": "def tile_mask(q_at, kv_at, offset, boxes):",
    "& sees(q_at + offset, kv_at)": "& sees(q_at + offset, kv_at, boxes)",
    "def tiles_of(setup, row):": "def tiles_of(setup, row, *mask):",
    "tiles_of(setup, row)\n": 'tiles_of(setup, row, *state["MASK"])\n',
    'seen_tiles(at, kv["at"], setup.offset)': 'seen_tiles(at, kv["at"], *mask)',
    "setup.offset\n                seen": '*state["MASK"]\n                seen',
}

ATTENTION = {
    "def attention(q, k, v, *, mesh": "def attention(q, k, v, tables, *, mesh",
    "    Tokens are in layout order": (
        "    tables: the mask, see the head of this file.\n    Tokens are in layout order"
    ),
    "    return attention_of_length(q, k, v, where, SEQ, KV_SEQ)\n": '''\
    right = check_tables(tables, SEQ, KV_SEQ)
    if right is not True:  # and nobody knows yet: rather no numbers than wrong ones
        q = jnp.where(right, q, jnp.nan)
    return attention_of_length(q, k, v, padded(tables["boxes"]), where, SEQ, KV_SEQ)


def load(path):
    """The tables in a file, as `ringloom tables jax` writes it."""
    with np.load(path) as file:
        return dict(file)


def check_tables(tables, seq, kv_seq):
    """Raise ValueError for tables that this program is not made for, with both numbers.

    True if they fit. While JAX traces nobody knows the numbers: the answer is then an array.
    """
    boxes, most = tables["boxes"].shape, MOST_BOXES
    if boxes[0] != 6 or boxes[1] > most:
        raise ValueError(f"the boxes are {[*boxes]}, but there is room for [6, {most}]")
    lengths, scale = tables["lengths"], tables["scale"]
    if isinstance(lengths, jax.core.Tracer) or isinstance(scale, jax.core.Tracer):
        same = jnp.asarray(lengths) == jnp.array([seq, kv_seq])
        return same.all() & (scale == jnp.asarray(SCALE, scale.dtype))
    told = [*map(int, lengths)]
    if told != [seq, kv_seq]:
        raise ValueError(f"tables for {told} queries and keys, not {[seq, kv_seq]}")
    if not np.isclose(float(scale), SCALE, rtol=1e-6, atol=0):
        raise ValueError(f"tables for a scale of {float(scale)}, not {SCALE}")
    return True


def padded(boxes):
    """Boxes as int32 [6, MOST_BOXES], empty ones at the end."""
    room = MOST_BOXES - boxes.shape[1]
    nothing = jnp.tile(jnp.array([[FAR], [-FAR]] * 3, jnp.int32), room)
    return jnp.concatenate([jnp.asarray(boxes, jnp.int32), nothing], axis=1)
''',
}

FUNCTION = {
    "argnums=(3, 4, 5)": "argnums=(4, 5, 6)",
    "(q, k, v, where": "(q, k, v, boxes, where",
    "check_shapes(q, k, v, boxes, where": "check_shapes(q, k, v, where",
    '"bht.", "bht.", "bht.", out=out)(q, k, v)': (
        '"bht.", "bht.", "bht.", "..", out=out)(q, k, v, boxes)'
    ),
}

GRADIENT = {
    "(q, k, v, out, lse, kept)": "(q, k, v, boxes, out, lse, kept)",
    '(*["bht."] * 5, "t.bh..", "bht.")': '(*["bht."] * 3, "..", *["bht."] * 2, "t.bh..", "bht.")',
    'return where.shard_map(run, *specs, out=["bht."] * 3)(*known, dout)': (
        'return *where.shard_map(run, *specs, out=["bht."] * 3)(*known, dout), None'
    ),
}

FORWARD = {
    "def forward_pass(q, k, v, *": "def forward_pass(q, k, v, boxes, *",
    '        "Q": with_room(setup, "Q", blocks),\n': (
        '        "MASK": (setup.offset, boxes),\n        "Q": with_room(setup, "Q", blocks),\n'
    ),
}

BACKWARD = {
    "def backward_pass(q, k, v, out": "def backward_pass(q, k, v, boxes, out",
    '    state["KV"] = with_room(': (
        '    state["MASK"] = setup.offset, boxes\n    state["KV"] = with_room('
    ),
}

DENSE = {
    "def dense(q, k, v, dout, rows, offset):": "def dense(q, k, v, dout, rows, offset, boxes):",
    "allowed(rows, len(k), offset)": "allowed(rows, len(k), offset, boxes)",
    "def allowed(rows, kv_seq, offset):": "def allowed(rows, kv_seq, offset, boxes):",
    "in MASK.astype(np.int64):": "in boxes.T.astype(np.int64):",
    "def dense_parts(q, k, v, dout, rows):": "def dense_parts(q, k, v, dout, rows, boxes):",
    "dense(*what, some, offset)": "dense(*what, some, offset, boxes)",
}

CHECK = {
    "def check(mesh, seq, kv_seq, dtype):": '''def examples(seq, kv_seq):
    """Masks of three batches of packed documents, causal within each: boxes [6, documents]."""
    random = np.random.default_rng(1)
    for _ in range(3):
        cuts = np.sort([0, *random.integers(0, kv_seq + 1, 5), kv_seq])
        a, b = cuts[:-1], cuts[1:]
        yield np.array(np.broadcast_arrays(a, b, a, b, -FAR, 0))


def check(mesh, seq, kv_seq, dtype, boxes):''',
    '"""Compare output and gradients on random inputs with dense attention in float64.': (
        '"""Compare output and gradients under a mask with dense attention in float64.'
    ),
    "run = partial(attention_of_length, where=where, seq=seq, kv_seq=kv_seq)": (
        'what = {"boxes": padded(boxes), "where": where, "seq": seq, "kv_seq": kv_seq}\n'
        "    run = partial(attention_of_length, **what)"
    ),
    "truth = dense_parts(q, k, v, dout, rows)": "truth = dense_parts(q, k, v, dout, rows, boxes)",
    '    verdicts = check(Mesh(np.array(devices[:P]), ("sp",)), options.seq, kv_seq, dtype)\n': (
        '    mesh, verdicts = Mesh(np.array(devices[:P]), ("sp",)), []\n'
        "    for boxes in examples(options.seq, kv_seq):\n"
        "        verdicts += check(mesh, options.seq, kv_seq, dtype, boxes)\n"
    ),
}
