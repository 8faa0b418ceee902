"""Layouts against PyTorch's own load balancers, index by index."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringloom.planner.analysis.balance import loads
from ringloom.planner.layouts import by_tokens
from ringloom.planner.masks import Causal, Documents, Full, Mask, Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from shards import in_order

torch = pytest.importorskip("torch")
balancers = pytest.importorskip(
    "torch.distributed.tensor.experimental._context_parallel._load_balancer"
)
flex = pytest.importorskip("torch.nn.attention.flex_attention")

ranks = st.integers(1, 6)
FEW = settings(max_examples=max(10, settings.default.max_examples // 2))


def order(work: Workload, count: int, layout: str, grain: int = 0) -> list[int]:
    """Positions in the order of the ranks' shards."""
    return in_order(by_tokens(work, count, layout, grain).q, count).tolist()


@FEW
@given(ranks, st.integers(1, 9))
def test_zigzag_is_pytorch_s_head_tail(count: int, size: int) -> None:
    seq = 2 * count * size
    theirs = balancers._HeadTailLoadBalancer(seq, count, "cpu")._generate_indices()
    assert order(Workload(seq, heads=1), count, "zigzag") == theirs.flatten().tolist()


def balances(lengths: list[int], count: int) -> bool:
    """True if the installed balancer gives every rank as many causal pairs of these documents.

    PyTorch 2.13 lists the ranks of one document after those of another, so shards cut documents.
    """
    balancer = balancers._PerDocumentHeadTailLoadBalancer([lengths], count, "cpu")
    row = np.concatenate([np.arange(1, length + 1) for length in lengths])  # pairs of each query
    pairs = row[balancer._generate_indices().numpy().reshape(count, -1)].sum(axis=1)
    return bool(np.ptp(pairs) == 0)


BALANCED = balances([4, 12], 2)  # 44 pairs on both ranks, and not 26 and 62


@FEW
@given(ranks, st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_per_document_is_pytorch_s_head_tail_of_each_document(count: int, sizes: list[int]) -> None:
    lengths = [2 * count * size for size in sizes]
    balancer = balancers._PerDocumentHeadTailLoadBalancer([lengths], count, "cpu")
    theirs = balancer._generate_indices().flatten().tolist()
    work = Workload(sum(lengths), heads=1, mask=Causal() & Documents(tuple(lengths)))
    ours = order(work, count, "per-document")
    if BALANCED:
        assert ours == theirs
    ends = np.cumsum([0, *lengths]).tolist()
    for first, last in pairwise(ends):
        alone = [[at for at in each if first <= at < last] for each in (ours, theirs)]
        assert alone[0] == alone[1]


@given(ranks, st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_per_document_gives_every_rank_as_many_pairs(count: int, sizes: list[int]) -> None:
    lengths = [2 * count * size for size in sizes]
    work = Workload(sum(lengths), heads=1, mask=Causal() & Documents(tuple(lengths)))
    pairs = loads(plan("allgather:layout=per-document", work, count)).sum(axis=0)
    assert pairs.tolist() == [sum(n * (n + 1) // 2 for n in lengths) // count] * count


def allowed(mask: Mask) -> Callable[[Any, Any, Any, Any], Any]:
    """The mask as PyTorch takes it."""
    match mask:
        case Full():
            return flex.noop_mask
        case Causal():
            return lambda b, h, q, kv: q >= kv
        case Window(left, right):
            return lambda b, h, q, kv: (q - kv <= left) & (kv - q <= right)
        case Documents(lengths):
            of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
            return lambda b, h, q, kv: of[q] == of[kv]
    raise AssertionError(mask)


@FEW
@given(st.data(), ranks, st.integers(1, 5), st.sampled_from([1, 4, 16]))
def test_snake_is_pytorch_s_ptrr(data: st.DataObject, count: int, each: int, grain: int) -> None:
    seq = count * each * grain
    cuts = st.lists(st.integers(1, max(1, seq - 1)), max_size=3, unique=True)
    ends = [0, *sorted(set(data.draw(cuts)) - {seq}), seq]
    documents = Documents(tuple(np.diff(ends).tolist()))
    side = st.integers(0, seq)
    mask = data.draw(st.sampled_from([Full(), Causal(), documents]) | st.builds(Window, side, side))
    blocks = flex.create_block_mask(
        allowed(mask), B=None, H=None, Q_LEN=seq, KV_LEN=seq, device="cpu", BLOCK_SIZE=grain
    )
    theirs = balancers._PTRRLoadBalancer(blocks, count)._generate_indices().flatten().tolist()
    assert order(Workload(seq, heads=1, mask=mask), count, "snake", grain) == theirs
