"""Layouts that follow documents or the work of a mask, and one that balances several masks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from ringloom.planner.analysis.balance import loads
from ringloom.planner.errors import PlanError
from ringloom.planner.layouts import BY_MASK, balanced_layout, by_tokens, independent_parts
from ringloom.planner.layouts.by_work import count_all_pairs, cut_tokens
from ringloom.planner.layouts.dispatch import (
    Loads,
    assign_in_snake_order,
    assign_least_loaded,
    balance_loads,
    sum_loads,
)
from ringloom.runtimes.validation import check
from shards import in_order
from strategies import masks

layouts, ranks = st.sampled_from(sorted(BY_MASK)), st.integers(1, 7)
PACKED = "causal & documents:9000,20000,500,300,36," + ",".join(["1190"] * 30)


def sizes(partition: rl.Partition, count: int) -> list[int]:
    """Tokens of each rank."""
    return [len(partition.q.positions(rank)) for rank in range(count)]


def busiest(work: rl.Workload, partition: rl.Partition, count: int) -> float:
    """Load of the busiest rank over the average, of a ring's plan."""
    load = loads(rl.plan("ring", work, count, layout=partition)).sum(axis=0)
    return float(load.max() / load.mean())


@given(st.data(), layouts, ranks, st.integers(1, 40), st.integers(1, 40))
def test_each_token_has_one_owner_on_both_sides(
    data: st.DataObject, layout: str, count: int, seq: int, kv_seq: int
) -> None:
    work = rl.Workload(seq, kv_seq, heads=2, mask=data.draw(masks(seq, kv_seq)))
    partition = by_tokens(work, count, layout)
    partition.check(work, count)
    if seq == kv_seq and layout not in ("per-document", "whole-document"):
        q, kv = (in_order(side, count) for side in (partition.q, partition.kv))
        assert q.tolist() == kv.tolist()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), ranks)
def test_documents_are_head_tail_each_and_tokens_are_even(lengths: list[int], count: int) -> None:
    if not sum(lengths):
        return
    work = rl.Workload(sum(lengths), heads=1, mask=rl.Causal() & rl.Documents(tuple(lengths)))
    partition = by_tokens(work, count, "per-document")
    assert max(sizes(partition, count)) - min(sizes(partition, count)) <= 1 + (
        len(independent_parts(work)) < 2
    )
    owner = np.empty(work.seq, int)
    for block in partition.q.blocks:
        owner[block.tokens()] = block.home
    for document, _ in independent_parts(work):
        own = owner[document.start : document.stop]
        turn = own.argmax()
        assert (np.diff(own[: turn + 1]) >= 0).all()
        assert (np.diff(own[turn:]) <= 0).all()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), ranks)
def test_whole_documents_are_on_one_rank_and_nothing_travels(
    lengths: list[int], count: int
) -> None:
    work = rl.Workload(sum(lengths), heads=1, mask=rl.Documents(tuple(lengths)))
    plan = rl.plan("ring:layout=whole-document", work, count)
    assert not list(plan.moves())
    largest, load = max(lengths) ** 2, loads(plan).sum(axis=0)
    assert load.max() <= max(largest, load.sum() / count + largest)  # longest first


@given(st.data(), ranks, st.integers(1, 9))
def test_dispatched_shards_have_as_many_pieces_of_whole_grains(
    data: st.DataObject, count: int, grain: int
) -> None:
    seq = grain * count * data.draw(st.integers(1, 4))
    work = rl.Workload(seq, heads=1, mask=data.draw(masks(seq, seq)))
    for layout in ("heap", "snake"):
        partition = by_tokens(work, count, layout, grain)
        assert sizes(partition, count) == [seq // count] * count
        for block in partition.q.blocks:
            assert all(
                part.start % grain == 0 and len(part) % grain == 0 for part in block.positions
            )


@given(st.data(), ranks)
def test_shards_of_even_work_are_consecutive_and_off_by_one_grain(
    data: st.DataObject, count: int
) -> None:
    work = rl.Workload(60, heads=1, mask=data.draw(masks(60, 60)))
    partition = by_tokens(work, count, "even-work", 1)
    assert in_order(partition.q, count).tolist() == list(range(60))
    each = count_all_pairs(work, "q", cut_tokens(work, "q", 0, 1))[:, 0]
    each = each if each.any() else np.ones(60)  # nothing to do is shared by tokens
    done, ends = np.cumsum([0, *each]), np.cumsum(sizes(partition, count))
    for rank, end in enumerate(ends[:-1].tolist(), 1):
        assert abs(done[end] - done[-1] * rank / count) <= each.max() / 2


@pytest.mark.parametrize("layout", ["per-document", "heap", "snake", "even-work"])
def test_packed_documents_are_balanced_where_zigzag_is_not(layout: str) -> None:
    work = rl.Workload(65536, heads=1, mask=PACKED)
    assert busiest(work, by_tokens(work, 8, "zigzag"), 8) > 2.2
    assert busiest(work, by_tokens(work, 8, layout), 8) < 1.06


LOADS = st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=2), min_size=1, max_size=24).map(
    lambda rows: np.array(rows, float)
)


@given(LOADS, ranks)
def test_no_mask_alone_balances_all_masks_better(table: Loads, count: int) -> None:
    most = -(-len(table) // count)
    owners = balance_loads(table, count, most)
    assert np.bincount(owners, minlength=count).max() <= most
    largest = sum_loads(table, owners, count).max()
    for mask in range(2):
        alone = assign_least_loaded(table[:, [mask]], count, most)
        assert largest <= sum_loads(table, alone, count).max()
    assert largest >= table.sum(axis=0).max() / count


@given(LOADS, ranks)
def test_a_heap_is_within_one_piece_of_the_average_and_a_snake_is_even(
    table: Loads, count: int
) -> None:
    one = table[:, :1]
    heap = sum_loads(one, assign_least_loaded(one, count, len(one)), count)
    assert heap.max() <= one.sum() / count + one.max()
    counts = np.bincount(assign_in_snake_order(one, count), minlength=count)
    assert counts.max() - counts.min() <= 1
    if len(one) % count == 0:
        snake = sum_loads(one, assign_in_snake_order(one, count), count)
        assert snake.max() - snake.min() <= one.max() - one.min()


def test_one_dispatch_balances_the_windows_and_the_full_layers_of_a_model() -> None:
    full = "causal & documents:" + ",".join(["1024"] * 16) + ",16384"
    window = f"{full} & window:2048"
    layers = [rl.Workload(32768, heads=1, mask=mask) for mask in (window, full)]
    shared = balanced_layout(layers[0], [window, full], 8)
    assert max(busiest(layer, shared, 8) for layer in layers) < 1.02
    for alone in layers:
        partition = by_tokens(alone, 8, "heap")
        assert max(busiest(layer, partition, 8) for layer in layers) > 1.04
    assert busiest(layers[1], by_tokens(layers[1], 8, "zigzag"), 8) > 1.8
    small = rl.Workload(37, heads=4, kv_heads=2, head_dim=3, mask="window:5", dtype="float64")
    partition = balanced_layout(small, ["window:5", "causal"], 4, grain=3)
    for name in ("ring", "llama3", "group-cast", "mesh2d"):
        assert check(rl.plan(name, small, 4, pass_="both", layout=partition)).exact


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda work: balanced_layout(work, [], 2), r"a list of at least one mask, not \[\]"),
        (
            lambda work: balanced_layout(work, "causal", 2),
            "a list of at least one mask, not 'causal'",
        ),
        (rl.to_cu_seqlens, r"the mask must be a Mask such as Causal\(\), not Workload"),
        (lambda work: rl.plan("balanced", work, 2, layout="heap"), "balanced has a fixed layout"),
        (lambda work: rl.plan("groups", work, 2, layout="heap"), "by the mask cannot be used here"),
        (lambda work: rl.plan("ring", work, 2, layout="spiral"), "choose one of .*even-work"),
        (
            lambda work: rl.plan("ring", work, 2, layout=by_tokens(work, 3, "zigzag")),
            r"has 3 ranks, but tokens are divided among 2 \(ranks, or",
        ),
        (
            lambda work: rl.plan("ulysses", work, 2, layout=by_tokens(work, 2, "zigzag")),
            r"the layout has 2 ranks, but tokens are divided among 1 \(ranks, or",
        ),
        (
            lambda work: rl.plan("groups", work, 2, layout=by_tokens(work, 2, "zigzag")),
            "a layout that is a partition cannot be used here: choose one of contiguous",
        ),
        (lambda work: rl.plan("ring:layout=heap:grain=k", work, 2), "grain takes a whole number"),
        (
            lambda work: rl.plan("ring:layout=whole-document:grain=4", work, 2),
            "grain=4 needs one of striped, heap, snake, even-work",
        ),
    ],
)
def test_what_no_layout_means_is_refused(make, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make(rl.Workload(12, heads=2))
