"""Areas in closed form against counting."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringloom.planner.errors import PlanError
from ringloom.planner.masks import Blocks, Causal, Documents, Full, Global, Mask, Window
from ringloom.planner.masks import areas as module
from ringloom.planner.masks.areas import count_pairs
from ringloom.planner.masks.regions import Region, overlaps
from strategies import masks, range_sets

Ranges = tuple[range, ...]
lengths = st.integers(1, 40)
small = st.integers(0, 9)
often = settings(max_examples=4 * settings().max_examples)


def shifted(sets: list[Ranges], by: int) -> list[Ranges]:
    return [tuple(range(r.start + by, r.stop + by, r.step) for r in rs) for rs in sets]


def positions(ranges: Ranges) -> np.ndarray:
    return np.array([p for r in ranges for p in r], int)


def counted(mask: Mask, q: list[Ranges], kv: list[Ranges]) -> np.ndarray:
    return np.array(
        [[mask.allowed(positions(i), positions(j)).sum() for j in kv] for i in q]
    ).reshape(len(q), len(kv))


def stripes(seq: int, ranks: int) -> list[Ranges]:
    return [(range(rank, seq, ranks),) for rank in range(ranks)]


def slabs(seq: int, ranks: int) -> list[Ranges]:
    return [(range(r * seq // ranks, (r + 1) * seq // ranks),) for r in range(ranks)]


@often
@given(st.data(), lengths, lengths)
def test_areas_equal_counting_for_any_mask_and_any_ranges(
    data: st.DataObject, seq: int, kv_seq: int
) -> None:
    mask = data.draw(masks(seq, kv_seq))
    q = shifted(data.draw(st.lists(range_sets(seq), max_size=3)), kv_seq - seq)
    kv = data.draw(st.lists(range_sets(kv_seq), max_size=3))
    np.testing.assert_array_equal(count_pairs(mask.region(), q, kv), counted(mask, q, kv))


@often
@given(
    st.tuples(st.integers(-30, 30), st.integers(1, 12), small),
    st.tuples(st.integers(-30, 30), st.integers(1, 12), small),
    st.integers(-40, 40),
    st.integers(-40, 40),
)
@example((0, 3, 5), (1, 5, 7), -4, 9)
def test_a_band_between_two_progressions_is_counted_exactly(
    q: tuple[int, int, int], kv: tuple[int, int, int], lo: int, hi: int
) -> None:
    rows, columns = (range(start, start + step * n, step) for start, step, n in (q, kv))
    band = Region.of([(-200, 200, -200, 200, lo, hi)])
    expected = sum(lo <= j - i <= hi for i in rows for j in columns)
    assert count_pairs(band, [(rows,)], [(columns,)])[0, 0] == expected


@given(
    st.lists(st.tuples(small, st.integers(1, 5)), max_size=9),
    st.lists(st.tuples(small, st.integers(1, 5)), max_size=9),
    st.integers(1, 10),
)
@example([(3, 1)], [(0, 5), (1, 1)], 10)
def test_every_overlap_of_two_lists_of_intervals_is_found_once(
    ours: list[tuple[int, int]], theirs: list[tuple[int, int]], limit: int
) -> None:
    a, b = (np.array(x, np.int64).reshape(-1, 2) for x in (ours, theirs))
    chunks = overlaps(a[:, 0], a.sum(1), b[:, 0], b.sum(1), limit)
    result = sorted((int(i), int(j)) for ia, ib in chunks for i, j in zip(ia, ib, strict=True))
    assert result == [
        (i, j)
        for i, (low, n) in enumerate(ours)
        for j, (start, m) in enumerate(theirs)
        if low < start + m and start < low + n
    ]


@given(st.integers(0, 99), st.integers(1, 3), st.integers(2, 4))
def test_many_boxes_against_stripes_are_counted_by_a_product(
    seed: int, size: int, ranks: int
) -> None:
    grid = np.random.default_rng(seed).random((20, 20)) < 0.5
    mask = Blocks(grid, size) & Window(9 * size + 1, 2)  # type: ignore[arg-type]
    q, kv = stripes(20 * size - 1, ranks), stripes(20 * size, 3)
    pieces = mask.region().pieces
    assert module._are_plain_boxes(pieces, module.to_runs(q), module.to_runs(kv)).sum() > 8
    np.testing.assert_array_equal(count_pairs(mask.region(), q, kv), counted(mask, q, kv))


@pytest.mark.parametrize("layout", [slabs, stripes])
def test_the_tiles_of_a_layout_sum_to_the_whole_mask(layout) -> None:  # type: ignore[no-untyped-def]
    seq, blocks = 2**20, layout(2**20, 256)
    mask = Causal() & (Window(4096) | Global(64))
    whole = sum(min(i + 1, 4097) + min(64, max(0, i - 4096)) for i in range(seq))
    assert count_pairs(mask.region(), blocks, blocks).sum() == whole
    for other in (mask, Documents((1048,) * 1000 + (seq - 1048_000,)), Causal()):
        assert count_pairs(other.region(), blocks, blocks).sum() == other.pairs(
            *[(range(seq),)] * 2
        )


def test_the_largest_lengths_do_not_overflow() -> None:
    seq = 2**31
    whole, odd, thirds = (range(seq),), (range(1, seq, 2),), (range(0, seq, 3),)
    assert Full().pairs(whole, whole) == seq * seq
    assert Causal().pairs(whole, whole) == seq * (seq + 1) // 2
    assert Causal().pairs(odd, odd) == seq // 2 * (seq // 2 + 1) // 2
    # An odd i = 6k + 1, 3, 5 meets 2k + 1, 2, 2 multiples of three.
    sixes, rest = divmod(seq, 6)
    exact = 3 * sixes * (sixes - 1) + 5 * sixes + (2 * sixes + 1) * (rest // 2)
    assert Causal().pairs(odd, thirds) == exact
    equal = len(range(3, seq, 6))
    assert Causal().pairs(thirds, odd) == len(thirds[0]) * len(odd[0]) - exact + equal


def test_positions_out_of_reach_are_refused_with_their_numbers() -> None:
    region = Full().region()
    with pytest.raises(PlanError, match="positions 0 to 2147483648"):
        count_pairs(region, [(range(2**31 + 1),)], [(range(2),)])
    with pytest.raises(PlanError, match="positions -5 to 2147483646"):
        count_pairs(region, [(range(1),)], [(range(-5, 2**31 - 1),)])


def test_no_sets_and_empty_sets_are_legal() -> None:
    region = Causal().region()
    assert count_pairs(region, [], [(range(3),)]).shape == (0, 1)
    assert count_pairs(region, [(), (range(5, 5),)], [(range(3),)]).tolist() == [[0], [0]]
    assert count_pairs(Region.of([]), [(range(3),)], [(range(3),)]).tolist() == [[0]]
