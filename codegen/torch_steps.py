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
    """The blocks on this rank: (tensor, block) -> rows a to b of a buffer [..., rows, width].

    Blocks that lie side by side in a buffer are one tensor to a kernel or a message. K and V are
    one tensor [2, ...]; a partial result is its output and, as one more column, its lse.
    """

    def __init__(self, setup, q):
        self.setup, self.batch, self.device = setup, q.shape[0], q.device
        self.narrow, self.wide = q.dtype, wide(q.dtype)
        self.places = {}

    def shape(self, tensor, block, rows):
        """The shape of so many rows of blocks like this one."""
        heads = len(self.setup.heads(tensor, block))
        width = {"OUT": HEAD_DIM + 1, "STATS": 2}.get(tensor, HEAD_DIM)
        pair = (2,) if tensor in ("KV", "DKV") else ()
        return (*pair, self.batch, heads, rows, width)

    def dtype(self, tensor):
        """Inputs keep their dtype; sums and statistics have at least 32 bits."""
        return self.narrow if tensor in ("Q", "DOUT", "KV") else self.wide

    def rows(self, tensor, blocks):
        """How many tokens the blocks have together."""
        return sum(self.setup.size(tensor, block) for block in blocks)

    def place(self, tensor, blocks, buffer):
        """Note that the rows of a buffer are these blocks, in this order."""
        a = 0
        for block in blocks:
            b = a + self.setup.size(tensor, block)
            self.places[tensor, block] = buffer, a, b
            a = b

    def view(self, tensor, blocks):
        """The blocks as one tensor; where they are apart they are first brought together."""
        spans = []
        for block in blocks:
            buffer, a, b = self.places[tensor, block]
            if spans and spans[-1][0] is buffer and spans[-1][2] == a:
                spans[-1][2] = b
            else:
                spans.append([buffer, a, b])
        parts = [buffer.narrow(-2, a, b - a) for buffer, a, b in spans]
        if len(parts) == 1:
            return parts[0]
        whole = torch.cat(parts, dim=-2)
        self.place(tensor, blocks, whole)
        return whole

    def sums(self, tensor, blocks):
        """The running sums of some blocks as one tensor; what nobody has begun is zero."""
        absent = [block for block in blocks if (tensor, block) not in self.places]
        if absent:
            shape = self.shape(tensor, absent[0], self.rows(tensor, absent))
            zeros = torch.zeros(shape, dtype=self.wide, device=self.device)
            if tensor == "OUT":
                zeros[..., HEAD_DIM] = -torch.inf
            self.place(tensor, absent, zeros)
        return self.view(tensor, blocks)

    def add(self, tensor, blocks, part):
        """Add a part that arrived; where there was nothing, it is the sum."""
        if any((tensor, block) in self.places for block in blocks):
            total = self.sums(tensor, blocks)
            if tensor == "OUT":
                merge(total, part[..., :HEAD_DIM], part[..., HEAD_DIM:])
            else:
                total += part
        else:
            self.place(tensor, blocks, part)

    def shard(self, tensor, x):
        """Place the blocks at home, which are slices of the local shard x."""
        for heads, blocks in self.setup.home(tensor):
            self.place(tensor, blocks, x[..., heads.start : heads.stop, :, :])

    def unshard(self, tensor):
        """The sums of the blocks at home as a local shard."""
        parts = [self.sums(tensor, blocks) for _, blocks in self.setup.home(tensor)]
        return torch.cat(parts, dim=-3) if len(parts) > 1 else parts[0]
'''

MESSAGES = '''
def pieces_of_message(store, tensors, blocks):
    """What a message carries one after the other: (tensor, blocks of one head slice)."""
    for tensor in sorted(tensors, key=lambda t: -store.dtype(t).itemsize):
        for _, same in groupby(blocks, partial(store.setup.slice, tensor)):
            yield tensor, list(same)


def pack(store, tensors, blocks):
    """The bytes of a message; sums are handed over, so they leave the store."""
    parts = []
    for tensor, same in pieces_of_message(store, tensors, blocks):
        parts.append(store.view(tensor, same).contiguous().view(-1).view(torch.uint8))
        if tensor in SUMS:
            for block in same:
                del store.places[tensor, block]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def empty_message(store, tensors, blocks):
    """Room for the bytes of a message that is to come."""
    size = 0
    for tensor, same in pieces_of_message(store, tensors, blocks):
        shape = store.shape(tensor, same[0], store.rows(tensor, same))
        size += math.prod(shape) * store.dtype(tensor).itemsize
    return torch.empty(size, dtype=torch.uint8, device=store.device)


def unpack(store, tensors, blocks, message):
    """Place the copies that a message brought, and add its sums."""
    a = 0
    for tensor, same in pieces_of_message(store, tensors, blocks):
        shape = store.shape(tensor, same[0], store.rows(tensor, same))
        b = a + math.prod(shape) * store.dtype(tensor).itemsize
        part = message[a:b].view(store.dtype(tensor)).view(shape)
        if tensor in SUMS:
            store.add(tensor, same, part)
        else:
            store.place(tensor, same, part)
        a = b


def exchange(sends, receives, group):
    """Start sending and receiving (message, peer) pairs; returns what to wait for."""
    ops = [
        dist.P2POp(way, message, group=group, group_peer=peer)
        for way, messages in ((dist.isend, sends), (dist.irecv, receives))
        for message, peer in messages
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
