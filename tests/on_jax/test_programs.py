"""Emitted JAX programs compute what dense attention computes, output and gradients."""

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dense_attention import assert_dense
from jax_devices import Mesh, jax
from jax_in_numpy import replay
from ringloom.codegen import emit
from ringloom.planner.masks import Blocks, Causal, Documents, Full, Global, Mask, Prefix, Window
from ringloom.planner.planning import plan
from ringloom.planner.plans import AnyPlans
from ringloom.planner.verify import verify_pair
from ringloom.planner.workload import Workload
from ringloom.runtimes import backends
from ringloom.runtimes.arrays import draw, draw_sinks
from ringloom.runtimes.emitted import load, source_of
from ringloom.runtimes.jax import mesh
from ringloom.runtimes.reference import dense
from ringloom.runtimes.validation import check, distance
from sampling import NIGHTLY, square
from strategies import CLASSIC, OTHERS, any_workloads, divided_workloads, schedules, workloads

run = partial(backends.run, backend="jax")
SMALL = Workload(37, heads=4, kv_heads=2, head_dim=3, mask=Causal(), dtype="float64")
EVEN = replace(SMALL, seq=32, kv_seq=32, heads=8, kv_heads=4)
MASKS = (
    Full(),
    Causal(),
    Causal() & Window(6) | Global(3),
    Documents((9, 0, 17, 2, 9)),
)


def exact(work: Workload, schedule: str, ranks: int, compiled: bool = NIGHTLY) -> None:
    """Output and gradients of the emitted pair are dense attention's; at night compiled ones."""
    pair = plan(schedule, work, ranks, pass_="both")
    inputs, sinks = draw(work, 3), draw_sinks(work, 3)
    results = (run if compiled else replay)(pair, *inputs, sinks=sinks)
    assert_dense(work, inputs, results, sinks)


@pytest.mark.parametrize(("tokens", "ranks"), [(4, 3), (6, 4)])
def test_padding_is_hidden_where_some_ranks_have_more_pieces(tokens: int, ranks: int) -> None:
    """Pieces of one token, two of them on some ranks: keys that pad the others count nowhere."""
    exact(Workload(tokens, heads=1, head_dim=2, dtype="float64", mask=Full()), "groups", ranks)


@pytest.mark.parametrize(("stages", "mask"), [(1, Causal()), (2, Full())])
def test_keys_that_come_in_several_messages_at_once_all_count(stages: int, mask: Mask) -> None:
    """The backward pass is another schedule's: that of the same one would be refused as loops."""
    work = replace(EVEN, mask=mask)
    forward = plan(f"halo:stages={stages}", work, 4)
    pair = verify_pair(forward, plan("ring", work, 4, pass_="backward"))
    inputs = draw(work, 3)
    assert_dense(work, inputs[:3], replay(pair, *inputs)[:1])


def emitted(pair: AnyPlans) -> ModuleType:
    return load(emit(pair, "jax"))


@pytest.mark.parametrize(("schedule", "mask"), square(CLASSIC, MASKS, every=2), ids=str)
def test_every_schedule_matches_dense_attention(schedule: str, mask: Mask) -> None:
    ranks = {"usp": 6, "balanced": 5}.get(schedule, 4 + (mask == MASKS[3]))
    exact(replace(SMALL, mask=mask), schedule, ranks)


@pytest.mark.parametrize(("schedule", "mask"), square(OTHERS, MASKS, every=4), ids=str)
def test_schedules_on_request_match_dense_attention(schedule: str, mask: Mask) -> None:
    exact(replace(EVEN, mask=mask) if mask in MASKS[:3] else replace(SMALL, mask=mask), schedule, 4)


COMPILED = {
    "ring": replace(EVEN, mask=MASKS[1]),
    "striped": replace(SMALL, mask=MASKS[0]),
    "zigzag": replace(SMALL, mask=MASKS[2]),
    "balanced": replace(EVEN, mask=MASKS[0]),
    "burst": replace(SMALL, mask=MASKS[3]),
    "allgather": replace(EVEN, mask=MASKS[1]),
    "ulysses": replace(EVEN, mask=MASKS[2]),
    "usp": replace(EVEN, mask=MASKS[0]),
}
BY_DAY = ("striped", "allgather", "ulysses")


@pytest.mark.parametrize("schedule", CLASSIC if NIGHTLY else BY_DAY)
def test_compiled_programs_match_dense_attention(schedule: str) -> None:
    """Loops of equal pieces, with the collectives of each schedule, and tables of others.

    By day those that neither `test_each_dtype_is_exact_and_leaks_nothing` nor the comparison of
    the replay with XLA compile.
    """
    exact(COMPILED[schedule], schedule, 4, compiled=True)


@pytest.mark.parametrize(
    ("schedule", "ranks", "change"),
    [
        ("ring", 1, {}),
        ("zigzag", 8, {"seq": 5}),
        ("striped:grain=3", 3, {"mask": Prefix(4), "batch": 2}),
        ("allgather:keep=1:layout=striped", 4, {"kv_seq": 50}),
        # What the forward pass gathered of what an exchange brought is attended to again.
        (
            "ulysses-gather:keep=1",
            8,
            {"seq": 64, "mask": Documents((24, 40)) & Causal(), "heads": 8, "kv_heads": 8},
        ),
        ("usp:ulysses=2", 8, {"heads": 6, "kv_heads": 2}),
        ("ulysses", 5, {"heads": 4, "kv_heads": 1}),
        ("burst:layout=contiguous", 7, {"kv_seq": 20}),
        ("ring", 4, {"mask": Blocks(((1, 0), (0, 0)), 20), "scale": -0.3}),
        ("burst", 2, {"mask": Global(0)}),  # nobody sees anything
    ],
)
def test_uneven_lengths_heads_and_ranks_match_dense(
    schedule: str, ranks: int, change: dict[str, Any]
) -> None:
    exact(replace(SMALL, **({"kv_seq": change.get("seq", 37)} | change)), schedule, ranks)


MANY = settings.default.max_examples // (1 if NIGHTLY else 3)


@settings(max_examples=MANY)
@given(st.data(), st.integers(1, 8), workloads(longest=19))
def test_any_workload_under_any_schedule_matches_dense(
    data: st.DataObject, ranks: int, work: Workload
) -> None:
    exact(work, data.draw(schedules(ranks)), ranks)


@settings(max_examples=MANY)
@given(st.data(), st.sampled_from([3, 4, 6]))
def test_any_workload_that_ranks_divide_matches_dense(data: st.DataObject, ranks: int) -> None:
    exact(data.draw(divided_workloads(ranks)), data.draw(schedules(ranks)), ranks)


@settings(max_examples=MANY)
@given(st.data(), st.sampled_from([4, 6]))
def test_programs_of_a_forward_pass_alone_match_dense(data: st.DataObject, ranks: int) -> None:
    work = data.draw(divided_workloads(ranks))
    inputs = draw(work, 3)[:3]
    results = replay(plan(data.draw(schedules(ranks)), work, ranks), *inputs)
    assert_dense(work, inputs, results)


@settings(max_examples=MANY)
@given(st.data(), st.integers(3, 4), any_workloads(longest=19))
def test_sinks_and_values_of_another_dimension_are_exact(
    data: st.DataObject, ranks: int, work: Workload
) -> None:
    exact(work, data.draw(schedules(ranks)), ranks)


SUNK = replace(EVEN, v_head_dim=5, sinks=True)


@pytest.mark.parametrize(
    ("schedule", "compiled"),
    [("zigzag", 1), ("usp:ulysses=2", 0), ("pass-q", 1), ("balanced", 0), ("mesh2d", 0)],
)
def test_loops_and_tables_have_sinks_and_values_of_another_dimension(
    schedule: str, compiled: bool
) -> None:
    """pass-q by tables; ulysses keeps outputs by heads, into which the sinks of these go."""
    source = source_of(plan(schedule, SUNK, 4, pass_="both"), "jax")
    assert ("run_forward" in source) == (schedule == "pass-q")
    exact(SUNK, schedule, 4, compiled=bool(compiled))


def test_sinks_are_in_what_each_pass_gives_and_takes() -> None:
    inputs, sinks = draw(SUNK, 3), draw_sinks(SUNK, 3)
    out, lse = backends.forward(plan("ring", SUNK, 4), *inputs[:3], sinks=sinks, backend="jax")
    for ours, truth in zip((out, lse), dense.forward(SUNK, *inputs[:3], sinks=sinks), strict=True):
        assert distance(ours, truth) <= 1e-12
    _, *gradients = run(plan("ring", SUNK, 4, pass_="backward"), *inputs, sinks=sinks)
    truths = dense.backward(SUNK, *inputs, sinks=sinks)
    for ours, truth in zip(gradients, truths, strict=True):
        assert distance(ours, truth) <= 1e-11


def test_a_program_asks_for_sinks_of_all_heads() -> None:
    module = emitted(plan("ring", SUNK, 4, pass_="both"))
    q, k, v, _ = (np.float32(x) for x in draw(SUNK, 2))
    devices = Mesh(np.array(jax.devices()[:4]), ("sp",))
    for sinks, said in ((None, r"\[heads\], not None"), (np.zeros(3), r"\[heads\], not \[3\]")):
        with pytest.raises(ValueError, match=said):
            module.attention(q, k, v, sinks=sinks, mesh=devices)


@pytest.mark.parametrize(
    ("dtype", "schedule", "mask"),
    [
        ("float32", "zigzag", Causal()),
        ("float32", "balanced", Causal() & Window(9)),
        ("bfloat16", "ring", Causal() & Window(9)),
        ("bfloat16", "burst", Causal()),
        ("float16", "usp", Causal()),
    ],
    ids=str,
)
def test_each_dtype_is_exact_and_leaks_nothing(dtype: str, schedule: str, mask: Mask) -> None:
    """Programs of loops under a causal mask, tables under a window of uneven pieces."""
    work = EVEN if mask == Causal() else SMALL
    work = replace(work, mask=mask, head_dim=8, v_head_dim=8, dtype=dtype)
    verdict = check(plan(schedule, work, 4, pass_="both"), "jax")
    assert verdict.leak_free, verdict.leaks
    assert verdict.exact, verdict


def test_a_backward_plan_alone_takes_the_output_of_dense_attention() -> None:
    for schedule, work in (("allgather:keep=1", SMALL), ("zigzag", EVEN)):
        backward = plan(schedule, work, 4, pass_="backward")
        inputs = draw(work, 4)
        assert_dense(work, inputs, run(backward, *inputs))


def test_a_plan_for_more_ranks_than_devices_runs_in_a_child() -> None:
    work = replace(SMALL, seq=18, kv_seq=18)
    pair = plan("ring", work, 9, pass_="both")
    inputs = draw(work, 7)
    assert not mesh.devices(9)
    assert_dense(work, inputs, run(pair, *inputs))


def test_shards_hold_every_token_once_and_padding_is_minus_one() -> None:
    module = emitted(plan("zigzag", replace(SMALL, kv_seq=41), 4))
    at = np.concatenate([module.positions(r) for r in range(4)])
    assert sorted(at[at >= 0]) == list(range(37))
    x = np.arange(37.0)[None, None, :, None] + 1
    parts = [np.asarray(module.shard(x, rank)) for rank in range(4)]
    assert {part.shape for part in parts} == {(1, 1, len(at) // 4, 1)}
    assert not np.concatenate(parts, axis=2)[0, 0, at < 0].any()
    np.testing.assert_array_equal(module.unshard(parts), x)
    y = np.arange(41.0)
    shards = [module.shard(y, r, 0, side="kv") for r in range(4)]
    np.testing.assert_array_equal(module.unshard(shards, 0, side="kv"), y)


# ---- real collectives


def primitives(jaxpr: object) -> set[str]:
    """The names of all primitives in a jaxpr."""
    inner = [primitives(j) for e in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(e.params)]
    return {eqn.primitive.name for eqn in jaxpr.eqns}.union(*inner)


COLLECTIVES = {
    "ring": {"ppermute"},
    "zigzag": {"ppermute"},
    "ulysses": {"all_to_all"},
    "usp:ulysses=2": {"all_to_all", "ppermute"},
    "allgather": {"all_gather", "reduce_scatter"},
}
ALL = {"ppermute", "all_to_all", "all_gather", "reduce_scatter", "psum"}


@pytest.mark.parametrize("schedule", COLLECTIVES)
def test_exchanges_are_the_collectives_made_for_them(schedule: str) -> None:
    work = replace(EVEN, dtype="float32")
    module = emitted(plan(schedule, work, 4, pass_="both"))
    devices = Mesh(np.array(jax.devices()[:4]), ("sp",))

    def both(q: Any, k: Any, v: Any) -> Any:
        out, pull_back = jax.vjp(lambda *x: module.attention(*x, mesh=devices), q, k, v)
        return pull_back(out)

    q, k = np.zeros((1, 8, 32, 3), "f4"), np.zeros((1, 4, 32, 3), "f4")
    made = primitives(jax.make_jaxpr(both)(q, k, k).jaxpr)
    assert {name.removesuffix("_p") for name in made} & ALL == COLLECTIVES[schedule]


def test_a_program_may_be_for_any_length_that_its_pieces_divide() -> None:
    module = emitted(plan("zigzag", replace(EVEN, seq=2**18, kv_seq=2**18), 4, pass_="both"))
    devices = Mesh(np.array(jax.devices()[:4]), ("sp",))
    work = replace(EVEN, seq=48, kv_seq=48)
    q, k, v, _ = draw(work, 2)
    at = np.concatenate([module.positions(rank, 48) for rank in range(4)])
    with jax.enable_x64(True):
        out = module.attention(q[:, :, at], k[:, :, at], v[:, :, at], mesh=devices)
    assert distance(np.asarray(out)[:, :, np.argsort(at)], dense.forward(work, q, k, v)[0]) <= 1e-12
