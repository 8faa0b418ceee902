"""torch_dynamic_text   the text of a torch program whose plan is an argument: tables."""

TABLES = '''
class Tables:
    """A plan with its mask, as `ringloom tables torch` writes it or as `example` makes one.

    Made from arrays by name: sizes (format, passes, ranks, seq, kv_seq, heads, kv_heads, head_dim),
    scale, mask [n, 6] (a row shows query i the key j where i0 <= i < i1, j0 <= j < j1 and
    low <= j - i <= high), per side q and kv its pieces [n, 4] (piece, start, stop, step), homes
    [pieces] and head slices [n, 2], per pass its rows [n, 7] and blocks: see `schedule`. Raises
    ValueError for what does not fit this program. Make one per batch and keep it for all layers.
    """

    def __init__(self, arrays):
        if missing := sorted(set(SHAPES) - set(arrays)):
            raise ValueError(f"tables without {', '.join(missing)}")
        arrays = {name: read_array(name, arrays[name]) for name in SHAPES}
        self.seq, self.kv_seq, self.both = check_sizes(arrays)
        self.offset = self.kv_seq - self.seq
        self.mask = arrays["mask"]
        self.q, self.kv = (
            read_pieces(arrays[f"{side}_pieces"], arrays[f"{side}_homes"], tokens, name)
            for side, tokens, name in (
                ("q", self.seq, "query"),
                ("kv", self.kv_seq, "key"),
            )
        )
        self.slices = {
            "q": read_slices(arrays["q_slices"], HEADS, "query"),
            "kv": read_slices(arrays["kv_slices"], KV_HEADS, "KV"),
        }
        self.passes = [(arrays[f"{way}_rows"], arrays[f"{way}_blocks"]) for way in WAYS]
        for way, (rows, blocks) in zip(WAYS, self.passes, strict=True):
            check_rows(way, rows, blocks, self)
        text = b"".join(f"{x.shape}".encode() + x.tobytes() for x in arrays.values())
        self.digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
        self.agreed = set()  # the groups of which all ranks have equal tables


def load(path):
    """The tables in a file that `ringloom tables torch` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return Tables({name: file[name] for name in file.files})


def read_array(name, array):
    """One of the arrays, if it has the right shape."""
    array, width = np.asarray(array), SHAPES[name]
    if width is None:
        return np.asarray(float(array))
    shaped = array.ndim > 0 and array.shape[1:] == width
    if not shaped or array.dtype.kind != "i":
        shape = [*array.shape], array.dtype.name
        raise ValueError(f"tables with {name} {shape}, not [n, *{[*width]}] integers")
    return np.ascontiguousarray(array, dtype=np.int64)


def check_sizes(arrays):
    """The lengths, and whether there is a backward plan; ValueError for tables that are meant for
    another program."""
    if len(arrays["sizes"]) != 8 or arrays["sizes"][0] != FORMAT:
        raise ValueError(f"tables of sizes {arrays['sizes']}, not of format {FORMAT}")
    _, passes, ranks, seq, kv_seq, *heads = arrays["sizes"].tolist()
    scale = float(arrays["scale"])
    if ranks != P:
        raise ValueError(f"tables for {ranks} ranks, but this program is for {P}")
    if heads != [HEADS, KV_HEADS, HEAD_DIM] or scale != SCALE:
        raise ValueError(
            f"tables for query heads, KV heads, head_dim {heads} and scale {scale}, but this "
            f"program is for {[HEADS, KV_HEADS, HEAD_DIM]} and {SCALE}"
        )
    return seq, kv_seq, passes == 2


def read_pieces(spans, homes, tokens, name):
    """The pieces of one side: (positions as ranges, home rank) each."""
    parts = [[] for _ in homes]
    seen = np.zeros(tokens, dtype=np.int64)
    for piece, start, stop, step in spans.tolist():
        part = range(start, stop, step) if step > 0 else ()
        if not (0 <= piece < len(homes) and part and 0 <= start and part[-1] < tokens):
            span = piece, start, stop, step
            raise ValueError(f"tables with {name} piece {span} of {tokens} tokens")
        parts[piece].append(part)
        seen[start:stop:step] += 1
    if (seen != 1).any():
        i = int(np.argmax(seen != 1))
        raise ValueError(f"tables with {name} {i} of {tokens} in {seen[i]} places")
    for rank in outside(homes, 0, P):
        raise ValueError(f"tables with {name} piece on rank {rank} of {P}")
    return [(tuple(part), int(home)) for part, home in zip(parts, homes, strict=True)]


def read_slices(spans, heads, name):
    """The head slices of one side, each as a range."""
    slices = [range(a, b) for a, b in spans.tolist()]
    if [*chain(*slices)] != [*range(heads)]:
        raise ValueError(f"tables with {name} head slices {spans.tolist()} of {heads}")
    return slices


def check_rows(way, rows, blocks, tables):
    """Raise ValueError for rows that name ranks or blocks that there are not."""
    most = [len(getattr(tables, s)) * len(tables.slices[s]) for s in ("q", "kv")]
    counts = rows[:, 5:]
    if counts.sum() != len(blocks) or (counts < 0).any():
        raise ValueError(f"tables with {len(blocks)} {way} blocks, not {counts.sum()}")
    for block in outside(blocks, 0, max(most)):
        raise ValueError(f"tables with {way} block {block} of {max(most)}")
    for rank in outside(rows[:, 3:5], -1, P):
        raise ValueError(f"tables with {way} rows on rank {rank} of {P}")


def outside(values, low, high):
    """Those of some integers that are not in range(low, high)."""
    return values[(values < low) | (values >= high)]
'''

LAYOUT = '''
def positions(rank, tables):
    """The positions of the queries that a rank holds, in the order of its shard."""
    return layout_positions(tables.q, rank)


def kv_positions(rank, tables):
    """The positions of the keys and values that a rank holds, in the order of its shard."""
    return layout_positions(tables.kv, rank)


def layout_positions(pieces, rank):
    """The positions of one rank's pieces, one piece after the other."""
    mine = [positions_of(piece) for piece, home in pieces if home == rank]
    return np.concatenate([*mine, np.arange(0)])


def shard(x, rank, tables, axis=2, kv=False):
    """The part of a whole tensor that belongs on a rank; kv=True: of keys or values."""
    kv = kv or x.shape[axis] != tables.seq
    index = (kv_positions if kv else positions)(rank, tables)
    return x.index_select(axis, torch.as_tensor(index, device=x.device))


def unshard(parts, tables, axis=2, kv=False):
    """The whole tensor, in the order of the sequence, from the parts of all ranks."""
    whole = torch.cat(list(parts), dim=axis)
    where = kv_positions if kv or whole.shape[axis] != tables.seq else positions
    order = np.concatenate([where(rank, tables) for rank in range(P)])
    index = torch.as_tensor(np.argsort(order), device=whole.device)
    return whole.index_select(axis, index)
'''

SCHEDULE = '''
def schedule(backward, tables):
    """The nodes of one pass, in order.

    A row is (node, step, what, a, b, m, n), and its m + n blocks follow those of the row before.
    what = 0: rank a attends m query blocks to n KV blocks. Otherwise what is the sum of
    2 ** (1 + index in TENSORS) of the tensors in a message of m blocks from rank a to rank b, or,
    where b is -1, of copies that are on rank a before the first step.
    """
    rows, blocks = tables.passes[backward]
    ends = np.cumsum(rows[:, 5:].reshape(-1))
    starts = (ends - rows[:, 5:].reshape(-1)).reshape(-1, 2)
    cuts = np.flatnonzero(np.diff(rows[:, 0])) + 1
    for part, start in zip(np.split(rows, cuts), np.split(starts, cuts), strict=True):
        if not len(part):
            continue
        _, step, what, _, b, _, _ = part[0].tolist()
        left, right = (in_rows(blocks, start[:, n], part[:, 5 + n]) for n in (0, 1))
        names = tuple(t for n, t in enumerate(TENSORS) if what >> (n + 1) & 1)
        if what == 0:
            yield Attend(step, part[:, 3], left, right)
        elif b < 0:
            yield Held(names, left, part[:, 3])
        else:
            yield Move(step, names, left, part[:, 3], part[:, 4])


def in_rows(blocks, starts, counts):
    """Runs of blocks as the rows of a table, -1 where a row is shorter than the longest."""
    column = np.arange(counts.max())
    index = starts[:, None] + np.minimum(column, counts[:, None] - 1)
    return np.where(column < counts[:, None], blocks.take(index, mode="clip"), -1)
'''

ATTENTION = '''
def attention(q, k, v, tables, *, group=None):
    """Exact attention of sharded sequences as the tables say, differentiable in q, k and v.

    q: this rank's queries [batch, {heads}, len(positions(rank, tables)), {head_dim}]; k, v: its
    keys and values [batch, {kv_heads}, len(kv_positions(rank, tables)), {head_dim}]; result: like
    q. All ranks of the group (default: the world) call it together, with equal tables.
    """
    return attention_by_tables(q, k, v, tables, group)


@torch.compiler.disable
def attention_by_tables(q, k, v, tables, group):
    """The same without a default group."""
    if not isinstance(tables, Tables):
        kind = type(tables).__name__
        raise TypeError(f"tables must be Tables(arrays) or load(path), not {{kind}}")
    group = dist.group.WORLD if group is None else group
    check_shapes(q, k, v, group, tables)
    agree(group, tables, q.device)
    return Attention.apply(q, k, v, group, tables)


def agree(group, tables, device):
    """Raise ValueError unless all ranks have equal tables; asked once per group and tables."""
    if group in tables.agreed:
        return
    mine = torch.tensor([tables.digest], device=device)
    theirs = [torch.zeros_like(mine) for _ in range(P)]
    group.allgather([theirs], [mine]).wait()
    digests = torch.cat(theirs).tolist()
    others = [rank for rank in range(P) if digests[rank] != tables.digest]
    if others:
        raise ValueError(f"rank {{group.rank()}} has other tables than ranks {{others}}")
    tables.agreed.add(group)
'''

EXAMPLE = '''
def example(lengths):
    """Tables of an all-gather over packed documents, causal in each: what tables look like."""
    ends = [0, *accumulate(lengths)]
    cuts = [ends[-1] * rank // P for rank in range(P + 1)]
    pieces = [(rank, a, b, 1) for rank, (a, b) in enumerate(pairwise(cuts)) if a < b]
    first = {rank: max(end for end in ends if end <= a) for rank, a, _, _ in pieces}
    sees = {r: [s for s, _, b, _ in pieces if s <= r and b > first[r]] for r in first}
    pairs = [(r, s) for r in sees for s in sees[r] if r != s]
    kv, dkv = 2 << TENSORS.index("KV"), 2 << TENSORS.index("DKV")
    copies = [((0, 0, kv, s, r, 1, 0), [s]) for r, s in pairs]
    attends = [((1, 1, 0, r, -1, 1, len(sees[r])), [r, *sees[r]]) for r in sees]
    returns = [((2, 2, dkv, r, s, 1, 0), [s]) for r, s in pairs]
    arrays = {
        "sizes": [FORMAT, 2, P, ends[-1], ends[-1], HEADS, KV_HEADS, HEAD_DIM],
        "scale": SCALE,
        "mask": [(a, b, a, b, -FAR, 0) for a, b in pairwise(ends) if a < b],
    }
    for side, heads in (("q", HEADS), ("kv", KV_HEADS)):
        arrays[f"{side}_pieces"], arrays[f"{side}_homes"] = pieces, range(P)
        arrays[f"{side}_slices"] = [(0, heads)]
    forward, backward = copies + attends, copies + attends + returns
    for way, rows in zip(WAYS, (forward, backward), strict=True):
        arrays[f"{way}_rows"] = [row for row, _ in rows]
        arrays[f"{way}_blocks"] = [block for _, blocks in rows for block in blocks]
    return Tables({name: np.array(array) for name, array in arrays.items()})
'''

GRADS = """
    here = torch.isin(mine, rows)
    found = [out.detach()[:, :, here]]
    if tables.both:
        out.backward(dout[:, :, mine])
        found += [local[0].grad[:, :, here], local[1].grad, local[2].grad]
"""

# What the program says otherwise than one that is bound to its plan.
ANEW = {
    "@lru_cache\ndef tasks(": "@lru_cache(maxsize=RECENT)\ndef tasks(",
    "@lru_cache\ndef setup(": "@lru_cache(maxsize=RECENT)\ndef setup(",
    "self.rank, self.offset = rank, kv_seq - seq": (
        "self.rank, self.offset = rank, tables.offset\n"
        "        self.mask, self.slices = tables.mask, tables.slices"
    ),
    '{"q": Q_PIECES, "kv": KV_PIECES}': '{"q": tables.q, "kv": tables.kv}',
    "SLICES[": "self.slices[",
    "def calls_at(row, column, q, kv, offset)": "def calls_at(row, column, q, kv, offset, boxes)",
    "(q, kv, offset, MASK)": "(q, kv, offset, boxes)",
    "q, kv, self.offset)": "q, kv, self.offset, self.mask)",
    "positions(rank, seq)": "positions(rank, tables)",
    "positions(rank, kv_seq)": "positions(rank, tables)",
    "    def backward(ctx, dout):\n": (
        "    def backward(ctx, dout):\n"
        "        if not ctx.where[1].both:\n"
        '            raise NotImplementedError("these tables have no backward plan")\n'
    ),
    "return dq, dk, dv, None, None, None": "return dq, dk, dv, None, None",
    "seq, kv_seq": "tables",
}

DENSE_ANEW = {"offset": "tables", "+ tables,": "+ tables.offset,", "MASK": "tables.mask"}

CHECK_ANEW = {
    "rank, offset = group.rank(), kv_seq - seq": (
        "rank, seq, kv_seq = group.rank(), tables.seq, tables.kv_seq"
    ),
    "def check(group, device, seq, kv_seq, dtype)": "def check(group, device, tables, dtype)",
    "attention_of_length(*local, group, seq, kv_seq)": "attention_by_tables(*local, tables, group)",
    "positions(rank, seq)": "positions(rank, tables)",
    "positions(rank, kv_seq)": "positions(rank, tables)",
    "offset": "tables",
}

MAIN_ANEW = {
    'help="queries")': 'help="tokens of the example")',
    '    parser.add_argument(\n        "--dtype"': (
        '    parser.add_argument("--tables", help="a file of tables; default: an example")\n'
        '    parser.add_argument(\n        "--dtype"'
    ),
    "    kv_seq = max(1, round(options.seq * KV_SEQ / SEQ))\n": (
        "    try:\n"
        "        half, third = options.seq // 2, options.seq // 3\n"
        "        tables = example([third, options.seq - third - half, half])\n"
        "        tables = load(options.tables) if options.tables else tables\n"
        "    except (OSError, ValueError) as error:\n"
        "        parser.error(str(error))\n"
    ),
    "options.seq, kv_seq": "tables",
    "def judge(rank, seq, kv_seq, dtype)": "def judge(rank, tables, dtype)",
    "device, seq, kv_seq, dtype)": "device, tables, dtype)",
    '    if rank == 0:\n        print("exact"': (
        '    seq, kv_seq = tables.seq, tables.kv_seq\n    if rank == 0:\n        print("exact"'
    ),
}
