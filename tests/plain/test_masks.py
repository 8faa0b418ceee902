"""Masks against the definition, pair by pair, and their regions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringloom.planner import masks as names
from ringloom.planner.errors import PlanError
from ringloom.planner.masks import (
    MASKS,
    And,
    BlockCausal,
    Blocks,
    Causal,
    Chunks,
    Documents,
    Full,
    Global,
    Keys,
    Mask,
    Or,
    Prefix,
    Slices,
    Tree,
    Varlen,
    Window,
    parse,
)
from ringloom.planner.masks.regions import Region
from ringloom.planner.masks.slices import covering_mask
from ringloom.planner.workload import Workload
from strategies import masks

lengths = st.integers(1, 24)
often = settings(max_examples=4 * settings().max_examples)

SAMPLES = [  # fit 11 queries and 9 keys
    Full(),
    Causal(),
    Window(3),
    Window(None, 2),
    Window(2, None),
    Prefix(4),
    Global(2),
    Documents((4, 0, 5)),
    Documents((4, 0, 5), (3, 6, 2)),
    Blocks(((True, False, True), (True, False, True), (False, True, True)), 3),
    Keys(5),
    Chunks(4).up_to(12),
    BlockCausal(4).up_to(12),
    Slices(((0, 6, 1, 8, "causal"), (6, 9, 0, 6, "bi"), (0, 6, 0, 1, "full"))),
    Tree((2, 2, 3, 2), (1, 3, 1, None)),
    Varlen((4, 0, 5), (3, 6, 2)),
    Varlen((4, 5), (7, 4), 1, 2),
]


def document_of(index: int, lengths: tuple[int, ...]) -> int | None:
    for number, length in enumerate(lengths):
        if 0 <= index < length:
            return number
        index -= length
    return None


def in_slice(row: tuple[int, int, int, int, str], i: int, j: int) -> bool:
    """A row of a rectangle, counted from the corner where its diagonal begins or ends."""
    q0, q1, k0, k1, kind = row
    if not (q0 <= i < q1 and k0 <= j < k1):
        return False
    from_first, from_last = j - k0 >= i - q0, k1 - j >= q1 - i
    return {
        "full": True,
        "causal": from_last,
        "inverse": from_first,
        "bi": from_first and from_last,
    }[kind]


def in_tree(lengths: tuple[int, ...], parents: tuple[int | None, ...], i: int, j: int) -> bool:
    """Climbs from the query's node to the key's."""
    node, goal = document_of(i, lengths), document_of(j, lengths)
    if node is None or goal is None:
        return False
    if node == goal:
        return j <= i
    while (above := parents[node]) is not None:
        if above == goal:
            return True
        node = above
    return False


def meets(mask: Mask, i: int, j: int) -> bool:
    """The oracle: one aligned query position, one key position, the definition in words."""
    match mask:
        case Full():
            return True
        case Causal():
            return j <= i
        case Window(left, right):
            return (left is None or i - left <= j) and (right is None or j <= i + right)
        case Prefix(n):
            return i >= 0 and (j < n or j <= i)
        case Global(n):
            return i >= 0 and (i < n or j < n)
        case Documents(keys, None):
            return document_of(i, keys) is not None and document_of(i, keys) == document_of(j, keys)
        case Documents(keys, queries) if queries is not None:
            raw = i - (sum(keys) - sum(queries))
            own = document_of(raw, queries)
            return own is not None and own == document_of(j, keys)
        case Blocks(grid, size):
            inside = 0 <= i < len(grid) * size and 0 <= j < len(grid[0]) * size
            return inside and grid[i // size][j // size]
        case Keys(n):
            return j < n
        case Chunks(size):
            return i // size == j // size
        case BlockCausal(size):
            return j // size <= i // size
        case Varlen(keys, queries, left, right):
            raw = i - (sum(keys) - sum(queries))
            own = document_of(raw, queries)
            if own is None or own != document_of(j, keys):
                return False
            last = sum(keys[: own + 1]) - 1, sum(queries[: own + 1]) - 1
            near = (last[1] - raw) - (last[0] - j)
            return (left is None or near >= -left) and (right is None or near <= right)
        case Slices(rows):
            return any(in_slice(row, i, j) for row in rows)
        case Tree(lengths, parents):
            return in_tree(lengths, parents, i, j)
        case And(left, right):
            return meets(left, i, j) and meets(right, i, j)
        case Or(left, right):
            return meets(left, i, j) or meets(right, i, j)
        case _:  # a new one has its expression alone
            return bool(mask.allowed([i], [j])[0, 0])


def covered(region: Region, queries: range, keys: range) -> np.ndarray:
    """Count the pieces that allow each pair, piece by piece."""
    i, j = np.array(queries)[:, None], np.array(keys)[None, :]
    count = np.zeros((len(queries), len(keys)), int)
    for i0, i1, j0, j1, lo, hi in region.pieces:
        count += (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1) & (lo <= j - i) & (j - i <= hi)
    return count


@often
@given(st.data(), lengths, lengths)
def test_a_mask_allows_what_its_definition_says(data: st.DataObject, seq: int, kv_seq: int) -> None:
    mask = data.draw(masks(seq, kv_seq))
    mask.check(seq, kv_seq)
    queries, keys = range(kv_seq - seq, kv_seq), range(kv_seq)
    expected = [[meets(mask, i, j) for j in keys] for i in queries]
    np.testing.assert_array_equal(mask.allowed(queries, np.array(keys)), expected)


@often
@given(st.data(), lengths, lengths)
def test_a_region_covers_each_allowed_pair_once(data: st.DataObject, seq: int, kv_seq: int) -> None:
    mask = data.draw(masks(seq, kv_seq, depth=3))
    queries, keys = range(kv_seq - seq - 3, kv_seq + 3), range(kv_seq + 3)  # and some around them
    expected = [[int(meets(mask, i, j)) for j in keys] for i in queries]
    np.testing.assert_array_equal(covered(mask.region(), queries, keys), expected)


@pytest.mark.parametrize("left", SAMPLES, ids=str)
def test_any_two_masks_meet_and_join_into_disjoint_regions(left: Mask) -> None:
    queries, keys = range(-2, 9), range(9)
    for right in SAMPLES:
        for mask in (left & right, left | right):
            expected = [[int(meets(mask, i, j)) for j in keys] for i in queries]
            np.testing.assert_array_equal(covered(mask.region(), queries, keys), expected)
            np.testing.assert_array_equal(mask.allowed(queries, keys), expected)


@often
@given(st.lists(st.integers(0, 6), min_size=4, max_size=4), st.integers(-9, 9), st.integers(0, 3))
def test_a_piece_is_kept_exactly_if_it_allows_a_pair(box: list[int], lo: int, width: int) -> None:
    i0, i1, j0, j1 = box
    kept = Region.of([(*box, lo, lo + width)]).pieces
    result = [(i, j) for i in range(i0, i1) for j in range(j0, j1) if lo <= j - i <= lo + width]
    assert len(kept) == bool(result)
    if result:
        rows, columns = zip(*result, strict=True)
        tight = [min(rows), max(rows) + 1, min(columns), max(columns) + 1]
        assert kept[0, :4].tolist() == tight


def test_a_word_is_known_by_its_forms_and_stays_with_its_mask() -> None:
    for start, mask in MASKS.items():
        assert any(form.startswith(start) for form in mask.forms)
    for sample in SAMPLES:
        assert any(str(sample).startswith(start) for start in MASKS)
    with pytest.raises(
        PlanError, match=r"causal is already a form of ringloom\.planner\.masks\.plain\.Causal"
    ):
        type("Mine", (Mask,), {"forms": ("causal",)})
    assert parse("causal") == Causal()


@often
@given(st.data(), lengths, lengths)
def test_printing_a_mask_is_the_python_that_builds_it(
    data: st.DataObject, seq: int, kv_seq: int
) -> None:
    mask = data.draw(masks(seq, kv_seq, depth=3))
    again = eval(mask.python, vars(names).copy())
    assert again.up_to(kv_seq) == mask.up_to(kv_seq)
    assert hash(again.up_to(kv_seq)) == hash(mask.up_to(kv_seq))


def test_parentheses_appear_only_where_the_grouping_needs_them() -> None:
    a, b, c = Causal(), Window(4096), Global(64)
    assert str(a & (b | c)) == "causal & (window:4096 | global:64)"
    assert repr(a & (b | c)) == "Causal() & (Window(4096) | Global(64))"
    assert str((a & b) | c) == str(a & b | c) == "causal & window:4096 | global:64"
    assert str((a | b) | c) == "causal | window:4096 | global:64"
    assert str(a | (b | c)) == "causal | (window:4096 | global:64)"
    assert str((a | b) & (b | c)) == "(causal | window:4096) & (window:4096 | global:64)"


def test_slices_may_share_a_rectangle_as_long_as_they_share_no_pair() -> None:
    square = 0, 8, 0, 8
    mask = Slices(((*square, "causal"), (0, 8, 1, 9, "inverse")))
    assert mask.pairs((range(8),), (range(9),)) == 72
    with pytest.raises(PlanError, match="slices 0 and 1 overlap"):
        Slices(((*square, "causal"), (*square, "inverse")))


def test_a_workload_ends_chunks_at_its_last_key() -> None:
    for mask in (Chunks(8), Causal() & Chunks(8), Chunks(8).up_to(9)):
        ended = Workload(20, mask=mask).mask
        assert ended == Workload(20, mask=str(mask)).mask == mask.up_to(20)
        assert (str(ended), repr(ended)) == (str(mask), repr(mask))
    for mask in (Chunks(8), BlockCausal(8)):
        with pytest.raises(PlanError, match=r"8 has no length: use the mask in a workload"):
            mask.region()


def test_slices_lie_within_the_lengths() -> None:
    mask = Slices(((4, 8, 0, 8, "causal"),))
    mask.check(4, 8)
    with pytest.raises(PlanError, match="slice 0 ends at key 8, but there are 7"):
        mask.check(7, 7)
    with pytest.raises(PlanError, match=r"slice 0 has queries 4 to 8, but .* are 6 to 9"):
        mask.check(3, 9)
    with pytest.raises(PlanError, match="nodes sum to 4 tokens, but kv_seq is 5"):
        Tree((4,), (None,)).check(5, 5)


@often
@given(st.data(), lengths, lengths)
def test_any_table_of_pairs_is_covered_by_slices(
    data: st.DataObject, seq: int, kv_seq: int
) -> None:
    work = Workload(seq, kv_seq, mask=data.draw(masks(seq, kv_seq)))
    pairs = work.allowed(range(seq), range(kv_seq))
    again = Workload(seq, kv_seq, mask=covering_mask(pairs, work.offset, kv_seq))
    np.testing.assert_array_equal(again.allowed(range(seq), range(kv_seq)), pairs)


def test_rows_that_go_on_alike_make_one_slice() -> None:
    assert covering_mask(np.tri(9, dtype=bool), 0, 9) == Causal()
    assert covering_mask(np.ones((4, 9), bool), 5, 9) == Full()
    window = np.tri(9, dtype=bool) & ~np.tri(9, k=-3, dtype=bool)
    assert covering_mask(window, 0, 9) == Slices(((0, 3, 0, 3, "causal"), (3, 9, 1, 9, "bi")))


def test_any_grid_of_zeros_and_ones_becomes_the_same_blocks() -> None:
    mask = Blocks(((True, False), (False, True)), 2)
    assert mask == Blocks(np.eye(2), 2)  # type: ignore[arg-type]
    assert mask == Blocks([[1, 0], [0, 1]], np.int64(2))  # type: ignore[arg-type]
    assert hash(mask) == hash(Blocks(np.eye(2, dtype=bool), 2))  # type: ignore[arg-type]


def test_runs_of_blocks_become_few_pieces() -> None:
    assert len(Blocks(np.ones((50, 50)), 7).region()) == 1  # type: ignore[arg-type]
    assert len(Blocks(np.tri(50), 7).region()) == 50  # type: ignore[arg-type]
    assert len(Documents((0, 5, 0, 5)).region()) == 2
    assert len(Blocks(np.zeros((3, 3)), 7).region()) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "mask",
    [Window(2**70, 2**70), Prefix(2**70), Global(2**70), Blocks(((True,),), 2**70)],
)
def test_widths_beyond_every_position_count_as_everything(mask: Mask) -> None:
    assert mask.allowed(range(3), range(3)).all()
    assert mask.pairs((range(3),), (range(3),)) == 9


def test_lengths_that_do_not_fit_are_refused_with_their_numbers() -> None:
    nested = Causal() | (Full() & Documents((3, 4), (2, 2)))
    nested.check(4, 7)
    with pytest.raises(PlanError, match="sum to 7 tokens, but kv_seq is 8"):
        nested.check(4, 8)
    with pytest.raises(PlanError, match="sum to 4 tokens, but seq is 5"):
        nested.check(5, 7)
    Blocks(((True, True),) * 2, 4).check(3, 8)
    with pytest.raises(PlanError, match="2 x 3 blocks of 4 covers 8 x 12 positions, not 9"):
        (Blocks(((True, True, True),) * 2, 4) & Full()).check(9, 9)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Window(-1), "Window left -1 is less than 0"),
        (lambda: Window(0, -3), "Window right -3 is less than 0"),
        (
            lambda: Window(1.5),  # type: ignore[arg-type]
            r"Window left 1\.5 is not a whole number",
        ),
        (lambda: Prefix(-2), "Prefix n -2 is less than 0"),
        (lambda: Global(-2), "Global n -2 is less than 0"),
        (lambda: Documents((3, -1)), "Documents length -1 is less than 0"),
        (lambda: Documents(()), "0 lengths sum to 0; a mask needs"),
        (lambda: Documents((1, 2), (3,)), "2 lengths but 1 q_lengths"),
        (lambda: Documents((2**31, 1)), "2 lengths sum to 2147483649"),
        (lambda: Blocks(((True,),), 0), "Blocks size 0 is less than 1"),
        (
            lambda: Blocks([[1, 0], [1]], 4),  # type: ignore[arg-type]
            "rows of equal length",
        ),
        (
            lambda: Blocks([[1, 2]], 4),  # type: ignore[arg-type]
            "consist of 0s and 1s",
        ),
        (lambda: Blocks((), 4), "rows of equal length"),
        (lambda: Keys(-1), "Keys n -1 is less than 0"),
        (
            lambda: Keys((3, 4)),  # type: ignore[arg-type]
            r"2 numbers of keys, but all batch rows share one mask: pack the rows into documents",
        ),
        (lambda: Chunks(0), "Chunks size 0 is less than 1"),
        (lambda: Chunks(True), "Chunks size True is not a whole number"),
        (lambda: Tree((1, 2), (-1.0, 0)), "Tree parent -1.0 is not a whole number"),  # type: ignore[arg-type]
        (lambda: Tree((1, 2), (None,)), "Tree has 2 lengths but 1 parents"),
        (lambda: Tree((1, 2), (None, 2)), "Tree node 1 has parent 2 of 2 nodes"),
        (lambda: Tree((1, 2, 3), (None, 2, 1)), "Tree node 1 is its own ancestor"),
        (lambda: Tree((1, 2), (0, None)), "Tree node 0 is its own ancestor"),
        (
            lambda: Slices(((0, 4, 0, 4, "half"),)),
            r"slice 0 must be \(q0, q1, k0, k1, kind\) with kind one of full, causal, inverse, bi",
        ),
        (lambda: Slices(()), "Slices needs at least one row"),
        (lambda: Slices(((0, 4, 3, 2, "full"),)), "slice 0 ends before it starts"),
        (
            lambda: Slices(((0, 4, 0, 4, "full"), (9, 9, 0, 4, "bi"), (3, 5, 2, 6, "causal"))),
            "slices 0 and 2 overlap: 0,4,0,4,full and 3,5,2,6,causal",
        ),
    ],
)
def test_masks_that_mean_nothing_are_refused(build, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match=text):
        build()
