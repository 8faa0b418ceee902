"""The calls that printed torch passes make, each beside numpy: one test for each op at least."""

import ast
import inspect
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from in_memory import distributed as memory_dist  # noqa: E402
from rank_threads import in_threads  # noqa: E402
from ringloom.codegen.torch.parts import bands, merge  # noqa: E402  only where torch is
from ringloom.codegen.torch.parts.vocabulary import accumulation, messages  # noqa: E402

RANKS = 4


def arrays(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def of(rank: int) -> list[Any]:
    """The message of a rank: two tensors [batch, heads, tokens, width]."""
    return [torch.tensor(arrays(2, 4, 8, n, seed=rank)) for n in (3, 5)]


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "dist", memory_dist)
    monkeypatch.setattr(bands, "BOXES", ((0, 64, 0, 64, -(1 << 50), 0),))  # causal
    bands.tiles.cache_clear()
    for module in (merge, accumulation):
        monkeypatch.setattr(module, "V_HEAD_DIM", 5, raising=False)


def on_ranks(body: Callable[[int, Any], Any]) -> list[list[Any]]:
    """Arrays that the messages of all ranks bring."""

    def waited(group: Any) -> list[Any]:
        return [x.numpy() for x in messages.wait(body(group.rank(), group))]

    return in_threads(RANKS, waited)


def assert_alike(got: Any, wanted: Any) -> None:
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-12, atol=1e-12)


# ---- messages


def test_an_exchange_brings_what_one_rank_sends_to_another() -> None:
    came = on_ranks(lambda r, g: messages.exchange(of(r), (r + 1) % 4, (r - 1) % 4, g))
    for rank in range(RANKS):
        assert_alike(came[rank], of((rank - 1) % 4))


def test_an_exchange_leaves_ranks_out() -> None:
    came = on_ranks(
        lambda r, g: messages.exchange(of(r), (r + 1) % 4, (r - 1) % 4, g, r < 3, r > 0)
    )
    assert came[0] == []
    for rank in range(1, RANKS):
        assert_alike(came[rank], of(rank - 1))
    assert messages.wait(None) == []


def test_a_gather_joins_the_tokens_of_all_ranks() -> None:
    wanted = [np.concatenate(x, axis=2) for x in zip(*map(of, range(RANKS)), strict=True)]
    for came in on_ranks(lambda r, g: messages.gather(of(r), g)):
        assert_alike(came, wanted)


def test_a_reduction_gives_each_rank_the_sums_for_its_tokens() -> None:
    total = [sum(x) for x in zip(*map(of, range(RANKS)), strict=True)]
    for rank, came in enumerate(on_ranks(lambda r, g: messages.reduce(of(r), g))):
        assert_alike(came, [x[:, :, 2 * rank : 2 * rank + 2] for x in total])


@pytest.mark.parametrize(("split", "join"), [(1, 2), (2, 1), (2, 0)])
def test_a_swap_splits_along_one_axis_and_joins_along_another(split: int, join: int) -> None:
    for rank, came in enumerate(on_ranks(lambda r, g: messages.swap(of(r), split, join, g))):
        parts = [[np.split(np.asarray(x), 4, split)[rank] for x in of(r)] for r in range(RANKS)]
        assert_alike(came, [np.concatenate(x, axis=join) for x in zip(*parts, strict=True)])


def test_a_broadcast_gives_all_ranks_what_the_root_has() -> None:
    for came in on_ranks(lambda r, g: messages.broadcast(of(r), 2, g)):
        assert_alike(came, of(2))


def test_a_reduction_to_a_root_gives_nobody_else_anything() -> None:
    came = on_ranks(lambda r, g: messages.reduce_to(of(r), 2, g))
    assert [len(x) for x in came] == [0, 0, 2, 0]
    assert_alike(came[2], [sum(x) for x in zip(*map(of, range(RANKS)), strict=True)])


def test_groups_along_axes_are_the_lines_of_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MESH", (2, 2))

    def body(group: Any) -> Any:
        messages.along_axes.cache_clear()
        groups, at = messages.along_axes.__wrapped__(group)
        return [memory_dist.get_process_group_ranks(x) for x in groups], at

    assert in_threads(RANKS, body) == [
        ([[r % 2, r % 2 + 2], [r // 2 * 2, r // 2 * 2 + 1]], [r // 2, r % 2]) for r in range(RANKS)
    ]


# ---- attention, added to accumulators


def dense(q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, Any]:
    """Output and log-sum-exp of one head for each query head, by numpy."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.where(seen, q @ k.swapaxes(2, 3), -np.inf)
    lse = np.logaddexp.reduce(scores, axis=3, keepdims=True)
    return np.exp(scores - lse) @ v, lse


def drawn() -> tuple[Any, Any, Any]:
    """Queries of 4 heads, keys and values of 2, of 12 tokens."""
    q, k, v = (arrays(1, heads, 12, 5, seed=n) for n, heads in enumerate((4, 2, 2)))
    return q, k, v


def given(*values: Any) -> list[Any]:
    return [torch.tensor(x) for x in values]


AT = slice(4, 12)
WAYS: list[tuple[Any, Any]] = [
    (lambda *x: accumulation.merge_attention(*x, True), np.tri(12)[4:, 4:]),
    (lambda *x: accumulation.merge_attention(*x, False), np.ones((8, 8))),
    (lambda *x: accumulation.merge_tiles(*x, torch.arange(12), torch.arange(12)), np.tri(8)),
]


@pytest.mark.parametrize(("call", "seen"), WAYS)
def test_partial_attention_is_merged_into_some_rows(call: Any, seen: Any) -> None:
    q, k, v = drawn()
    out = accumulation.zero_output(given(q))
    accumulation.merge_attention(out, given(q), given(k, v), False, slice(None), slice(4))
    queries, keys = accumulation.tokens(given(q), AT), accumulation.tokens(given(k, v), AT)
    call(accumulation.tokens(out, AT), queries, keys)
    first = dense(q[:, :, :4], k[:, :, :4], v[:, :, :4], True)
    both = dense(q[:, :, AT], k, v, np.hstack([np.ones((8, 4)), seen]) > 0)
    assert_alike(out, [np.concatenate(x, axis=2) for x in zip(first, both, strict=True)])


@pytest.mark.parametrize("tiles", [False, True])
def test_gradients_are_added_to_both_sides(tiles: bool) -> None:
    q, k, v = drawn()
    seen, dout = np.tri(12) > 0, arrays(1, 4, 12, 5, seed=9)
    out, lse = dense(q, k, v, seen)
    dq, dkv = accumulation.zeros(given(q)), accumulation.zeros(given(k, v))
    queries, kv, at = given(dout, q, out, lse), given(k, v), torch.arange(12)
    for rows, cols in (
        (slice(6), slice(6)),
        (slice(6, 12), slice(6)),
        (slice(6, 12), slice(6, 12)),
    ):
        if tiles:
            accumulation.add_tile_gradients(dq, dkv, queries, kv, at, at, rows, cols)
        else:
            causal = rows == cols
            accumulation.add_gradients(dq, dkv, queries, kv, causal, rows, cols)
    whole_k, whole_v = (np.repeat(x, 2, axis=1) for x in (k, v))
    p = np.exp(np.where(seen, q @ whole_k.swapaxes(2, 3), -np.inf) - lse)
    ds = p * (dout @ whole_v.swapaxes(2, 3) - (dout * out).sum(3, keepdims=True))
    pairs = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout
    grads = [x.reshape(1, 2, 2, 12, 5).sum(2) for x in pairs]
    assert_alike([*dq, *dkv], [ds @ whole_k, *grads])


def test_several_partial_results_are_merged_one_after_the_other() -> None:
    q, k, v = drawn()
    out = accumulation.zero_output(given(q))
    parts = [dense(q, k[:, :, i:j], v[:, :, i:j], True) for i, j in pairwise((0, 5, 9, 12))]
    came = [torch.tensor(np.concatenate(x)) for x in zip(*parts, strict=True)]
    accumulation.merge_all(out, came, 3)
    assert_alike(out, dense(q, k, v, True))


def test_a_row_that_saw_nothing_takes_what_comes_and_gives_nothing() -> None:
    q, k, v = drawn()
    none, part = accumulation.zero_output(given(q)), given(*dense(q, k, v, True))
    merge.merge(*none, *part)
    merge.merge(*none, *accumulation.zero_output(given(q)))
    assert_alike(none, part)


# ---- slices, and sums


def test_slices_are_views_of_tokens_and_of_heads() -> None:
    (x,) = given(arrays(1, 6, 4, 2))
    accumulation.clear(accumulation.tokens([x], slice(1, 3)))
    assert not x[:, :, 1:3].any()
    assert x[:, :, 0].all()
    accumulation.clear(accumulation.heads([x], 3, 1))
    assert not x[:, 2:4].any()
    assert x[:, 4:, 0].all()


def test_some_slices_of_heads_are_joined_and_go_back() -> None:
    x = arrays(1, 6, 4, 2)
    (part,) = accumulation.some_heads(given(x), 3, slice(0, 3, 2))
    assert_alike([part], [x[:, [0, 1, 4, 5]]])
    total = accumulation.zeros(given(x))
    accumulation.add_heads(total, 3, slice(0, 3, 2), [part])
    assert_alike(total, [np.where(np.isin(np.arange(6), (2, 3))[:, None, None], 0, x)])
    q, k, v = drawn()
    out, wanted = accumulation.zero_output(given(q)), dense(q, k, v, True)
    accumulation.merge_heads(out, 2, slice(1, 2), [torch.tensor(x[:, 2:]) for x in wanted])
    assert_alike([x[:, 2:] for x in out], [x[:, 2:] for x in wanted])
    assert not out[0][:, :2].any()


def test_heads_are_repeated_and_the_gradients_of_copies_are_added() -> None:
    x = arrays(1, 2, 4, 3)
    (copied,) = accumulation.repeat_heads(given(x), 3)
    assert_alike([copied], [x[:, [0, 0, 0, 1, 1, 1]]])
    each = arrays(1, 6, 4, 3)
    (total,) = accumulation.add_repeated(given(each), 3)
    assert_alike([total], [np.stack([each[:, :3].sum(1), each[:, 3:].sum(1)], 1)])


def test_sums_are_wide_until_they_are_complete() -> None:
    x = torch.ones(1, 1, 2, 3, dtype=torch.bfloat16)
    total = accumulation.zeros([x])
    accumulation.add(total, [x])
    accumulation.add(total, [])
    assert total[0].dtype == torch.float32
    (narrow,) = accumulation.narrow(total, x)
    assert narrow.dtype == torch.bfloat16
    assert narrow.sum() == 6


def test_every_call_of_the_vocabulary_is_here() -> None:
    tree = ast.parse(Path(__file__).read_text())
    named = {x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute)}
    calls = {
        name
        for module in (accumulation, messages)
        for name, x in inspect.getmembers(module, inspect.isfunction)
        if x.__module__ == module.__name__
    }
    assert len(calls) > 20
    assert calls - named == {"cut", "runs", "start", "initialise"}  # which others call
