"""Cache ring: prefill with a cache; cache pages and new KV rotate together.

owner      rank p mod P owns page p of the cache; new queries and keys have the zigzag layout
step t     rank r attends q[r] x (cache[r - t], new kv[r - t]), and this KV -> r + 1
backward   the same, and dkv follows one step behind

forward sends   KV 2*f*(P-1)*kv_seq/seq
backward sends  KV 2*f*(P-1)*kv_seq/seq, DKV 2*f*P*(P>1)*kv_seq/seq

An all-gather of the cache needs memory for P shards, the ring for two (tpu-inference, RPA).
Without a cache (kv_seq = seq), this is the zigzag ring.
"""

from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Layout, chunks_of, whole_heads
from ringloom.planner.partitions import Partition, shift_ranges
from ringloom.planner.schedules.rings.ring import one_ring
from ringloom.planner.workload import Workload


def cache_ring(
    work: Workload, ranks: int, pass_: Pass, *, page: int = 16, layout: Layout = "zigzag"
) -> Plan:
    """Runs a ring on KV of two kinds: pages of `page` cached tokens, and new tokens."""
    cache_length = max(0, work.kv_seq - work.seq)
    pages = chunks_of("striped", cache_length, ranks, page) if cache_length else []
    new = chunks_of(layout, work.kv_seq - cache_length, ranks)
    kv = whole_heads([*pages, *((shift_ranges(p, cache_length), r) for p, r in new)], work.kv_heads)
    q = whole_heads(chunks_of(layout, work.seq, ranks), work.heads)
    return one_ring("kv", work, Partition(q, kv), ranks, pass_)
