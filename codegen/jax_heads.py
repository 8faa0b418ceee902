"""jax_heads   head slices that do not line up with KV heads, as a table of who shares which."""

import numpy as np

from codegen.rows import Ints


def kv_heads_of(q_slices: list[range], kv_slices: list[range], group: int) -> Ints:
    """Which head of a KV slice each head of a query slice uses, -1 is none: [q slices, KV slices,
    most heads of a query slice]; `group` query heads share a KV head."""
    table = np.full((len(q_slices), len(kv_slices), max(map(len, q_slices))), -1)
    for n, q in enumerate(q_slices):
        for m, kv in enumerate(kv_slices):
            for h, head in enumerate(q):
                if head // group in kv:
                    table[n, m, h] = head // group - kv.start
    return table


def aligned(q_slices: list[range], kv_slices: list[range], group: int) -> bool:
    """Whether the heads of a query slice always use those of a KV slice in equal turns."""
    table = kv_heads_of(q_slices, kv_slices, group)
    most = max(map(len, kv_slices))
    if {len(s) for s in q_slices} != {table.shape[2]} or {len(s) for s in kv_slices} != {most}:
        return False
    if table.shape[2] % most:
        return False
    turns = np.arange(table.shape[2]) // (table.shape[2] // most)
    used = (table >= 0).any(axis=2)
    return bool((table[used] == turns).all())
