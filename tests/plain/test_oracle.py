"""The oracle against dense attention, for any schedule, mask, length and head grouping."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dense_attention import assert_dense
from ringloom.planner import planning
from ringloom.planner.analysis.liveness import lifetimes, slots
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import ACCUMULATORS, INPUTS, Attend, InitialCopy, Move, Pass, Plan, Step
from ringloom.planner.masks import Causal, Documents, Full, Window
from ringloom.planner.workload import DTYPES, Workload
from ringloom.runtimes.arrays import Array, draw, draw_sinks, dtype_of, shapes
from ringloom.runtimes.backends import executor, forward, run
from ringloom.runtimes.reference import dense, online_softmax, oracle, virtual_ranks
from ringloom.runtimes.reference.online_softmax import attend, merge
from ringloom.runtimes.validation import mask_conflicts
from slots_used import sharded, used
from strategies import CLASSIC, any_workloads, ranks, schedules

SMALL = Workload(seq=22, heads=4, kv_heads=2, head_dim=3, mask=Causal(), dtype="float64")
MANY = settings(max_examples=4 * settings.default.max_examples)
RING = planning.plan("ring", replace(SMALL, mask=Full()), 4)


def plain(name: str, work: Workload, ranks: int, pass_: Pass) -> Plan:
    return planning.plan(name, work, ranks, pass_=pass_)


def assert_close(result: Array, truth: Array, within: float) -> None:
    np.testing.assert_allclose(result, truth, rtol=0, atol=within, equal_nan=False)


def refused(message: str, *arguments: object, of: Callable[..., object] = run) -> None:
    with pytest.raises(RingloomError, match=message):
        of(*arguments)


# ---- laws


@MANY
@given(st.data(), ranks, any_workloads(longest=20), st.integers(0, 99))
def test_the_adjoint_of_every_forward_plan_is_exact(
    data: st.DataObject, ranks: int, work: Workload, seed: int
) -> None:
    ahead = planning.plan(data.draw(schedules(ranks)), work, ranks)
    inputs, sinks = draw(work, seed), draw_sinks(work, seed)
    _, *gradients = run(ahead, *inputs, sinks=sinks)
    out, lse = forward(ahead, *inputs[:3], sinks=sinks)
    assert_dense(work, inputs, (out, *gradients), sinks, lse)


@given(st.integers(0, 99), st.integers(0, 9), st.integers(0, 9))
def test_partial_attentions_merge_to_the_whole_in_any_order(seed: int, a: int, b: int) -> None:
    random = np.random.default_rng(seed)
    q = random.normal(size=(1, 2, 5, 3))
    k, v = random.normal(size=(2, 1, 2, 12, 3))
    sees = random.random((5, 12)) < 0.4
    a, b = sorted((a, b))
    pieces = [slice(0, a), slice(a, b), slice(b, 12)]
    one, two, three = (attend(q, k[:, :, p], v[:, :, p], sees[:, p], 0.7) for p in pieces)
    whole = attend(q, k, v, sees, 0.7)
    for parts in merge(merge(one, two), three), merge(three, merge(two, one)):
        for result, truth in zip(parts, whole, strict=True):
            assert_close(result, truth, 1e-14)


def test_a_nan_that_was_read_is_never_taken_for_a_row_that_sees_nothing() -> None:
    q, k, v = np.full((1, 1, 2, 3), np.nan), np.ones((1, 1, 4, 3)), np.ones((1, 1, 4, 3))
    o, lse = attend(q, k, v, np.ones((2, 4), bool), 1.0)
    assert np.isnan(o).all()
    assert np.isnan(lse).all()


# ---- memories are apart


def played(plan: Plan, *inputs: Array) -> None:
    """Run a plan that the verifier need not have seen."""
    sharded(plan, *inputs).run()


@pytest.mark.parametrize("name", CLASSIC)
def test_once_shards_are_given_out_nobody_reads_the_whole_arrays(name: str) -> None:
    plan = plain(name, SMALL, 4, "forward")
    q, k, v, _ = draw(SMALL, 3)
    truth, _ = dense.forward(SMALL, q, k, v)
    ranks = sharded(plan, q, k, v)
    for array in (q, k, v):
        array.fill(np.nan)
    ranks.run()
    assert_close(oracle.collect(ranks, "OUT", 0, q.shape), truth, 1e-12)


def test_a_copy_is_gone_once_its_last_use_is_over_and_at_its_owner_it_is_not() -> None:
    inputs = draw(RING.workload, 4)
    ranks = sharded(RING, *inputs[:3])
    received, last = lifetimes(RING, "KV")
    owners = RING.partition.kv.owners
    for number in range(len(RING.steps)):
        ranks.advance(number)
        for memory in ranks.memory:
            here = [("KV", block) in memory.inputs for block in range(len(owners))]
            came = (received[memory.number] > -2) & (received[memory.number] <= number)
            kept = (owners == memory.number) | (came & (last[memory.number] > number))
            np.testing.assert_array_equal(here, kept)
    assert len(ranks.memory[0].inputs) == 2


def test_a_read_after_the_stated_end_of_a_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_short(plan: Plan, tensor: str) -> tuple[Array, Array]:
        received, last = lifetimes(plan, tensor)
        return received, last - 1

    monkeypatch.setattr(virtual_ranks, "lifetimes", too_short)
    refused("reads KV block .*, which it does not hold", RING, *draw(RING.workload, 5)[:3])


ABSENT = [
    (
        Step((Attend([0], [[0]], [[2]]),), ()),
        "step 0: rank 0 reads KV block 2, which it does not hold",
    ),
    (
        Step((Attend([0], [[1]], [[0]]),), ()),
        "step 0: rank 0 reads Q block 1, which it does not hold",
    ),
    (
        Step((), (Move(("KV",), [[2]], [0], [1]),)),
        "step 0: rank 0 reads KV block 2, which it does not hold",
    ),
    (
        Step((), (Move(("OUT",), [[2]], [3], [2]),)),
        "step 0: rank 3 sends OUT block 2, which it does not hold",
    ),
    (
        # what arrives in a step is not read in it
        Step((Attend([1], [[1]], [[0]]),), (Move(("KV",), [[0]], [0], [1]),)),
        "step 0: rank 1 reads KV block 0, which it does not hold",
    ),
]


@pytest.mark.parametrize(("step", "message"), ABSENT)
def test_absent_data_is_named(step: Step, message: str) -> None:
    refused(message, replace(RING, steps=(step,)), *draw(RING.workload, 0)[:3], of=played)


def test_a_rectangle_over_different_head_slices_is_refused() -> None:
    plan = plain("ulysses", replace(SMALL, mask=Full()), 2, "forward")
    number, attend = next(plan.attends())
    q = np.unique(attend.q)
    assert len({plan.partition.q.blocks[b].heads for b in q}) > 1
    mixed = Step((Attend([0], [q], attend.kv[:1]),), ())
    everything = InitialCopy(("Q",), [[b for b in q if plan.partition.q.owners[b] != 0]], [0])
    plan = replace(plan, start=(everything,), steps=(*plan.steps[:number], mixed))
    message = (
        r"rank 0 has q blocks .* with different head slices \['range\(0, 2\)', 'range\(2, 4\)'\]"
    )
    refused(message, plan, *draw(SMALL, 0)[:3], of=played)


def test_an_unverified_plan_is_verified_first() -> None:
    half = replace(RING, steps=RING.steps[:2])
    refused("rank|block", half, *draw(RING.workload, 0)[:3])
    refused("rank|block", half, *draw(RING.workload, 0)[:3], of=forward)


def test_a_partial_sum_transfer_leaves_behind_only_what_its_step_attends() -> None:
    """In step 1 rank 0 gives away what it had and begins anew: together they make the row."""
    first, second = Attend([0], [[0]], [[0]]), Attend([0], [[0]], [[1]])
    away = Move(("OUT",), [[0]], [0], [1])
    back = Move(("OUT",), [[0]], [1], [0])
    steps = Step((first,)), Step((second,), (away,)), Step((), (back,))
    plan = replace(RING, start=(InitialCopy(("KV",), [[1]], [0]),), buffers=(), steps=steps)
    q, k, v, _ = draw(plan.workload, 7)
    ranks = sharded(plan, q, k, v)
    ranks.advance(0)
    whole = ranks.memory[0].sums["OUT", 0]
    ranks.advance(1)
    np.testing.assert_array_equal(ranks.memory[1].sums["OUT", 0][0], whole[0])
    rest = ranks.memory[0].sums["OUT", 0]
    ranks.advance(2)
    assert not ranks.memory[1].sums
    for result, truth in zip(ranks.memory[0].sums["OUT", 0], merge(rest, whole), strict=True):
        assert_close(result, truth, 1e-15)


@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("name", CLASSIC)
def test_ranks_use_as_many_slots_as_liveness_says_and_no_fewer(name: str, pass_: Pass) -> None:
    work = replace(SMALL, heads=6, kv_heads=3, mask=Causal() | Window(3, 6))
    plan = plain(name, work, 4, pass_)
    inputs = draw(work, 8)[: 4 if pass_ == "backward" else 3]
    needed = {t: int(slots(plan, t).max()) for t in INPUTS[pass_] + ACCUMULATORS[pass_]}
    assert any(needed.values())
    assert needed.items() <= used(sharded(plan, *inputs)).items()


# ---- what goes in and comes out


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_have_the_dtype_and_the_shapes_of_the_inputs(dtype: str) -> None:
    work = replace(SMALL, dtype=dtype, batch=2)
    inputs = draw(work, 9)
    pair = planning.plan("zigzag", work, 3, pass_="both")
    assert run(pair, *inputs[:3]).dtype == dtype_of(dtype)
    for result, like in zip(run(pair, *inputs), ("dout", "q", "k", "v"), strict=True):
        assert result.dtype == dtype_of(dtype)
        assert result.shape == shapes(work)[like]
    _, lse = forward(pair.forward, *inputs[:3])
    assert lse.dtype == np.dtype("float64" if dtype == "float64" else "float32")


def test_arrays_that_do_not_fit_are_refused_with_both_shapes() -> None:
    q, k, v, _ = draw(SMALL, 0)
    fits = r"but the workload takes float64 \[1, 4, 22, 3\]"
    refused(rf"q is float64 \[1, 4, 21, 3\], {fits}", RING, q[:, :, 1:], k, v)
    refused(rf"q is float32 \[1, 4, 22, 3\], {fits}", RING, q.astype(np.float32), k, v)
    refused(r"v is float64 .*takes float64 \[1, 2, 22, 3\]", RING, q, k, q)
    refused(r"dout is float64 \[1, 2, 22, 3\]", RING, q, k, v, k)
    refused("k must be a numpy array, not list", RING, q, k.tolist(), v)
    refused("q is float32", SMALL, q.astype(np.float32), k, v, of=dense.forward)
    refused("dout is float32", SMALL, q, k, v, q.astype(np.float32), of=dense.backward)


def test_sinks_are_given_where_the_workload_has_them_and_only_there() -> None:
    inputs, sunk = draw(SMALL, 0), replace(SMALL, sinks=True)
    with pytest.raises(RingloomError, match=r"has sinks: pass sinks=, one logit for each of 4"):
        run(planning.plan("ring", sunk, 4), *inputs[:3])
    with pytest.raises(RingloomError, match=r"has no sinks: plan Workload\(..., sinks=True\)"):
        run(planning.plan("ring", SMALL, 4), *inputs[:3], sinks=np.zeros(4))
    with pytest.raises(RingloomError, match=r"sinks is float64 \[3\], but .* float64 \[4\]"):
        run(planning.plan("ring", sunk, 4), *inputs[:3], sinks=np.zeros(3))


def test_sinks_of_minus_infinity_change_nothing() -> None:
    work = replace(SMALL, mask=Documents((1, 21), (0, 22)) & Window(3))
    inputs, none = draw(work, 1), np.full(work.heads, -np.inf)
    results = run(planning.plan("zigzag", work, 3), *inputs)
    sunk = run(planning.plan("zigzag", replace(work, sinks=True), 3), *inputs, sinks=none)
    for without, array in zip(results, sunk, strict=False):
        np.testing.assert_array_equal(array, without)
    assert not sunk[-1].any()


def test_a_backward_plan_alone_needs_the_gradient_of_the_output() -> None:
    back, inputs = plain("ring", SMALL, 4, "backward"), draw(SMALL, 0)
    refused("a backward plan alone needs dout", back, *inputs[:3])
    refused("a backward plan alone needs dout", back, *inputs[:3], of=forward)


def test_an_unknown_backend_is_refused_with_those_that_exist() -> None:
    refused("unknown backend 'abacus': choose one of numpy", "abacus", of=executor)
    assert executor("numpy") is oracle.execute


# ---- dense attention itself


def by_hand(
    work: Workload, q: Array, k: Array, v: Array, sinks: Array | None = None
) -> tuple[Array, Array]:
    """Attention one query at a time, by the formula in the books."""
    out = np.zeros((*q.shape[:3], work.v_head_dim))
    lse = np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(q.shape[:3]):
        keys = [j for j in range(work.kv_seq) if work.allowed([i], [j])[0, 0]]
        shared = b, h * work.kv_heads // work.heads
        scores = [float(q[b, h, i] @ k[shared][j]) * work.softmax_scale for j in keys]
        total = sum(np.exp(scores)) + (0 if sinks is None else np.exp(sinks[h]))
        if total:
            lse[b, h, i] = np.log(total)
            weights = np.exp(scores) / total
            out[b, h, i] = sum(w * v[shared][j] for w, j in zip(weights, keys, strict=True))
    return out, lse


@given(any_workloads(longest=6), st.integers(0, 99))
def test_dense_attention_is_the_formula(work: Workload, seed: int) -> None:
    (q, k, v, _), sinks = draw(work, seed), draw_sinks(work, seed)
    pairs = zip(
        dense.forward(work, q, k, v, sinks=sinks), by_hand(work, q, k, v, sinks), strict=True
    )
    for result, truth in pairs:
        assert_close(result, truth, 1e-13)


@given(any_workloads(longest=9), st.integers(0, 99), st.integers(1, 30))
def test_dense_attention_of_some_queries_at_a_time_is_the_same(
    work: Workload, seed: int, pairs: int
) -> None:
    inputs, sinks = draw(work, seed), draw_sinks(work, seed)

    def results() -> list[Array]:
        return [
            *dense.forward(work, *inputs[:3], sinks=sinks),
            *dense.backward(work, *inputs, sinks=sinks),
        ]

    whole = results()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "MAX_SCORES", pairs)
        assert not mask_conflicts(work)
        for result, truth in zip(results(), whole, strict=True):
            assert_close(result, truth, 1e-12)


@given(any_workloads(longest=4), st.integers(0, 99))
def test_dense_gradients_are_finite_differences(work: Workload, seed: int) -> None:
    inputs, sinks, small = draw(work, seed), draw_sinks(work, seed), 1e-5
    random = np.random.default_rng(seed)

    def loss(arrays: list[Array]) -> float:
        q, k, v, *logits = arrays
        given = {"sinks": logits[0]} if logits else {}
        return float(np.sum(dense.forward(work, q, k, v, **given)[0] * inputs[3]))

    for number, gradient in enumerate(dense.backward(work, *inputs, sinks=sinks)):
        direction = random.normal(size=gradient.shape)
        sides = []
        for sign in (small, -small):
            arrays = [*inputs[:3], *([] if sinks is None else [sinks])]
            arrays[number] = arrays[number] + sign * direction
            sides.append(loss(arrays))
        slope = (sides[0] - sides[1]) / (2 * small)
        assert slope == pytest.approx(float(np.sum(gradient * direction)), abs=1e-6, rel=1e-6)


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_dense_attention_in_16_bit_rounds_once_at_the_end(dtype: str, unit: float) -> None:
    work = replace(SMALL, dtype=dtype)
    q, k, v, dout = draw(work, 12)
    out, lse = dense.forward(work, q, k, v, precision=dtype)
    truth, _ = dense.forward(work, q, k, v)
    assert out.dtype == dtype_of(dtype)
    assert lse.dtype == np.float32
    assert 0 < np.max(np.abs(out.astype(float) - truth) / np.abs(truth)) <= unit * 1.001
    assert all(g.dtype == out.dtype for g in dense.backward(work, q, k, v, dout, dtype))


def test_an_unknown_precision_is_refused() -> None:
    refused("unknown dtype 'float8'", SMALL, *draw(SMALL, 0)[:3], "float8", of=dense.forward)


def test_the_oracle_shares_no_arithmetic_with_dense_attention() -> None:
    for module in (virtual_ranks, online_softmax):
        assert "dense" not in vars(module)
    assert not {"attend", "merge", "gradients"} & vars(dense).keys()
