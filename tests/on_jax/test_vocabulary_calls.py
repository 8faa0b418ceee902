"""The calls that printed JAX passes make, each beside numpy: one test for each op at least."""

import ast
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_devices import Mesh, jax  # isort: skip

from ringloom.codegen.jax.parts import kernels, kernels_cpu, masked, tiles
from ringloom.codegen.jax.parts.vocabulary import accumulation, messages

RANKS = 4
NEXT = [(r, (r + 1) % RANKS) for r in range(RANKS)]
SOME = NEXT[:-1]  # nothing comes to rank 0
ALONG_INNER = [[0, 1], [2, 3]]
P = jax.sharding.PartitionSpec


def arrays(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def of(rank: int) -> list[Any]:
    """The message of a rank: two arrays [batch, heads, tokens, width]."""
    return [arrays(2, 4, 8, n, seed=rank) for n in (3, 5)]


@pytest.fixture(autouse=True)
def of_one_scale(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels for a width of 5, a scale of 1 and a causal mask, in float64."""
    for module in (kernels_cpu, masked):
        monkeypatch.setattr(module, "SCALE", 1.0)
    for name, value in (("HEAD_DIM", 5), ("V_HEAD_DIM", 5), ("STATS", False)):
        monkeypatch.setattr(kernels, name, value)
    monkeypatch.setattr(tiles, "allowed", lambda rows, cols: cols <= rows)
    with jax.enable_x64(True):
        yield


def on_ranks(body: Callable[[list[Any]], list[Any]]) -> list[list[Any]]:
    """The arrays that a body gives every rank, of the message of each."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("sp",))
    given = [np.stack(x) for x in zip(*map(of, range(RANKS)), strict=True)]

    def local(*own: Any) -> list[Any]:
        return [x[None] for x in body([x[0] for x in own])]

    run = jax.shard_map(local, mesh=mesh, in_specs=P("sp"), out_specs=P("sp"), check_vma=False)
    whole = [np.asarray(x) for x in jax.jit(run)(*given)]
    return [[x[rank] for x in whole] for rank in range(RANKS)]


def assert_alike(got: Any, wanted: Any) -> None:
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-12, atol=1e-12)


# ---- messages


def test_an_exchange_brings_what_one_rank_sends_to_another() -> None:
    for rank, came in enumerate(on_ranks(lambda x: messages.exchange(x, "sp", NEXT))):
        assert_alike(came, of((rank - 1) % RANKS))


def test_a_rank_to_which_nothing_comes_has_zeros_or_what_it_had() -> None:
    zeros = on_ranks(lambda x: messages.exchange(x, "sp", SOME))
    kept = on_ranks(lambda x: messages.exchange(x, "sp", SOME, x))
    assert_alike(zeros[0], [0 * x for x in of(0)])
    assert_alike(kept[0], of(0))
    for rank in range(1, RANKS):
        assert_alike(zeros[rank], of(rank - 1))
        assert_alike(kept[rank], of(rank - 1))


def test_what_comes_late_is_received_in_the_place_of_others() -> None:
    def late(x: list[Any]) -> list[Any]:
        came = messages.exchange(x, "sp", SOME)
        return messages.receive(came, [2 * y for y in x], "sp", SOME)

    for rank, came in enumerate(on_ranks(late)):
        assert_alike(came, of(rank - 1) if rank else [2 * x for x in of(0)])


def test_who_receives_is_said_by_the_pairs() -> None:
    came = on_ranks(lambda x: [0 * x[0] + messages.receives("sp", SOME)])
    assert [bool(x[0].all()) for x in came] == [False, True, True, True]


def test_partial_attention_that_does_not_come_is_of_no_keys() -> None:
    none = [np.zeros((2, 4, 8, 3)), np.full((2, 4, 8, 5), -np.inf)]
    for rank, came in enumerate(on_ranks(lambda x: messages.exchange_output(x, "sp", SOME))):
        assert_alike(came, of(rank - 1) if rank else none)


@pytest.mark.parametrize("groups", [None, ALONG_INNER])
def test_a_gather_joins_the_tokens_of_all_ranks_of_a_group(groups: Any) -> None:
    for rank, came in enumerate(on_ranks(lambda x: messages.gather(x, "sp", groups))):
        assert_alike(
            came, [np.concatenate(x, axis=2) for x in zip(*parts(rank, groups), strict=True)]
        )


@pytest.mark.parametrize("groups", [None, ALONG_INNER])
def test_a_reduction_gives_each_rank_the_sums_for_its_tokens(groups: Any) -> None:
    for rank, came in enumerate(on_ranks(lambda x: messages.reduce(x, "sp", groups))):
        total = [sum(x) for x in zip(*parts(rank, groups), strict=True)]
        size, place = 8 // len(group(rank, groups)), group(rank, groups).index(rank)
        assert_alike(came, [x[:, :, size * place : size * (place + 1)] for x in total])


@pytest.mark.parametrize("groups", [None, ALONG_INNER])
@pytest.mark.parametrize(("split", "join"), [(1, 2), (2, 1), (2, 0)])
def test_a_swap_splits_along_one_axis_and_joins_along_another(
    split: int, join: int, groups: Any
) -> None:
    for rank, came in enumerate(on_ranks(lambda x: messages.swap(x, split, join, "sp", groups))):
        count, place = len(group(rank, groups)), group(rank, groups).index(rank)
        given = [[np.split(x, count, split)[place] for x in part] for part in parts(rank, groups)]
        assert_alike(came, [np.concatenate(x, axis=join) for x in zip(*given, strict=True)])


def group(rank: int, groups: Any) -> list[int]:
    """The ranks of the group of one."""
    return next(x for x in groups or [[*range(RANKS)]] if rank in x)


def parts(rank: int, groups: Any) -> list[list[Any]]:
    """The messages of the ranks of a group."""
    return [of(other) for other in group(rank, groups)]


def test_a_broadcast_gives_all_ranks_what_the_root_has() -> None:
    for came in on_ranks(lambda x: messages.broadcast(x, 2, "sp")):
        assert_alike(came, of(2))


def test_a_reduction_to_a_root_gives_others_zeros() -> None:
    total = [sum(x) for x in zip(*map(of, range(RANKS)), strict=True)]
    for rank, came in enumerate(on_ranks(lambda x: messages.reduce_to(x, 2, "sp"))):
        assert_alike(came, [x * (rank == 2) for x in total])


# ---- attention, added to accumulators


def dense(q: Any, k: Any, v: Any, seen: Any) -> list[Any]:
    """Output and log-sum-exp of one head for each query head, by numpy."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.where(seen, q @ k.swapaxes(2, 3), -np.inf)
    lse = np.logaddexp.reduce(scores, axis=3, keepdims=True)
    return [np.exp(scores - lse) @ v, lse]


def gradients(q: Any, k: Any, v: Any, dout: Any, seen: Any) -> list[Any]:
    """dq, dk and dv by numpy."""
    (out, lse), groups = dense(q, k, v, seen), q.shape[1] // k.shape[1]
    whole_k, whole_v = (np.repeat(x, groups, axis=1) for x in (k, v))
    p = np.exp(np.where(seen, q @ whole_k.swapaxes(2, 3), -np.inf) - lse)
    ds = p * (dout @ whole_v.swapaxes(2, 3) - (dout * out).sum(3, keepdims=True))
    each = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout
    return [ds @ whole_k, *(x.reshape(*k.shape[:2], groups, *k.shape[2:]).sum(2) for x in each)]


def drawn() -> tuple[Any, Any, Any]:
    """Queries of 4 heads, keys and values of 2, of 12 tokens."""
    q, k, v = (arrays(1, heads, 12, 5, seed=n) for n, heads in enumerate((4, 2, 2)))
    return q, k, v


AT, PLACES = slice(4, 12), np.arange(12)
WAYS: list[tuple[Any, Any]] = [
    (lambda *x: accumulation.merge_attention(*x, True, AT, AT), np.tri(12)[4:, 4:]),
    (lambda *x: accumulation.merge_attention(*x, False, AT, AT), np.ones((8, 8))),
    (lambda *x: accumulation.merge_tiles(*x, PLACES, PLACES, AT, AT), np.tri(8)),
]


@pytest.mark.parametrize(("call", "seen"), WAYS)
def test_partial_attention_is_merged_into_some_rows(call: Any, seen: Any) -> None:
    q, k, v = drawn()
    out = accumulation.zero_output([q], v)
    out = accumulation.merge_attention(out, [q], [k, v], False, slice(None), slice(4))
    out = call(out, [q], [k, v])
    first = dense(q[:, :, :4], k[:, :, :4], v[:, :, :4], True)
    both = dense(q[:, :, AT], k, v, np.hstack([np.ones((8, 4)), seen]) > 0)
    assert_alike(out, [np.concatenate(x, axis=2) for x in zip(first, both, strict=True)])


@pytest.mark.parametrize("tiles", [False, True])
def test_gradients_are_added_to_both_sides(tiles: bool) -> None:
    q, k, v = drawn()
    seen, dout = np.tri(12) > 0, arrays(1, 4, 12, 5, seed=9)
    queries = [q, dout, *dense(q, k, v, seen)]
    dq, dkv = accumulation.zeros([q]), accumulation.zeros([k, v])
    for rows, cols in ((slice(6), slice(6)), (slice(6, 12), slice(6)), (slice(6, 12),) * 2):
        call, given = accumulation.add_gradients, [rows == cols]
        if tiles:
            call, given = accumulation.add_tile_gradients, [PLACES, PLACES]
        dq, dkv = call(dq, dkv, queries, [k, v], *given, rows, cols)
    assert_alike([*dq, *dkv], gradients(q, k, v, dout, seen))


def test_one_slice_of_the_heads_is_attended_and_its_gradients_are_added() -> None:
    q, k, v = drawn()
    dout, keys = arrays(1, 4, 12, 5, seed=9), [k[:, :1], v[:, :1]]
    whole, none = dense(q, k, v, True), accumulation.zero_output([q], v)
    how = accumulation.merge_attention
    out = accumulation.merge_one_slice(how, 2, 0, none, [q], keys)
    assert_alike([x[:, :2] for x in out], [x[:, :2] for x in whole])
    assert_alike([x[:, 2:] for x in out], [x[:, 2:] for x in none])
    dq, dkv = accumulation.zeros([q]), accumulation.zeros(keys)
    how = accumulation.add_gradients
    dq, dkv = accumulation.add_one_slice(how, 2, 0, dq, dkv, [q, dout, *whole], keys)
    wanted = gradients(q, k, v, dout, True)
    assert_alike([dq[0][:, :2], *dkv], [x[:, : 2 - (n > 0)] for n, x in enumerate(wanted)])
    assert not dq[0][:, 2:].any()


def test_several_partial_results_are_merged_one_after_the_other() -> None:
    q, k, v = drawn()
    each = [dense(q, k[:, :, i:j], v[:, :, i:j], True) for i, j in pairwise((0, 5, 9, 12))]
    came = [np.concatenate(x) for x in zip(*each, strict=True)]
    out = accumulation.merge_all(accumulation.zero_output([q], v), came, 3)
    assert_alike(out, dense(q, k, v, True))


def test_a_row_that_saw_nothing_takes_what_comes_and_gives_nothing() -> None:
    q, k, v = drawn()
    none, part = accumulation.zero_output([q], v), dense(q, k, v, True)
    assert_alike(accumulation.merge_output(none, part), part)
    assert_alike(accumulation.merge_output(part, none), part)
    half = accumulation.merge_output(none, [x[:, :, 6:] for x in part], slice(6, 12))
    assert_alike([x[:, :, 6:] for x in half], [x[:, :, 6:] for x in part])
    assert np.isneginf(half[1][:, :, :6]).all()


# ---- slices, and sums


def test_slices_of_tokens_are_taken_added_to_and_cleared() -> None:
    x, where = arrays(1, 6, 4, 2), slice(1, 3)
    assert_alike(accumulation.tokens([x], where), [x[:, :, 1:3]])
    twice, none = x.copy(), x.copy()
    twice[:, :, 1:3] *= 2
    none[:, :, 1:3] = 0
    assert_alike(accumulation.add([x], accumulation.tokens([x], where), where), [twice])
    assert_alike(accumulation.with_tokens([x], where, [2 * x[:, :, where]]), [twice])
    assert_alike(accumulation.clear([x], where), [none])


def test_slices_of_heads_are_taken_and_put_in_their_place() -> None:
    x = arrays(1, 6, 4, 2)
    (part,) = accumulation.heads([x], 3, 1)
    assert_alike([part], [x[:, 2:4]])
    wanted = x.copy()
    wanted[:, 2:4] *= 2
    assert_alike(accumulation.with_heads([x], [2 * part], 3, 1), [wanted])


def test_some_slices_of_heads_are_joined_and_go_back() -> None:
    x, where = jax.numpy.array(arrays(1, 6, 4, 2)), slice(0, 3, 2)
    (part,) = accumulation.some_heads([x], 3, where)
    assert_alike([part], [x[:, [0, 1, 4, 5]]])
    wanted = np.array(x)
    wanted[:, [0, 1, 4, 5]] *= 2
    assert_alike(accumulation.with_some_heads([x], [2 * part], 3, where), [wanted])


def test_heads_are_repeated_and_the_gradients_of_copies_are_added() -> None:
    x = arrays(1, 2, 4, 3)
    (copied,) = accumulation.repeat_heads([x], 3)
    assert_alike([copied], [x[:, [0, 0, 0, 1, 1, 1]]])
    each = arrays(1, 6, 4, 3)
    (total,) = accumulation.add_repeated([each], 3)
    assert_alike([total], [np.stack([each[:, :3].sum(1), each[:, 3:].sum(1)], 1)])


def test_sums_are_wide_until_they_are_complete() -> None:
    x = jax.numpy.ones((1, 1, 2, 3), "bfloat16")
    total = accumulation.add(accumulation.zeros([x]), [x])
    assert total[0].dtype == jax.numpy.float32
    (narrow,) = accumulation.narrow(total, x)
    assert narrow.dtype == x.dtype
    assert narrow.sum() == 6


def test_positions_are_those_of_one_rank_or_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for side, first in (("", 0), ("kv_", 100)):

        def own(rank: int, seq: int, first: int = first) -> Any:
            return np.arange(first + rank, first + seq, RANKS)

        monkeypatch.setattr(accumulation, "RANKS", RANKS)
        monkeypatch.setattr(accumulation, f"{side}positions", own)
        at = getattr(accumulation, f"{side}positions_at")
        assert_alike([at(3, 8)], [own(3, 8)])
        assert_alike(at(np.arange(2), 8), [own(0, 8), own(1, 8)])


def test_every_call_of_the_vocabulary_is_here() -> None:
    tree = ast.parse(Path(__file__).read_text())
    named = {x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute)}
    calls = {
        name
        for module in (accumulation, messages)
        for name, x in inspect.getmembers(module, inspect.isfunction)
        if x.__module__ == module.__name__
    }
    assert len(calls) > 25
    assert calls - named == {"positions_at", "kv_positions_at"}  # by their side
