"""Kernel tiles counted in closed form equal kernel tiles looked at one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.layouts import LAYOUTS, by_tokens
from planner.masks import Blocks, Window
from planner.partitions import Block, Partition, Ranges, Side, merge
from planner.workload import Workload
from simulator.costs.kernel_tiles import kernel_tiles
from strategies import masks

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@st.composite
def scattered(draw: st.DrawFn, tokens: int) -> Side:
    """Blocks of tokens shared out anyhow: many ranges, interleaved, in any order."""
    owner = draw(st.lists(st.integers(0, 3), min_size=tokens, max_size=tokens))
    chunks = [[range(i, i + 1) for i in range(tokens) if owner[i] == o] for o in range(4)]
    return Side(tuple(Block(tuple(draw(st.permutations(c))), range(1), 0) for c in chunks))


@st.composite
def partitions(draw: st.DrawFn, work: Workload) -> Partition:
    """Every layout by tokens, and sides of scattered blocks."""
    if draw(st.booleans()):
        return Partition(draw(scattered(work.seq)), draw(scattered(work.kv_seq)))
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    grain = draw(st.integers(1, 5)) if layout == "striped" else 1
    return by_tokens(work, draw(st.integers(1, 6)), layout, grain)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Partition]:
    seq, kv_seq = draw(st.integers(1, 50)), draw(st.integers(1, 50))
    work = Workload(seq=seq, kv_seq=kv_seq, heads=1, mask=draw(masks(seq, kv_seq)))
    return work, draw(partitions(work))


def one_by_one(work: Workload, q: Ranges, kv: Ranges, tile: tuple[int, int]) -> int:
    """The definition: a kernel tile counts unless the mask allows no pair in it."""
    allowed = work.allowed(merge(q), merge(kv))
    rows, columns = allowed.shape
    return sum(
        bool(allowed[i : i + tile[0], j : j + tile[1]].any())
        for i in range(0, rows, tile[0])
        for j in range(0, columns, tile[1])
    )


@given(cases(), SIZES)
def test_counting_equals_looking_at_every_kernel_tile(
    case: tuple[Workload, Partition], tile: tuple[int, int]
) -> None:
    compare(*case, tile)


def compare(work: Workload, partition: Partition, tile: tuple[int, int]) -> None:
    sides = partition.q.chunks, partition.kv.chunks
    expected = [[one_by_one(work, q, kv, tile) for kv in sides[1]] for q in sides[0]]
    np.testing.assert_array_equal(kernel_tiles(work, partition, tile), expected)


@pytest.mark.parametrize("left", range(5))
@pytest.mark.parametrize("right", range(3))
def test_bands_between_the_queries_of_a_stripe_leave_gaps(left: int, right: int) -> None:
    work = Workload(seq=24, heads=1, mask=Window(left, right))
    for ranks in range(2, 8):
        stripes, pieces = (by_tokens(work, ranks, layout) for layout in ("striped", "contiguous"))
        for tile in (2, 1), (3, 2), (4, 4):
            compare(work, stripes, tile)
            compare(work, Partition(stripes.q, pieces.kv), tile)


@pytest.mark.parametrize("missing", [(0, 1), (1, 0), (1, 1)])
def test_a_mask_that_ends_one_position_early_looks_at_more_than_the_distance(
    missing: tuple[int, int],
) -> None:
    n = 12
    rows, columns = (n - one for one in missing)
    grid = np.zeros((n, n), bool)
    grid[:rows, :columns] = True
    work = Workload(seq=n, heads=1, mask=Blocks(tuple(map(tuple, grid.tolist())), 1) & Window(1, 1))
    for layout in LAYOUTS:
        compare(work, by_tokens(work, 4, layout), (1, 1))
        compare(work, by_tokens(work, 4, layout), (2, 2))
