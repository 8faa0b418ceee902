"""Cache ring: prefill on top of a cache; cache pages and new KV rotate together.

owner      page p of the cache -> rank p mod P; new queries and keys: head-tail, as zigzag
step t     rank r attends q[r] x (cache[r - t], new kv[r - t]), which travel on to r + 1
backward   the same, and dkv follows one step behind

forward sends   KV 2*f*(P-1)*kv_seq/seq
backward sends  KV 2*f*(P-1)*kv_seq/seq, DKV 2*f*P*(P>1)*kv_seq/seq

An all-gather of the cache needs memory for P shards at once, the ring for two (tpu-inference, RPA).
Without a cache (kv_seq = seq) it is the zigzag ring.
"""

from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Layout, chunks_of, whole_heads
from ringloom.planner.partitions import Partition, shift
from ringloom.planner.schedules.rings.ring import one_ring
from ringloom.planner.workload import Workload


def cache_ring(
    work: Workload, ranks: int, pass_: Pass, *, page: int = 16, layout: Layout = "zigzag"
) -> Plan:
    """Runs the ring over two sources of KV: pages of `page` cached tokens, and new tokens."""
    cached = max(0, work.kv_seq - work.seq)
    pages = chunks_of("striped", cached, ranks, page) if cached else []
    new = chunks_of(layout, work.kv_seq - cached, ranks)
    kv = whole_heads([*pages, *((shift(p, cached), r) for p, r in new)], work.kv_heads)
    q = whole_heads(chunks_of(layout, work.seq, ranks), work.heads)
    return one_ring("kv", work, Partition(q, kv), ranks, pass_)
