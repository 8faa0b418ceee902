"""Tables as an argument: a plan with its mask and layout, and attention by these tables."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ringloom.codegen.torch.parts.function import checked_attention
from ringloom.codegen.torch.parts.tables.memory import forms
from ringloom.codegen.torch.parts.tables.table import group_of

RANKS, HEADS, KV_HEADS, HEAD_DIM, FORMAT = 1, 1, 1, 1, 3
PLAN: dict[str, Any] = {}

# ---- Tables: a plan with its mask and layout.


class Tables(dict[str, Any]):
    """A plan from `ringloom tables torch` or `example`; all ranks must use equal tables.

    Make tables once per batch and use them for all layers. Raises ValueError for arrays that are
    not a plan for this program.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        super().__init__()
        names = ("sizes", "scale", "mask", "q_order", "q_sizes", "kv_order", "kv_sizes", "steps")
        if absent := [name for name in names if name not in arrays]:
            raise ValueError(f"these tables lack {', '.join(absent)}")
        values = [np.asarray(arrays[name]) for name in names]
        self.digest = hashlib.sha256(b"".join(x.tobytes() for x in values)).hexdigest()[:15]
        version, passes, ranks, self.seq, self.kv_seq, *heads = values[0].tolist()
        expected = (FORMAT, RANKS, HEADS, KV_HEADS, HEAD_DIM, PLAN["scale"])
        if (actual := (version, ranks, *heads, float(values[1]))) != expected:
            raise ValueError(
                f"these tables were built for {actual}, but this program needs {expected}"
                " (format, ranks, heads, KV heads, dim, scale)"
            )
        self.has_backward, self.boxes = passes == 2, [tuple(row) for row in values[2].tolist()]
        q, q_sizes, kv, kv_sizes, steps = values[3:]
        self.shards = {
            "q": torch.from_numpy(q.astype(np.int64)).split(q_sizes.tolist()),
            "kv": torch.from_numpy(kv.astype(np.int64)).split(kv_sizes.tolist()),
        }
        self.update(json.loads(steps.tobytes()))
        self.check()
        self.name = str(id(self))
        tables_by_name[self.name] = self

    def check(self) -> None:
        """Raise ValueError for invalid positions, blocks or messages."""
        for side, tokens, blocks in (
            ("q", self.seq, self["QUERIES"]),
            ("kv", self.kv_seq, self["KEYS"]),
        ):
            order = torch.cat(self.shards[side])
            if len(self.shards[side]) != RANKS or order.sort()[0].tolist() != [*range(tokens)]:
                raise ValueError(f"these tables do not assign each {side} token to one rank")
            for owner, (first, end), *_ in blocks:
                if not 0 <= first <= end <= len(self.shards[side][owner]):
                    raise ValueError(
                        f"these tables have invalid rows {first} to {end} on rank {owner}"
                    )
        for steps in (*self["FORWARD"], *self["BACKWARD"]):
            for peer, tensor, number, _ in (x for step in steps for x in step[0] + step[1]):
                blocks = self["KEYS" if tensor in ("KV", "DKV") else "QUERIES"]
                if tensor not in forms or not (0 <= peer < RANKS and 0 <= number < len(blocks)):
                    raise ValueError(
                        f"these tables have invalid {tensor} block {number}, rank {peer}"
                    )


tables_by_name = WeakValueDictionary[str, Tables]()  # operators find tables by name


def load(path: str) -> Tables:
    """Load the tables in a file written by `ringloom tables torch`."""
    with np.load(path, allow_pickle=False) as file:
        return Tables({name: file[name] for name in file.files})


def example(seq: int) -> Tables:
    """Return tables of causal attention with an all-gather of keys and values."""
    cuts = [seq * rank // RANKS for rank in range(RANKS + 1)]
    blocks = [[rank, [0, b - a]] for rank, (a, b) in enumerate(pairwise(cuts))]
    forward, backward = list[Any](), list[Any]()
    for r in range(RANKS):
        after, before = range(r + 1, RANKS), range(r)
        gather: Any = [[s, "KV", r, 0] for s in after], [[s, "KV", s, 0] for s in before], [], []
        tiles = [[[r], [s], [[s == r, [], [], [], []]]] for s in range(r + 1)]
        scatter: Any = [[s, "DKV", s, 0] for s in before], [[s, "DKV", r, 0] for s in after], [], []
        forward.append([gather, [[], [], tiles, []]])
        backward.append([gather, [[], [], tiles, []], scatter])
    steps = {"FORWARD": forward, "BACKWARD": backward, "KEPT": [[] for _ in blocks]}
    text = json.dumps(steps | {"QUERIES": blocks, "KEYS": blocks})
    order, sizes = np.arange(seq), np.diff(cuts)
    arrays = {"q_order": order, "q_sizes": sizes, "kv_order": order, "kv_sizes": sizes}
    heads = HEADS, KV_HEADS, HEAD_DIM
    arrays["sizes"] = np.array([FORMAT, 2, RANKS, seq, seq, *heads])
    arrays["mask"] = np.array([[0, seq, 0, seq, -seq, 0]])
    return Tables(
        arrays | {"scale": PLAN["scale"], "steps": np.frombuffer(text.encode(), np.uint8)}
    )


# ---- Layout: from the tables.


def positions(rank: int, tables: Tables) -> Tensor:
    """Return the positions of the queries on a rank, in the order of its shard."""
    return tables.shards["q"][rank]


def kv_positions(rank: int, tables: Tables) -> Tensor:
    """Return the positions of the keys on a rank, in the order of its shard."""
    return tables.shards["kv"][rank]


def shard(x: Tensor, rank: int, tables: Tables, axis: int = 2, side: str = "q") -> Tensor:
    """Return a rank's shard of a whole tensor."""
    return whole_of(x, tables, axis, side).index_select(
        axis, tables.shards[side][rank].to(x.device)
    )


def unshard(parts: Iterable[Tensor], tables: Tables, axis: int = 2, side: str = "q") -> Tensor:
    """Return the whole tensor in sequence order, from the shards of all ranks."""
    whole = whole_of(torch.cat(list(parts), axis), tables, axis, side)
    return whole.index_select(axis, torch.cat(tables.shards[side]).argsort().to(whole.device))


def whole_of(x: Tensor, tables: Tables, axis: int, side: str) -> Tensor:
    """Return a whole tensor; raise ValueError if its length is not that of the tables."""
    if x.shape[axis] != (tokens := sum(map(len, tables.shards[side]))):
        raise ValueError(f"the layout has {tokens} tokens, not {x.shape[axis]}")
    return x


def allowed(i: Tensor, tables: Tables) -> Tensor:
    """Return True for each key that a query sees under the mask of the tables: [queries, keys]."""
    i, j = i[:, None] + tables.kv_seq - tables.seq, torch.arange(tables.kv_seq)
    seen = torch.zeros(len(i), tables.kv_seq, dtype=torch.bool)
    for i0, i1, j0, j1, low, high in tables.boxes:
        seen |= (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1) & (low <= j - i) & (j - i <= high)
    return seen


# ---- The function to call.


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tables,
    *,
    group: ProcessGroup | None = None,
    seq: int | None = None,
) -> Tensor:
    """Compute exact attention over a sharded sequence; all ranks of the group must call it.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards by
    `positions` and `kv_positions`; the result has the shape of q. tables: equal on all ranks.
    seq: the total number of queries, checked if given.
    Raises ValueError on all ranks if any rank has wrong shapes, mixed dtypes or the wrong group
    size, or if ranks differ in batch, dtype, device, gradients, tables or program.
    """
    return checked_attention([q, k, v], group, seq, tables)


def shapes(q: Tensor, tables: Tables, rank: int) -> list[tuple[int, ...]]:
    """Return the valid shapes of q, k and v on a rank."""
    sides = (HEADS, "q"), (KV_HEADS, "kv"), (KV_HEADS, "kv")
    return [(len(q), heads, len(tables.shards[side][rank]), HEAD_DIM) for heads, side in sides]


def group_named(name: str) -> Any:
    """Return the tables and the group whose names an operator received."""
    tables, _, group = name.partition(" ")
    return tables_by_name[tables], group_of(group)
