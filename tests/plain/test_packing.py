"""Packed batches: cumulative lengths there and back, positions inside documents, other lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from ringloom.planner.masks import parse
from ringloom.planner.masks.packing import from_cu_seqlens, to_cu_seqlens
from ringloom.planner.positions import document_positions
from ringloom.runtimes.validation import check
from strategies import parts, trees

WINDOWS = st.sampled_from([(-1, -1), (-1, 0), (2, -1), (0, 3), (4, 0)])


@st.composite
def packed(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Cumulative lengths of queries and keys of a few documents, empty ones among them."""
    count = draw(st.integers(1, 4))
    sides = (draw(parts(draw(st.integers(1, 20)), count)) for _ in range(2))
    q, k = (np.cumsum([0, *lengths]).tolist() for lengths in sides)
    return (k if draw(st.booleans()) else q), k


def varlen(q: list[int], k: list[int], causal: bool, window: tuple[int, int]) -> np.ndarray:
    """The pairs of flash-attn, document by document, aligned at the end of each."""
    left, right = (10**6 if side < 0 else side for side in window)
    right = 0 if causal else right
    pairs = np.zeros((q[-1], k[-1]), bool)
    for q0, q1, k0, k1 in zip(q[:-1], q[1:], k[:-1], k[1:], strict=True):
        i, j = np.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0), np.arange(k1 - k0)[None, :]
        pairs[q0:q1, k0:k1] = (i - left <= j) & (j <= i + right)
    return pairs


def allowed(mask: rl.Mask, seq: int, kv_seq: int) -> np.ndarray:
    return rl.Workload(seq, kv_seq, mask=mask).allowed(range(seq), range(kv_seq))


@given(packed(), st.booleans(), WINDOWS)
def test_cumulative_lengths_mean_what_they_mean_to_flash_attn(
    sides: tuple[list[int], list[int]], causal: bool, window: tuple[int, int]
) -> None:
    q, k = sides
    mask = from_cu_seqlens(q, k, causal=causal, window_size=window)
    expected = varlen(q, k, causal, window)
    np.testing.assert_array_equal(allowed(mask, q[-1], k[-1]), expected)
    said = to_cu_seqlens(mask)
    assert (said.cu_seqlens_q.tolist(), said.cu_seqlens_k.tolist()) == (q, k)
    assert said.max_seqlen_q == max(np.diff(q))
    assert said.max_seqlen_k == max(np.diff(k))
    np.testing.assert_array_equal(varlen(q, k, said.causal, said.window_size), expected)


@given(packed(), st.data(), st.booleans(), WINDOWS)
def test_padding_behind_documents_sees_nothing_and_is_not_seen(
    sides: tuple[list[int], list[int]], data: st.DataObject, causal: bool, window: tuple[int, int]
) -> None:
    """Of queries and keys alike, or of each; what the mask says goes to flash-attn and back."""
    q, k = (np.array(side) for side in sides)
    alike, count = bool((q == k).all()) and data.draw(st.booleans()), len(q) - 1
    rooms = st.lists(st.integers(0, 5), min_size=count, max_size=count)
    more = data.draw(rooms)
    q_padded, k_padded = (
        side + np.cumsum([0, *padding])
        for side, padding in ((q, more), (k, more if alike else data.draw(rooms)))
    )
    lists = (q,) if alike else (q, k)
    names = "cu_seqlens_q_padded", "cu_seqlens_k_padded"
    padded = dict(zip(names, (q_padded, k_padded)[: len(lists)], strict=False))
    mask = from_cu_seqlens(*lists, causal=causal, window_size=window, **padded)
    q_at, k_at = (
        np.arange(x[-1]) + np.repeat(y[:-1] - x[:-1], np.diff(x))
        for x, y in ((q, q_padded), (k, k_padded))
    )
    expected = np.zeros((q_padded[-1], k_padded[-1]), bool)
    expected[np.ix_(q_at, k_at)] = varlen(q.tolist(), k.tolist(), causal, window)
    np.testing.assert_array_equal(allowed(mask, *expected.shape), expected)
    said = to_cu_seqlens(mask)
    arguments = said.cu_seqlens_q.tolist(), said.cu_seqlens_k.tolist()
    np.testing.assert_array_equal(varlen(*arguments, said.causal, said.window_size), expected)


def test_padded_lengths_that_are_none_are_refused() -> None:
    for padded, message in (
        ([0, 3, 9], "cu_seqlens_q_padded: document 0 of 4 tokens has room for 3"),
        ([0, 9], "cu_seqlens_q_padded has 1 documents, not 2"),
        ([1, 4, 9], "cu_seqlens_q_padded must be integers that ascend from 0"),
    ):
        with pytest.raises(rl.PlanError, match=message):
            from_cu_seqlens([0, 4, 8], cu_seqlens_q_padded=padded)
    with pytest.raises(rl.PlanError, match="cu_seqlens_k_padded: document 1 of 4 tokens"):
        from_cu_seqlens([0, 4, 8], [0, 4, 8], cu_seqlens_k_padded=[0, 5, 8])


@pytest.mark.parametrize("schedule", ["zigzag", "balanced", "allgather"])
def test_plans_of_padded_documents_are_exact(schedule: str) -> None:
    """Lengths as TransformerEngine pads them for two ranks: documents of multiples of four."""
    mask = from_cu_seqlens([0, 5, 11, 14], causal=True, cu_seqlens_q_padded=[0, 8, 16, 20])
    work = rl.Workload(20, heads=2, head_dim=4, dtype="float64", mask=mask)
    verdict = check(rl.plan(schedule, work, 2, pass_="both"))
    assert verdict.exact, verdict
    assert verdict.leak_free, verdict


def test_tensors_and_lists_are_cumulative_lengths() -> None:
    mask = rl.Causal() & rl.Documents((3, 4))
    for given_as in ([0, 3, 7], np.array([0, 3, 7], np.int32), (0, 3, 7)):
        assert from_cu_seqlens(given_as, causal=True) == mask
    assert from_cu_seqlens(pytest.importorskip("torch").tensor([0, 3, 7]), causal=True) == mask
    chunked = rl.Workload(10, mask="causal & chunks:4").mask
    assert to_cu_seqlens(chunked).cu_seqlens_q.tolist() == [0, 4, 8, 10]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "cu_seqlens_q must be integers that ascend from 0"),
        ([0], "must be integers that ascend from 0"),
        ([1, 4], "must be integers that ascend from 0"),
        ([0.0, 4.0], "must be integers that ascend from 0"),
        ([0, 4, 3], "cu_seqlens_q must ascend"),
    ],
)
def test_numbers_that_are_no_cumulative_lengths_are_refused(
    values: list[float], message: str
) -> None:
    with pytest.raises(rl.PlanError, match=message):
        from_cu_seqlens(values)


def test_what_cumulative_lengths_cannot_say_is_refused() -> None:
    with pytest.raises(rl.PlanError, match="1 documents of queries, but 2 of keys"):
        from_cu_seqlens([0, 4], [0, 4, 8])
    for text, message in (
        ("causal", "causal does not divide queries and keys into consecutive doc"),
        ("documents:4,4 & documents:2,6", "does not divide"),
        ("documents:4,4 | global:1", "does not divide"),
        ("documents:4,4 & prefix:1", "cumulative lengths cannot express prefix:1"),
        ("causal & varlen:4,4/3,5", "cumulative lengths cannot express varlen:4,4/3,5"),
        ("causal & documents:4,4/3,5", "would count from the end of each document"),
        ("slices:0,4,0,4,bi/4,8,4,8,bi", "does not divide"),
        ("slices:0,4,0,4,full/5,8,4,8,full", "does not divide"),
    ):
        with pytest.raises(rl.PlanError, match=message):
            to_cu_seqlens(parse(text))


# ---- positions


def joined(plan: rl.Plan, side: str) -> list[int]:
    """The positions of all ranks, put back in the order of the sequence."""
    sides = plan.partition.side(side)
    whole = np.empty(sides.sizes.sum() if len(sides.slices) == 1 else 0, np.int64)
    for rank, positions in enumerate(document_positions(plan, side)):  # type: ignore[arg-type]
        whole[sides.positions(rank)] = positions
    return whole.tolist()


@given(packed(), st.sampled_from(["ring", "striped", "zigzag", "balanced"]), st.integers(1, 5))
def test_positions_count_from_the_beginning_of_each_document(
    sides: tuple[list[int], list[int]], schedule: str, ranks: int
) -> None:
    q, k = sides
    mask = from_cu_seqlens(q, k, causal=True)
    plan = rl.plan(schedule, rl.Workload(q[-1], k[-1], heads=1, mask=mask), ranks)
    sizes = [*zip(np.diff(q).tolist(), np.diff(k).tolist(), strict=True)]
    assert joined(plan, "kv") == [x for _, keys in sizes for x in range(keys)]
    assert joined(plan, "q") == [x for rows, keys in sizes for x in range(keys - rows, keys)]


@given(st.data(), st.integers(1, 20))
def test_positions_of_a_tree_count_along_the_path_from_its_root(
    data: st.DataObject, tokens: int
) -> None:
    tree = data.draw(trees(tokens))
    plan = rl.plan("zigzag", rl.Workload(tokens, heads=1, mask=tree & rl.Keys(tokens)), 3)
    expected = []
    for node, length in enumerate(tree.lengths):
        first, above = 0, tree.parents[node]
        while above is not None:
            first, above = first + tree.lengths[above], tree.parents[above]
        expected += range(first, first + length)
    assert joined(plan, "q") == joined(plan, "kv") == expected


def test_positions_without_documents_are_those_of_the_sequence() -> None:
    work = rl.Workload(5, 20, heads=1, mask="causal & chunks:8 | global:1")
    plan = rl.plan("ring", work, 2)
    assert joined(plan, "q") == [15, 16, 17, 18, 19]
    assert joined(plan, "kv") == [*range(20)]
    mixed = rl.plan("ring", rl.Workload(8, heads=1, mask="documents:4,4 | global:1"), 2)
    with pytest.raises(rl.PlanError, match="does not divide queries and keys into consecutive doc"):
        document_positions(mixed)
