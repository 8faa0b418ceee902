"""torch_steps   the text of a torch program that follows a schedule: tasks, blocks, messages."""

TASKS = '''
class Task(NamedTuple):
    """What one rank does in one step; a message is (tensors, blocks, other rank)."""

    sends: list[tuple[tuple[str, ...], list[int], int]]
    receives: list[tuple[tuple[str, ...], list[int], int]]
    attends: list[tuple[list[int], list[int]]]
    drops: list[tuple[str, int]]  # inputs that are read for the last time


@lru_cache
def tasks(rank, backward, seq, kv_seq):
    """The schedule as `rank` sees it: the copies it holds at the start, and its steps."""
    held, steps = [], {}
    for node in schedule(backward, seq, kv_seq):
        if isinstance(node, Held):
            for row in np.flatnonzero(node.rank == rank):
                blocks = present(node.blocks[row])
                held += [(t, b) for t in node.tensors for b in blocks]
            continue
        task = steps.setdefault(node.step, Task([], [], [], []))
        if isinstance(node, Attend):
            for row in np.flatnonzero(node.rank == rank):
                q, kv = present(node.q[row]), present(node.kv[row])
                if q and kv:
                    task.attends.append((q, kv))
            continue
        for row in np.flatnonzero((node.src == rank) ^ (node.dst == rank)):
            blocks, src, dst = present(node.blocks[row]), node.src[row], node.dst[row]
            way, peer = (task.sends, dst) if src == rank else (task.receives, src)
            if blocks:
                way.append((node.tensors, blocks, int(peer)))
    found = [task for _, task in sorted(steps.items()) if any(task)]
    note_last_reads(found, backward)
    return held, found


def present(blocks):
    """The blocks of a row, without the -1s."""
    return [int(block) for block in blocks if block >= 0]


def note_last_reads(steps, backward):
    """Fill in `drops`: after its last read a copy makes room for the next one."""
    query_side = ("Q", "DOUT", "STATS") if backward else ("Q",)
    later = set()
    for task in reversed(steps):
        reads = []
        for tensors, blocks, _ in task.sends:
            reads += [(t, b) for t in tensors for b in blocks if t not in SUMS]
        for q, kv in task.attends:
            reads += [(t, b) for t in query_side for b in q] + [("KV", b) for b in kv]
        task.drops.extend(dict.fromkeys(read for read in reads if read not in later))
        later.update(reads)
'''

STORE = '''
class Store:
    """The blocks here: (tensor, block) -> rows a to b of arrays [batch, heads, rows, width].

    A tensor is one array or two: KV is k and v, DKV is dk and dv, OUT is output and lse. Blocks
    that lie side by side in their arrays are one to a kernel or a message.
    """

    def __init__(self, setup, q):
        self.setup, self.batch, self.device = setup, q.shape[0], q.device
        self.narrow, self.wide = q.dtype, wide(q.dtype)
        self.places = {}

    def shapes(self, tensor, blocks):
        """The shapes of the arrays of some blocks with the same heads."""
        widths = {"KV": (HEAD_DIM, HEAD_DIM), "OUT": (HEAD_DIM, 1), "STATS": (2,)}
        widths["DKV"] = widths["KV"]
        heads = len(self.setup.heads(tensor, blocks[0]))
        rows = sum(self.setup.size(tensor, block) for block in blocks)
        return [(self.batch, heads, rows, w) for w in widths.get(tensor, (HEAD_DIM,))]

    def dtype(self, tensor):
        """Inputs keep their dtype; sums and statistics have at least 32 bits."""
        return self.narrow if tensor in ("Q", "DOUT", "KV") else self.wide

    def place(self, tensor, blocks, arrays):
        """Note that the rows of these arrays are these blocks, in this order."""
        a = 0
        for block in blocks:
            b = a + self.setup.size(tensor, block)
            self.places[tensor, block] = arrays, a, b
            a = b

    def view(self, tensor, blocks):
        """The arrays of some blocks; those that are apart are first brought together."""
        spans = []
        for block in blocks:
            arrays, a, b = self.places[tensor, block]
            if spans and spans[-1][0] is arrays and spans[-1][2] == a:
                spans[-1][2] = b
            else:
                spans.append([arrays, a, b])
        parts = [[x.narrow(-2, a, b - a) for x in arrays] for arrays, a, b in spans]
        if len(parts) == 1:
            return parts[0]
        whole = [torch.cat(some, dim=-2) for some in zip(*parts, strict=True)]
        self.place(tensor, blocks, whole)
        return whole

    def sums(self, tensor, blocks):
        """The running sums of some blocks; what nobody has begun is zero."""
        absent = [block for block in blocks if (tensor, block) not in self.places]
        if absent:
            shapes = self.shapes(tensor, absent)
            like = {"dtype": self.wide, "device": self.device}
            zeros = [torch.zeros(shape, **like) for shape in shapes]
            if tensor == "OUT":
                zeros[1].fill_(-torch.inf)
            self.place(tensor, absent, zeros)
        return self.view(tensor, blocks)

    def add(self, tensor, blocks, part{heads}, rows=slice(None)):
        """Add a part to sums, or to some of their {what}; the first part is the sum."""
        begun = any((tensor, block) in self.places for block in blocks)
        if not begun and part[0].shape == self.shapes(tensor, blocks)[0]:
            self.place(tensor, blocks, [x.to(self.wide) for x in part])
            return
        sums = self.sums(tensor, blocks)
        total = [x[..., {at}rows, :] for x in sums]
        if tensor == "OUT":
            merge(total, part)
        else:
            for x, y in zip(total, part, strict=True):
                x += y
{scatter}
    def shard(self, tensor, *arrays):
        """Place the blocks at home, which are slices of local shards."""
        for heads, blocks in self.setup.home(tensor):
            here = slice(heads.start, heads.stop)
            self.place(tensor, blocks, [x[..., here, :, :] for x in arrays])

    def unshard(self, tensor):
        """The sums of the blocks at home as local shards."""
        parts = [self.sums(tensor, blocks) for _, blocks in self.setup.home(tensor)]
        if len(parts) == 1:
            return parts[0]
        return [torch.cat(some, dim=-3) for some in zip(*parts, strict=True)]
'''

# Rows that are an index instead of a slice were added to a copy.
SCATTER = """\
        if not isinstance(rows, slice):
            for x, y in zip(sums, total, strict=True):
                x[..., {at}rows, :] = y
"""


def store(*, sliced: bool, masked: bool) -> str:
    """The store; `sliced`: blocks have slices of the heads; `masked`: rows may be an index."""
    at = "heads, " if sliced else ""
    changes = {
        "{heads}": ", heads=slice(None)" if sliced else "",
        "{what}": "heads and rows" if sliced else "rows",
        "{scatter}": SCATTER.format(at=at) if masked else "",
        "{at}": at,
    }
    text = STORE
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


MESSAGES = '''
def pieces_of_message(store, tensors, blocks):
    """What a message carries one after the other: (tensor, blocks of one head slice)."""
    for tensor in tensors:
        for _, same in groupby(blocks, partial(store.setup.slice, tensor)):
            yield tensor, list(same)


def pack(store, tensors, blocks):
    """The arrays of a message; sums are handed over, so they leave the store."""
    message = []
    for tensor, same in pieces_of_message(store, tensors, blocks):
        message += [x.contiguous() for x in store.view(tensor, same)]
        if tensor in SUMS:
            for block in same:
                del store.places[tensor, block]
    return message


def empty_message(store, tensors, blocks):
    """Room for the arrays of a message."""
    return [
        torch.empty(shape, dtype=store.dtype(tensor), device=store.device)
        for tensor, same in pieces_of_message(store, tensors, blocks)
        for shape in store.shapes(tensor, same)
    ]


def unpack(store, tensors, blocks, message):
    """Place the copies that a message brought, and add its sums."""
    rest = iter(message)
    for tensor, same in pieces_of_message(store, tensors, blocks):
        arrays = [next(rest) for _ in store.shapes(tensor, same)]
        if tensor in SUMS:
            store.add(tensor, same, arrays)
        else:
            store.place(tensor, same, arrays)


def exchange(sends, receives, group):
    """Start sending and receiving (message, peer) pairs; returns what to wait for."""
    ops = [
        dist.P2POp(way, array, group=group, group_peer=peer)
        for way, messages in ((dist.isend, sends), (dist.irecv, receives))
        for message, peer in messages
        for array in message
    ]
    return dist.batch_isend_irecv(ops) if ops else []
'''

FOLLOW = '''
def follow(steps, store, attend, group):
    """Run a schedule: each step computes while its messages are under way."""
    for task in steps:
        receives = [(empty_message(store, *m), peer) for *m, peer in task.receives]
        sends = [(pack(store, *m), peer) for *m, peer in task.sends]
        works = exchange(sends, receives, group)
        for q_blocks, kv_blocks in task.attends:
            attend(store, q_blocks, kv_blocks)
        for work in works:
            work.wait()
        for (*m, _), (message, _) in zip(task.receives, receives, strict=True):
            unpack(store, *m, message)
        for read in task.drops:
            store.places.pop(read)
'''

FOLLOW_KEEPING = '''
def follow(steps, store, attend, group, keep=()):
    """Run a schedule: each step computes while its messages are under way."""
    for task in steps:
        receives = [(empty_message(store, *m), peer) for *m, peer in task.receives]
        sends = [(pack(store, *m), peer) for *m, peer in task.sends]
        works = exchange(sends, receives, group)
        for q_blocks, kv_blocks in task.attends:
            attend(store, q_blocks, kv_blocks)
        for work in works:
            work.wait()
        for (*m, _), (message, _) in zip(task.receives, receives, strict=True):
            unpack(store, *m, message)
        for read in task.drops:
            if read not in keep:
                store.places.pop(read)
'''
