"""check(plan): exact plans pass in every dtype, and nothing else does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.planner import planning
from ringloom.planner.ir import Attend, Step
from ringloom.planner.masks import Causal, Documents, Full, Mask, Window
from ringloom.planner.masks.regions import Region
from ringloom.planner.plans import Plans
from ringloom.planner.verify import mark_verified
from ringloom.planner.workload import DTYPES, Workload
from ringloom.runtimes.arrays import Array, draw
from ringloom.runtimes.reference import dense, oracle
from ringloom.runtimes.validation import backward_leaks, check, distance, forward_leaks, probes
from strategies import any_workloads, ranks, schedules, workloads

SMALL = Workload(29, heads=4, kv_heads=2, head_dim=4, dtype="float64", mask=Causal())


def test_a_verdict_has_an_error_and_a_tolerance_for_each_result() -> None:
    work = replace(SMALL, mask="causal & (window:9 | global:4)")
    verdict = check(planning.plan("zigzag", work, 4, pass_="both"))
    assert verdict.exact
    assert verdict.leak_free
    assert verdict.leaks == ()
    assert (verdict.tolerances["forward"], verdict.tolerances["lse"]) == (1e-12, 1e-12)
    assert [verdict.tolerances[name] for name in ("dq", "dk", "dv")] == [1e-11] * 3
    assert 0 < verdict.forward_error <= 1e-12


@given(st.data(), ranks, st.sampled_from(sorted(DTYPES)).flatmap(any_workloads), st.integers(0, 9))
def test_whatever_the_planner_makes_is_exact(
    data: st.DataObject, ranks: int, work: Workload, seed: int
) -> None:
    verdict = check(
        planning.plan(data.draw(schedules(ranks)), work, ranks, pass_="both"), seed=seed
    )
    assert verdict.exact, verdict


def test_only_the_passes_of_a_plan_are_judged() -> None:
    ahead = check(planning.plan("ring", SMALL, 3))
    assert ahead.exact
    assert (ahead.dq_error, ahead.dk_error, ahead.dv_error) == (None, None, None)
    assert ahead.dsink_error is None
    assert ahead.tolerances.keys() == {"forward", "lse"}
    back = check(planning.plan("ring", SMALL, 3, pass_="backward"))
    assert back.exact
    assert (back.forward_error, back.lse_error) == (None, None)
    assert back.tolerances.keys() == {"dq", "dk", "dv"}


def test_sinks_have_a_gradient_that_is_judged() -> None:
    pair = planning.plan("usp", replace(SMALL, sinks=True), 4, pass_="both")
    result = check(pair)
    assert result.exact
    assert result.tolerances["dsink"] == 1e-11 >= result.dsink_error > 0

    def loud(results: tuple[Array, ...]) -> Any:
        return [*results[:-1], results[-1] + 1e-9 * (results[-1].ndim == 1)]

    wrong = check(pair, faulty(loud))
    assert wrong.dsink_error > 1e-11 >= wrong.dv_error
    assert not wrong.exact


def test_a_check_repeats_itself_and_follows_its_seed() -> None:
    pair = planning.plan("usp", replace(SMALL, dtype="bfloat16"), 4, pass_="both")
    assert check(pair, seed=5) == check(pair, seed=5)
    assert check(pair, seed=5).forward_error != check(pair, seed=6).forward_error


# ---- what is wrong is found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_a_plan_that_forgets_a_tile_is_not_exact(pass_: str, dtype: str) -> None:
    work = replace(SMALL, dtype=dtype, mask=Full())
    plan = planning.plan("allgather:layout=contiguous", work, 3, pass_=pass_)
    assert check(plan).exact
    number, attend = next(plan.attends())
    kv = attend.kv.copy()
    kv[0, attend.rank[0]] = -1  # a tile of blocks that it owns, which no move is about
    step = Step((Attend(attend.rank, attend.q, kv),), plan.steps[number].moves)
    steps = (*plan.steps[:number], step, *plan.steps[number + 1 :])
    wrong = mark_verified(replace(plan, steps=steps))  # as if the verifier had passed it
    assert not check(wrong).exact


def wider(mask: Causal) -> Region:
    return Full().region()


def twice(mask: Causal) -> Region:
    return Region.of(np.concatenate([Causal().region().pieces] * 2))


@pytest.mark.parametrize(
    ("region", "said"),
    [
        (wider, "query 0, key 1 counts 1 in the mask's region, but 0 in its definition"),
        (twice, "query 0, key 0 counts 2 in the mask's region, but 1 in its definition"),
    ],
)
def test_a_mask_whose_region_is_not_its_definition_is_not_exact(
    region: Callable[[Causal], Region], said: str
) -> None:
    """Runs are exact all the same: they evaluate the definition, which programs do not."""
    mask = type("Mistaken", (Causal,), {"region": region})()
    verdict = check(planning.plan("ring", replace(SMALL, mask=mask), 3))
    assert not verdict.exact
    assert verdict.leaks == (said,)


Program = Callable[..., Any]


def faulty(change: Callable[..., Any]) -> Program:
    """A backend that computes what the oracle does, changed."""

    def execute(plans: Plans, function: str, *arrays: Array, **sinks: Array) -> Any:
        return change(oracle.execute(plans, function, *arrays, **sinks))

    return execute


def scaled(results: tuple[Array, ...]) -> Any:
    return [x * x.dtype.type(1.01) for x in results]


def with_a_nan(results: tuple[Array, ...]) -> Any:
    results[-1][0, 0, 0] = np.nan
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", [scaled, with_a_nan])
@pytest.mark.parametrize("pass_", ["forward", "both", "backward"])
def test_a_backend_that_computes_something_else_is_not_exact(
    change: Program, pass_: str, dtype: str
) -> None:
    plan = planning.plan("zigzag", replace(SMALL, dtype=dtype), 3, pass_=pass_)
    assert check(plan, oracle.execute).exact
    assert not check(plan, faulty(change)).exact


def test_a_wrong_lse_is_not_exact() -> None:
    def off(out: Array, *lse: Array) -> tuple[Array, ...]:
        return out, *(x + 1e-9 for x in lse)

    verdict = check(planning.plan("ring", SMALL, 3), faulty(lambda results: off(*results)))
    assert verdict.leak_free
    assert not verdict.exact
    assert verdict.lse_error == pytest.approx(1e-9, rel=1e-3)


def test_distance_counts_minus_infinity_and_nan() -> None:
    truth = np.array([0.0, -np.inf, 2.0])
    assert distance(truth, truth) == 0
    assert distance(np.array([0.5, -np.inf, 2.0]), truth) == 0.5
    assert distance(np.array([0.0, -1e300, 2.0]), truth) == np.inf
    assert distance(np.array([-np.inf, -np.inf, 2.0]), truth) == np.inf
    assert np.isnan(distance(np.array([np.nan, -np.inf, 2.0]), truth))
    assert distance(truth[:2], truth) == np.inf
    assert distance(np.full(3, -np.inf), np.full(3, -np.inf)) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_results_may_err_twice_as_much_as_dense_attention_does(dtype: str) -> None:
    work = replace(SMALL, dtype=dtype)
    inputs = draw(work, 0)
    verdict = check(planning.plan("ring", work, 3, pass_="both"))
    own = distance(dense.forward(work, *inputs[:3], dtype)[0], dense.forward(work, *inputs[:3])[0])
    assert verdict.tolerances["forward"] == 2 * own
    assert verdict.tolerances["lse"] == 5e-6
    rounded, truth = dense.backward(work, *inputs, dtype), dense.backward(work, *inputs)
    for name, rough, true in zip(("dq", "dk", "dv"), rounded, truth, strict=True):
        assert verdict.tolerances[name] == 2 * distance(rough, true)


# ---- the leak probe


def attention_under(other: Mask, work: Workload) -> tuple[Program, Program]:
    """Dense attention, forward and with gradients, that goes by another mask."""
    wrong = replace(work, mask=other)

    def ahead(q: Array, k: Array, v: Array) -> Array:
        return dense.forward(wrong, q, k, v, work.dtype)[0]

    def both(q: Array, k: Array, v: Array, dout: Array) -> tuple[Array, ...]:
        return (ahead(q, k, v), *dense.backward(wrong, q, k, v, dout, work.dtype))

    return ahead, both


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("true", "wrong"),
    [
        (Causal(), Window(None, 1)),
        (Window(9), Window(10)),
        (Documents((10, 19)), Documents((11, 18))),
        (Documents((10, 19)) & Window(5), Window(5)),
    ],
)
def test_a_mask_that_is_off_by_one_leaks(true: Mask, wrong: Mask, dtype: str) -> None:
    work = replace(SMALL, mask=true, dtype=dtype)
    ahead, both = attention_under(wrong, work)
    seeds = range(4)  # an edge is chosen by chance; one of a few is the wrong one
    assert any("changes at token" in leak for s in seeds for leak in forward_leaks(work, ahead, s))
    assert any("changes at token" in leak for s in seeds for leak in backward_leaks(work, both, s))


def test_a_leak_far_below_the_tolerance_is_found() -> None:
    def tainted(plans: Plans, function: str, *qkv: Array) -> list[Array]:
        out, *lse = oracle.execute(plans, function, *qkv)
        return [out + 1e-16 * qkv[2].sum(), *lse]

    verdict = check(planning.plan("ring", SMALL, 3), tainted)
    assert verdict.forward_error <= 1e-12
    assert not verdict.leak_free
    assert not verdict.exact


def test_a_leak_through_the_normaliser_alone_is_found() -> None:
    """A softmax that divides by the weights of masked keys too: their values never show."""
    work = replace(SMALL, mask=Window(4))

    def ahead(q: Array, k: Array, v: Array) -> Array:
        out, lse = dense.forward(work, q, k, v)
        _, everything = dense.forward(replace(work, mask=Full()), q, k, v)
        return out * np.exp(lse - everything)[..., None]

    assert any("changes at token" in leak for leak in forward_leaks(work, ahead))


def test_a_row_that_should_move_and_stays_is_reported() -> None:
    work = replace(SMALL, mask=Full())
    ahead, both = attention_under(Causal(), work)
    key, query = probes(work, 0)[1][0], probes(work, 0)[0][0]
    assert f"out does not change at token 0, which key {key} affects" in forward_leaks(work, ahead)
    assert f"dv does not change at token 28, which query {query} affects" in backward_leaks(
        work, both
    )


@given(workloads("float64", longest=12) | workloads("float32", longest=12), st.integers(0, 9))
def test_dense_attention_under_its_own_mask_never_leaks(work: Workload, seed: int) -> None:
    ahead, both = attention_under(work.mask, work)
    assert forward_leaks(work, ahead, seed) == []
    assert backward_leaks(work, both, seed) == []


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_steep_softmax_hides_nothing_from_the_probe(dtype: str) -> None:
    work = Workload(300, heads=1, head_dim=64, dtype=dtype, mask=Causal(), scale=8.0)
    for s in range(3):
        ahead, both = attention_under(work.mask, work)
        assert forward_leaks(work, ahead, s) + backward_leaks(work, both, s) == []


def test_probes_stand_on_both_sides_of_an_edge_of_the_mask() -> None:
    work = replace(SMALL, mask=Documents((10, 19)))
    for seed in range(9):
        queries, keys = probes(work, seed)
        assert {9, 10} <= set(keys)
        assert {9, 10} <= set(queries)
        assert len(keys) <= 3
    assert all(map(len, probes(replace(SMALL, mask=Full()), 0)))
