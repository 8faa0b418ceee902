"""torch_setup   the text of a torch program that knows its plan: sizes, layout, calls, checks."""

SHARDS = '''
def positions(rank, seq=SEQ):
    """The positions of the queries that a rank holds, in the order of its shard."""
    return layout_positions({q_pieces}, rank)


def kv_positions(rank, kv_seq=KV_SEQ):
    """The positions of the keys and values that a rank holds, in the order of its shard."""
    return layout_positions({kv_pieces}, rank)


def layout_positions(pieces, rank):
    """The positions of one rank's pieces, one piece after the other."""
    mine = [positions_of(piece) for piece, home in pieces if home == rank]
    return np.concatenate([*mine, np.arange(0)])
'''

SHARD_BY_RULE = '''
def shard(x, rank, axis=2):
    """The part of a whole tensor that belongs on a rank."""
    index = torch.as_tensor(positions(rank, x.shape[axis]), device=x.device)
    return x.index_select(axis, index)


def unshard(parts, axis=2):
    """The whole tensor, in the order of the sequence, from the parts of all ranks."""
    whole = torch.cat(list(parts), dim=axis)
    order = np.concatenate([positions(rank, whole.shape[axis]) for rank in range(P)])
    index = torch.as_tensor(np.argsort(order), device=whole.device)
    return whole.index_select(axis, index)
'''

SHARD_BY_TABLE = '''
def shard(x, rank, axis=2, kv=False):
    """The part of a whole tensor that belongs on a rank; kv=True: of keys or values."""
    kv = kv or x.shape[axis] != SEQ
    index = kv_positions(rank) if kv else positions(rank)
    return x.index_select(axis, torch.as_tensor(index, device=x.device))


def unshard(parts, axis=2, kv=False):
    """The whole tensor, in the order of the sequence, from the parts of all ranks."""
    whole = torch.cat(list(parts), dim=axis)
    kv = kv or whole.shape[axis] != SEQ
    order = np.concatenate(list(map(kv_positions if kv else positions, range(P))))
    index = torch.as_tensor(np.argsort(order), device=whole.device)
    return whole.index_select(axis, index)
'''

SETUP = '''
class Setup:
    """The layout for some lengths as one rank sees it: sizes, heads and kernel calls."""

    def __init__(self, rank, seq, kv_seq):
        self.rank, self.offset = rank, kv_seq - seq
        self.pieces = {{"q": {q_pieces}, "kv": {kv_pieces}}}
        self.known_calls = {{}}

    def side(self, tensor):
        """The side that a tensor's blocks belong to."""
        return "kv" if tensor in ("KV", "DKV") else "q"

    def slice(self, tensor, block):
        """The number of a block's head slice."""
        return block % len(SLICES[self.side(tensor)])

    def heads(self, tensor, block):
        """The heads of a block."""
        return SLICES[self.side(tensor)][self.slice(tensor, block)]

    def size(self, tensor, block):
        """The tokens of a block."""
        side = self.side(tensor)
        return sum(map(len, self.pieces[side][block // len(SLICES[side])][0]))

    def home(self, tensor):
        """The blocks at home on this rank, by head slice: (heads, blocks) in layout order."""
        side = self.side(tensor)
        mine = [n for n, (_, home) in enumerate(self.pieces[side]) if home == self.rank]
        slices = SLICES[side]
        numbers = [[n * len(slices) + s for n in mine] for s in range(len(slices))]
        return list(zip(slices, numbers, strict=True))

    def where(self, side, blocks):
        """The positions of some blocks, one block after the other."""
        numbers = [block // len(SLICES[side]) for block in blocks]
        return np.concatenate([positions_of(self.pieces[side][n][0]) for n in numbers])

    def calls(self, q_blocks, kv_blocks):
        """The kernel calls of a rectangle of blocks, found once and kept."""
        key = tuple(q_blocks), tuple(kv_blocks)
        if key not in self.known_calls:
            self.known_calls[key] = self.find_calls(q_blocks, kv_blocks)
        return self.known_calls[key]

    def find_calls(self, q_blocks, kv_blocks):
        """Of the whole rectangle at once, or block by block where positions do not ascend."""
        each_q, each_kv = [[b] for b in q_blocks], [[b] for b in kv_blocks]
        cuts = ([q_blocks], [kv_blocks]), (each_q, [kv_blocks]), (each_q, each_kv)
        for q_parts, kv_parts in cuts:
            calls, row = [], 0
            for q_part in q_parts:
                column, q = 0, self.where("q", q_part)
                for kv_part in kv_parts:
                    kv = self.where("kv", kv_part)
                    calls.append(calls_at(row, column, q, kv, self.offset))
                    column += len(kv)
                row += len(q)
            if None not in calls:
                return [call for some in calls for call in some]
        raise ValueError(f"no kernel calls for blocks {{q_blocks}} x {{kv_blocks}}")
'''

COMMON_HEADS = '''
    def common_heads(self, q_block, kv_block):
        """Which heads of a q block and which of a kv block belong together."""
        q, kv = self.heads("Q", q_block), self.heads("KV", kv_block)
        a, b = max(q.start, kv.start * GROUP), min(q.stop, kv.stop * GROUP)
        c, d = a // GROUP, -(-b // GROUP)
        return slice(a - q.start, b - q.start), slice(c - kv.start, d - kv.start)
'''

CALLS_AT = '''
def calls_at(row, column, q, kv, offset):
    """The kernel calls between ascending positions, shifted to where these lie in a rectangle;
    None where the positions do not ascend or the calls would not be simple."""
    if (np.diff(q) < 0).any() or (np.diff(kv) < 0).any():
        return None
    found = {call_rule}(q, kv, offset{boxes})
    if found is None:
        return None
    return [
        call._replace(
            rows=moved(call.rows, row),
            columns=moved(call.columns, column),
        )
        for call in found
    ]


def moved(part, by):
    """A slice or an index, shifted."""
{index}    return slice(part.start + by, part.stop + by)
'''

ATTENTION = '''
def attention(q, k, v, *, group=None):
    """Exact attention of sharded sequences, differentiable in q, k and v.

    q: this rank's queries [batch, {heads}, len(positions(rank)), {head_dim}]; k, v: its keys and
    values [batch, {kv_heads}, len(kv_positions(rank)), {head_dim}]; result: like q. All ranks of
    the group (default: the world) call it together.
    """
    return attention_of_length(q, k, v, group, SEQ, KV_SEQ)


@torch.compiler.disable
def attention_of_length(q, k, v, group, seq, kv_seq):
    """The same for other lengths, as the self-check needs it."""
    group = dist.group.WORLD if group is None else group
    check_shapes(q, k, v, group, seq, kv_seq)
    return Attention.apply(q, k, v, group, seq, kv_seq)


def check_shapes(q, k, v, group, seq, kv_seq):
    """Raise ValueError for shards that this program is not made for."""
    check_group(group)
    rank = group.rank()
    m, n = len(positions(rank, seq)), len(kv_positions(rank, kv_seq))
    for name, x, shape in (
        ("q", q, (HEADS, m, HEAD_DIM)),
        ("k", k, (KV_HEADS, n, HEAD_DIM)),
        ("v", v, (KV_HEADS, n, HEAD_DIM)),
    ):
        if x.ndim != 4 or x.shape[1:] != shape:
            wanted = "[batch, " + ", ".join(map(str, shape)) + "]"
            raise ValueError(f"{{name}} of rank {{rank}} is {{[*x.shape]}}, not {{wanted}}")
    for what, found in (
        ("batch", [len(x) for x in (q, k, v)]),
        ("dtype", [x.dtype for x in (q, k, v)]),
        ("device", [x.device for x in (q, k, v)]),
    ):
        if len(set(found)) > 1:
            raise ValueError(f"q, k, v differ in {{what}}: {{', '.join(map(str, found))}}")
    if not q.is_floating_point() or q.dtype.itemsize < 2:
        raise ValueError(f"q, k, v are {{q.dtype}}, not floats of 16 bits or more")


def check_group(group):
    """Raise ValueError for what is no group of as many ranks as the program is for."""
    if not hasattr(group, "rank"):
        raise ValueError(
            f"{{group!r}} is no process group: call torch.distributed.init_process_group before, "
            "or pass as group= one that this process is in"
        )
    if group.size() != P:
        raise ValueError(f"a program for {{P}} ranks, but the group has {{group.size()}}")
'''

FUNCTION = '''
class Attention(torch.autograd.Function):
    """The forward and the backward plan as one differentiable function."""

    @staticmethod
    def forward(ctx, q, k, v, group, seq, kv_seq):
        out, lse = forward_pass(q, k, v, group, seq, kv_seq)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.where = group, seq, kv_seq
        return out

    @staticmethod
    def backward(ctx, dout):
        refuse_second_derivatives()
        dq, dk, dv = backward_pass(dout, *ctx.saved_tensors, *ctx.where)
        return dq, dk, dv, None, None, None
'''

# Copies are saved as inputs are, so that checkpoints and hooks know of them.
FUNCTION_KEEPING = '''
class Attention(torch.autograd.Function):
    """The forward and the backward plan as one differentiable function."""

    @staticmethod
    def forward(ctx, q, k, v, group, seq, kv_seq):
        out, lse, kept = forward_pass(q, k, v, group, seq, kv_seq)
        copies = [x for arrays in kept.values() for x in arrays]
        ctx.save_for_backward(q, k, v, out, lse, *copies)
        ctx.kept = {place: len(arrays) for place, arrays in kept.items()}
        ctx.where = group, seq, kv_seq
        return out

    @staticmethod
    def backward(ctx, dout):
        refuse_second_derivatives()
        q, k, v, out, lse, *copies = ctx.saved_tensors
        rest = iter(copies)
        kept = {place: [next(rest) for _ in range(n)] for place, n in ctx.kept.items()}
        dq, dk, dv = backward_pass(dout, q, k, v, out, lse, *ctx.where, kept)
        return dq, dk, dv, None, None, None
'''

FUNCTION_FORWARD_ONLY = '''
class Attention(torch.autograd.Function):
    """The forward plan; gradients would need a backward plan, so asking for them is an error."""

    @staticmethod
    def forward(ctx, q, k, v, group, seq, kv_seq):
        return forward_pass(q, k, v, group, seq, kv_seq)[0]

    @staticmethod
    def backward(ctx, dout):
        raise NotImplementedError("this program was emitted without a backward plan")
'''

FORWARD_PASS = '''
def forward_pass(q, k, v, group, seq, kv_seq):
    """Output and log-sum-exp of the local queries."""
    prepare(group, q.device)
    rank = group.rank()
    store = Store(setup(rank, seq, kv_seq), q)
    store.shard("Q", q.contiguous())
    store.shard("KV", k.contiguous(), v.contiguous())
    _, steps = tasks(rank, False, seq, kv_seq)
    follow(steps, store, attend, group)
    out, lse = store.unshard("OUT")
    return out.to(q.dtype), lse
'''

FORWARD_PASS_KEEPING = '''
def forward_pass(q, k, v, group, seq, kv_seq):
    """Output and log-sum-exp of the local queries, and the copies that the backward pass reuses."""
    prepare(group, q.device)
    rank = group.rank()
    store = Store(setup(rank, seq, kv_seq), q)
    store.shard("Q", q.contiguous())
    store.shard("KV", k.contiguous(), v.contiguous())
    held, _ = tasks(rank, True, seq, kv_seq)
    _, steps = tasks(rank, False, seq, kv_seq)
    follow(steps, store, attend, group, keep=held)
    out, lse = store.unshard("OUT")
    kept = {place: store.view(place[0], [place[1]]) for place in held}
    return out.to(q.dtype), lse, kept
'''

FIRST_ONLY = '''
def refuse_second_derivatives():
    """Raise RuntimeError in a backward pass that is to be differentiated again: messages are not
    part of any graph."""
    if torch.is_grad_enabled():
        raise RuntimeError("attention has first derivatives only: no create_graph=True")
'''

BACKWARD_PASS = '''
def backward_pass(dout, q, k, v, out, lse, group, seq, kv_seq{kept}):
    """Gradients of the local queries, keys and values."""
    rank = group.rank()
    store = Store(setup(rank, seq, kv_seq), q)
    store.shard("Q", q.contiguous())
    store.shard("KV", k.contiguous(), v.contiguous())
    store.shard("DOUT", dout.contiguous())
{stats}
{place}    _, steps = tasks(rank, True, seq, kv_seq)
    follow(steps, store, attend_backward, group)
    (dq,), (dk, dv) = store.unshard("DQ"), store.unshard("DKV")
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
'''

PREPARE = '''
@lru_cache
def setup(rank, seq, kv_seq):
    """The layout as one rank sees it, worked out once."""
    return Setup(rank, seq, kv_seq)


def prepare(group, device):
    """NCCL connects all ranks on first use, so all of them must take part in that."""
    if device.type == "cuda":
        connect(group, device)


@lru_cache
def connect(group, device):
    """All ranks take part in something, once."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)
'''
