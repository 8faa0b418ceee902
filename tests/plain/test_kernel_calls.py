"""The one cutter of rectangles: its calls cover what a mask allows, once, and nothing else."""

from itertools import accumulate, pairwise, product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ringloom.codegen.frame.assemble import Part
from ringloom.codegen.torch.parts import bands
from ringloom.planner.kernel_calls import Call, Takes, band_calls, rectangle_calls
from ringloom.planner.kernel_calls.calls import to_ranges
from ringloom.planner.kernel_calls.runs import Run, runs
from ringloom.planner.kernel_calls.strips import strip_calls
from ringloom.planner.masks import Causal, Documents, Mask, Window
from ringloom.planner.partitions import Ranges, shift_ranges, sorted_positions
from ringloom.planner.workload import Workload
from strategies import masks, range_sets

Counts = NDArray[np.int64]


def order(blocks: list[Ranges]) -> Counts:
    """The positions of rows or columns."""
    return np.concatenate([*map(sorted_positions, blocks), np.zeros(0, np.int64)])


def covered(
    calls: list[Call], shape: tuple[int, int], allowed: NDArray[np.bool_], late: bool = False
) -> Counts:
    """Count how often each pair of a rectangle is computed; no row of a call may see nothing.

    late: causal calls may have more columns than rows.
    """
    count = np.zeros(shape, np.int64)
    for call in calls:
        place = np.ix_(np.array(call.rows), np.array(call.columns))
        ahead = np.arange(len(call.columns)) - np.arange(len(call.rows))[:, None]
        if call.band is None:
            count[place] += allowed[place]
            continue
        more = len(call.columns) - len(call.rows)
        assert call.kind != "causal" or not more or (late and more > 0)
        lo, hi = (
            (-(10**6), more if call.band else 10**6) if call.band in (True, False) else call.band
        )
        seen = (lo <= ahead) & (ahead <= hi)
        assert seen.any(axis=1).all()
        count[place] += seen
    return count


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, list[Ranges], list[Ranges]]:
    seq, kv_seq = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    work = Workload(seq=seq, kv_seq=kv_seq, heads=1, mask=draw(masks(seq, kv_seq)))
    q, kv = (draw(st.lists(range_sets(n), min_size=1, max_size=3)) for n in (seq, kv_seq))
    return work, q, kv


@given(cases(), st.sampled_from([0, 4, 64, 1000]), st.sampled_from([4, 8, 512]), st.booleans())
def test_calls_cover_what_the_mask_allows_once(
    case: tuple[Workload, list[Ranges], list[Ranges]], most: int, tile: int, late: bool
) -> None:
    work, q, kv = case
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ringloom.planner.kernel_calls.calls.MOST_PAIRS", most)
        patched.setattr("ringloom.planner.kernel_calls.strips.TILE", tile)
        aligned = [shift_ranges(block, work.offset) for block in q]
        takes = Takes(bottom_right=late)
        calls = rectangle_calls(aligned, kv, work.mask.region().pieces, takes=takes)
    rows, columns = order(q), order(kv)
    allowed = work.allowed(rows, columns)
    count = covered(calls, (len(rows), len(columns)), allowed, late)
    np.testing.assert_array_equal(count, allowed)


def test_pages_that_every_query_sees_are_one_call() -> None:
    queries, pages = [range(4096, 4352), range(7936, 8192)], [range(n, n + 16) for n in (0, 64, 99)]
    sides, boxes = (runs(queries), runs(pages)), Causal().region().pieces
    assert band_calls(*sides, boxes) == [Call(range(512), range(48), False)]


@pytest.mark.parametrize("mask", [Causal(), Causal() & Documents((4, 56))])
@pytest.mark.parametrize(("keys", "more"), [(range(60), 0), (range(50), 1), (range(20, 60), 0)])
def test_late_queries_are_one_call_where_kernels_count_from_the_last_row(
    mask: Mask, keys: range, more: int
) -> None:
    """Rows after the last key are a full call."""
    queries, boxes, takes = range(40, 60), mask.region().pieces, Takes(bottom_right=True)
    first, last = (
        rectangle_calls([(queries,)], [(keys,)], boxes, takes=t) for t in (Takes(), takes)
    )
    assert [call.kind for call in last] == ["causal"] + ["full"] * more
    assert len(first) == len(last) + 1
    allowed = mask.allowed(queries, keys)
    np.testing.assert_array_equal(covered(last, allowed.shape, allowed, True), allowed)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.data())
def test_a_rectangle_is_cut_by_the_documents_that_it_meets_alone(
    lengths: list[int], data: st.DataObject
) -> None:
    work = Workload(seq=sum(lengths), heads=1, mask=Causal() & Documents(tuple(lengths)))
    ends = sorted(data.draw(st.tuples(*[st.integers(0, work.seq)] * 2)))
    part, between, looked = range(*ends), Run.between, list[range]()

    def counted(run: Run, low: int, high: int) -> Run:
        looked.append(range(low, high))
        return between(run, low, high)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "between", counted)
        calls = band_calls(runs([part]), runs([part]), work.mask.region().pieces)
    cuts = pairwise([0, *accumulate(lengths)])
    met = sum(bool(part) and a < part.stop and part.start < b for a, b in cuts)
    assert len(looked) == 2 * met  # once for rows, once for columns
    allowed = work.allowed(part, part)
    np.testing.assert_array_equal(covered(calls, allowed.shape, allowed), allowed)


@pytest.mark.parametrize(
    ("mask", "q", "kv", "kinds"),
    [
        ("causal", range(0, 60, 2), range(1, 60, 3), {"causal"}),  # unequal steps
        ("window:9,5", range(60), range(60), {"window"}),
        ("window:2,2", range(60), range(0, 60, 10), {"masked"}),  # queries between see no key
    ],
)
def test_windows_and_strides_are_cut_as_well(
    mask: str, q: range, kv: range, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ringloom.planner.kernel_calls.calls.MOST_PAIRS", 64 if kinds != {"masked"} else 0
    )
    work = Workload(seq=60, heads=1, mask=mask)
    calls = rectangle_calls([(q,)], [(kv,)], work.mask.region().pieces)
    allowed = work.allowed(q, kv)
    assert {call.kind for call in calls} == kinds
    np.testing.assert_array_equal(covered(calls, allowed.shape, allowed), allowed)


@pytest.mark.parametrize("kv", [range(2, 5, 4), range(3), range(8)])
def test_one_token_of_a_stripe_is_one_row(kv: range) -> None:
    """Its range ends far behind it where the step is the number of ranks."""
    allowed = np.array(kv) <= np.array([[2]])
    calls = rectangle_calls([(range(2, 5, 4),)], [(kv,)], Causal().region().pieces)
    np.testing.assert_array_equal(covered(calls, allowed.shape, allowed), allowed)


def assert_alike(
    mask: Mask, rows: Ranges, columns: Ranges, whole: bool = False, late: bool = False
) -> None:
    """Fails unless programs of loops make the calls that the planner does."""
    boxes = mask.region().pieces
    ours = band_calls(runs(rows), runs(columns), boxes, Takes(whole, late))
    plain = [without_windows] * bool((boxes[:, 4] < -(2**30)).all())
    parts: list[Any] = [bands, *plain]
    for part in parts:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(part, "BOXES", tuple(map(tuple, boxes.tolist())))
            part.tiles.cache_clear()
            theirs = part.tiles(rows, columns, late, whole)
        assert [(*map(written, call[:2]), call[2]) for call in theirs] == [
            (tuple(call.rows), tuple(call.columns), call.band) for call in ours
        ]


@given(cases(), st.data(), st.integers(1, 4), st.booleans(), st.booleans())
def test_programs_cut_as_the_planner_does(
    case: tuple[Workload, list[Ranges], list[Ranges]],
    data: st.DataObject,
    step: int,
    whole: bool,
    late: bool,
) -> None:
    rows, columns = (tuple(data.draw(of_one_step(step))) for _ in range(2))
    assert_alike(case[0].mask, shift_ranges(rows, case[0].offset), columns, whole, late)


@pytest.mark.parametrize("left", [0, 1, 3, 7, 40])
@pytest.mark.parametrize("right", [0, 1, 2, 9, 40, None])
def test_programs_cut_windows_as_the_planner_does_where_kernels_take_them(
    left: int, right: int | None
) -> None:
    mask = Window(left, right)
    for rows, columns, ahead, step in product((1, 5, 12), (1, 5, 12), range(-14, 15), (1, 3)):
        queries = range(60, 60 + rows * step, step)
        keys = range(60 + ahead, 60 + ahead + columns * step, step)
        assert_alike(mask, (queries,), (keys,), whole=True)
        calls = rectangle_calls(
            [(queries,)], [(keys,)], mask.region().pieces, takes=Takes(windows=True)
        )
        assert len(calls) <= 1 + 2 * (rows > columns)
        count = covered(calls, (rows, columns), np.zeros((0, 0), bool))
        np.testing.assert_array_equal(count, mask.allowed(queries, keys))


def test_long_windows_are_cut_into_as_many_strips_as_programs_have() -> None:
    assert_alike(Window(40, 7), (range(2600),), (range(2600),))
    assert_alike(Window(1200), (range(3000),), (range(100, 5000),))
    ours = rectangle_calls([(range(2600),)], [(range(2600),)], Window(40, 7).region().pieces)
    assert [(len(call.rows), call.kind) for call in ours] == [
        (1024, "window"),
        (1024, "window"),
        (552, "window"),
    ]


without_windows = ModuleType("printed")
exec(Part("torch/parts/bands").text({"WINDOWS": False}), vars(without_windows))


def written(part: slice) -> tuple[int, ...]:
    return tuple(range(part.start, part.stop, part.step or 1))


@st.composite
def of_one_step(draw: st.DrawFn, step: int) -> list[range]:
    """Up to four ascending ranges, whole steps apart, here and there without a gap in between."""
    result, at = [], draw(st.integers(0, 12))
    for count in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)):
        result.append(range(at, at + step * (count - 1) + 1, step))
        at = result[-1][-1] + step * draw(st.integers(1, 6))
    return result


@given(st.data(), st.integers(1, 5))
def test_the_same_ranges_on_both_sides_are_a_triangle_however_many_they_are(
    data: st.DataObject, step: int
) -> None:
    q, kv = data.draw(of_one_step(step)), data.draw(of_one_step(step))
    late = q[data.draw(st.integers(0, len(q) - 1)) :]
    boxes = Causal().region().pieces
    for queries, keys, most in ((q, q, 1), (late, q, 2), (q, kv, 3 * len(q) * len(kv))):
        calls = rectangle_calls([tuple(queries)], [tuple(keys)], boxes)
        assert len(calls) <= most
        rows, columns = order([tuple(queries)]), order([tuple(keys)])
        count = covered(calls, (len(rows), len(columns)), np.zeros((0, 0), bool))
        np.testing.assert_array_equal(count, Causal().allowed(rows, columns))


@pytest.mark.parametrize(
    ("q", "kv", "expected"),
    [
        ((range(8),), (range(8),), [(8, 8, "causal")]),
        ((range(1, 32, 4),), (range(2, 32, 4),), [(7, 7, "causal")]),
        ((range(4), range(28, 32)), (range(4), range(28, 32)), [(8, 8, "causal")]),
        ((range(8, 16),), (range(16),), [(8, 8, "full"), (8, 8, "causal")]),
        ((range(8, 16),), (range(8),), [(8, 8, "full")]),
        ((range(8),), (range(8, 16),), []),
    ],
)
def test_causal_rectangles_are_cut_as_kernels_like_it(
    q: Ranges, kv: Ranges, expected: list[tuple[int, int, str]]
) -> None:
    calls = rectangle_calls([q], [kv], Causal().region().pieces)
    assert [(len(c.rows), len(c.columns), c.kind) for c in calls] == expected


@given(st.data(), st.integers(1, 60))
def test_blocks_are_taken_in_turn_each_ascending(data: st.DataObject, limit: int) -> None:
    blocks = data.draw(st.lists(range_sets(limit), min_size=1, max_size=4))
    parts = to_ranges(blocks)
    flat = [p for part in parts for p in part]
    assert flat == order(blocks).tolist()
    assert all(part.step > 0 for part in parts)


def test_strips_are_no_higher_than_a_tile_where_they_are_masked() -> None:
    stripes = sorted_positions(tuple(range(64 + i, 2**13, 256) for i in range(64)))
    mask: Mask = Causal()
    strips = strip_calls(stripes, stripes, mask.region().pieces)
    assert max(len(s.rows) for s in strips if s.kind == "masked") <= 512
    assert any(s.kind == "full" for s in strips)
    assert all(a.rows.start <= b.rows.start for a, b in pairwise(strips))


def test_one_masked_call_takes_many_small_documents() -> None:
    positions = np.arange(60)
    calls = strip_calls(positions, positions, Documents((10,) * 6).region().pieces)
    assert [(len(c.rows), len(c.columns), c.kind) for c in calls] == [(60, 60, "masked")]
