"""Emitted JAX programs compute what dense attention computes, output and gradients."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen import emit, jax_header, jax_messages
from jax_devices import Mesh, jax
from planner.ir import Plan
from planner.masks import Blocks, Causal, Documents, Full, Global, Mask, Prefix, Window
from planner.passes.adjoint import adjoint
from planner.planning import plan
from planner.schedules import SCHEDULES
from planner.workload import Workload
from runtimes import dense, jax_mesh
from runtimes.arrays import draw
from runtimes.validation import EXACT, check, distance
from strategies import schedules, workloads

SMALL = Workload(37, heads=4, kv_heads=2, head_dim=3, mask=Causal(), dtype="float64")
MASKS = (
    Full(),
    Causal(),
    Causal() & Window(6) | Global(3),
    Documents((9, 0, 17, 2, 9)),
)


def exact(work: Workload, schedule: str, ranks: int) -> None:
    """Output and gradients of the emitted pair are dense attention's."""
    pair = plan(schedule, work, ranks, pass_="both")
    inputs = draw(work, 3)
    out, *gradients = jax_mesh.run(pair, *inputs)
    tolerance, more = EXACT[work.dtype]
    assert distance(out, dense.forward(work, *inputs[:3])[0]) <= tolerance
    for found, truth in zip(gradients, dense.backward(work, *inputs), strict=True):
        assert distance(found, truth) <= more


def emitted(pair: Plan | tuple[Plan, Plan]) -> ModuleType:
    module = ModuleType("emitted")
    exec(emit(pair, "jax"), module.__dict__)
    return module


def mesh_of(ranks: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:ranks]), ("sp",))


@pytest.mark.parametrize(("schedule", "mask"), list(product(SCHEDULES, MASKS)), ids=str)
def test_every_schedule_matches_dense_attention(schedule: str, mask: Mask) -> None:
    ranks = {"usp": 6, "balanced": 5}.get(schedule, 4 + (mask == MASKS[3]))
    exact(replace(SMALL, mask=mask), schedule, ranks)


@pytest.mark.parametrize(
    ("schedule", "ranks", "change"),
    [
        ("ring", 1, {}),
        ("zigzag", 8, {"seq": 5}),
        ("striped:grain=3", 3, {"mask": Prefix(4), "batch": 2}),
        ("allgather:keep=1:layout=striped", 4, {"kv_seq": 50}),
        ("usp:ulysses=2", 8, {"heads": 6, "kv_heads": 2}),
        ("ulysses", 5, {"heads": 4, "kv_heads": 1}),
        ("burst:layout=contiguous", 7, {"kv_seq": 20}),
        ("ring", 4, {"mask": Blocks(((1, 0), (0, 0)), 20), "scale": -0.3}),
    ],
)
def test_uneven_lengths_heads_and_ranks_match_dense(
    schedule: str, ranks: int, change: dict[str, int]
) -> None:
    exact(replace(SMALL, **({"kv_seq": change.get("seq", 37)} | change)), schedule, ranks)


@pytest.mark.parametrize(
    ("schedule", "mask"),
    [
        ("zigzag", MASKS[1]),
        ("burst", MASKS[3]),
        ("balanced", MASKS[2]),
        ("ulysses", MASKS[1]),
        ("allgather:keep=1", MASKS[0]),
    ],
    ids=str,
)
def test_blocks_of_many_tiles_match_dense(
    schedule: str, mask: Mask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_header, "TILE", (3, 2))
    exact(replace(SMALL, mask=mask), schedule, 3)


@pytest.mark.parametrize(("schedule", "ranks"), [("ring", 5), ("zigzag", 4), ("burst", 5)])
def test_large_messages_that_pass_through_two_turns_at_once_match_dense(
    schedule: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = jax_messages.FOLLOW.replace("LARGE = 2**20", "LARGE = 0")
    assert text != jax_messages.FOLLOW
    monkeypatch.setattr(jax_messages, "FOLLOW", text)
    exact(SMALL, schedule, ranks)


@pytest.mark.parametrize(
    ("schedule", "change"),
    [
        ("zigzag", {"batch": 2}),
        ("usp:ulysses=2", {"heads": 6, "kv_heads": 2, "batch": 2}),
        ("ring", {"dtype": "bfloat16", "head_dim": 8}),
    ],
)
def test_what_accelerators_do_otherwise_matches_dense(
    schedule: str, change: dict[str, int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def default(*inputs: Any, default: Callable[..., Any], **_: Callable[..., Any]) -> Any:
        return default(*inputs)

    monkeypatch.setattr(jax.lax, "platform_dependent", default)
    monkeypatch.setattr(jax_header, "TILE", (8, 4))
    verdict = check(plan(schedule, replace(SMALL, **change), 4, pass_="both"), "jax")
    assert verdict.leak_free, verdict.leaks
    assert verdict.exact, verdict


def test_exponentials_of_scores_are_right_to_rounding() -> None:
    exp = emitted(plan("ring", replace(SMALL, dtype="float32"), 2)).exp
    x = -np.geomspace(1e-8, 200, 100_000, dtype=np.float32)
    found, truth = np.asarray(exp(x)), np.exp(x.astype(np.float64))
    assert np.abs(found - truth).max() <= 2e-7
    assert np.abs(found / truth - 1)[x > -20].max() <= 2e-6
    above = -x[x > -80]  # rounding may lift a score above its log-sum-exp
    assert np.abs(np.asarray(exp(above)) / np.exp(above.astype(np.float64)) - 1).max() <= 1e-5
    assert exp(np.array([0, -np.inf], np.float32)).tolist() == [1, 0]
    assert np.isnan(exp(np.float32(np.nan)))
    with jax.enable_x64(True):
        assert distance(np.asarray(exp(x.astype(np.float64))), truth) <= 1e-15


@pytest.mark.parametrize("most", [2, 4, 6, 8])
@settings(max_examples=max(60, settings.default.max_examples) // 4)
@given(st.data())
def test_any_workload_under_any_schedule_matches_dense(most: int, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(most - 1, most))
    work = data.draw(workloads(longest=19))
    exact(work, data.draw(schedules(ranks)), ranks)


@pytest.mark.parametrize(
    ("dtype", "schedule"),
    [
        ("float32", "zigzag"),
        ("float32", "balanced"),
        ("bfloat16", "ring"),
        ("bfloat16", "burst"),
        ("float16", "usp"),
    ],
)
def test_each_dtype_is_exact_and_leaks_nothing(dtype: str, schedule: str) -> None:
    work = replace(SMALL, head_dim=8, mask=Causal() & Window(9), dtype=dtype)
    verdict = check(plan(schedule, work, 4, pass_="both"), "jax")
    assert verdict.leak_free, verdict.leaks
    assert verdict.exact, verdict


def test_a_backward_plan_alone_takes_the_output_of_dense_attention() -> None:
    backward = plan("allgather:keep=1", SMALL, 3, pass_="backward")
    inputs = draw(SMALL, 4)
    for found, truth in zip(
        jax_mesh.run(backward, *inputs)[1:], dense.backward(SMALL, *inputs), strict=True
    ):
        assert distance(found, truth) <= 1e-11


def test_a_forward_plan_alone_is_differentiated_by_its_adjoint() -> None:
    forward = plan("zigzag", SMALL, 3)
    inputs = draw(SMALL, 5)
    found = jax_mesh.run(forward, *inputs)
    pair = forward, adjoint(forward)
    for one, other in zip(found, jax_mesh.run(pair, *inputs), strict=True):
        assert distance(one, other) <= 1e-11


def test_rows_that_see_nothing_are_zero_and_have_no_gradient() -> None:
    work = replace(SMALL, mask=Blocks(((0, 0), (0, 1)), 20))
    out, dq, dk, _ = jax_mesh.run(plan("ring", work, 4, pass_="both"), *draw(work, 6))
    assert not out[:, :, :20].any()
    assert not dq[:, :, :20].any()
    assert not dk[:, :, :20].any()
    assert out[:, :, 20:].any()


def test_a_plan_for_more_ranks_than_devices_runs_in_a_child() -> None:
    work = replace(SMALL, seq=11, kv_seq=11)
    pair = plan("ring", work, 9, pass_="both")
    inputs = draw(work, 7)
    assert jax_mesh.program_of(*pair).devices is None
    assert distance(jax_mesh.run(pair, *inputs)[0], dense.forward(work, *inputs[:3])[0]) < 1e-12


def test_shards_hold_every_token_once_and_padding_is_minus_one() -> None:
    module = emitted(plan("zigzag", replace(SMALL, kv_seq=41), 4))
    at = np.concatenate([module.positions(r) for r in range(4)])
    assert sorted(at[at >= 0]) == list(range(37))
    x = np.arange(37.0)[None, None, :, None] + 1
    parts = [module.shard(x, rank) for rank in range(4)]
    assert {part.shape for part in parts} == {(1, 1, len(at) // 4, 1)}
    assert not np.concatenate(parts, axis=2)[0, 0, at < 0].any()
    np.testing.assert_array_equal(module.unshard(parts), x)
    y = np.arange(41.0)
    np.testing.assert_array_equal(
        module.unshard([module.shard(y, r, 0, kv=True) for r in range(4)], 0, kv=True), y
    )


# ---- what is executed is what the plan says, and the padding that the header tells


def sent(jaxpr: object, times: int = 1) -> int:
    """Messages of all collectives in a jaxpr, loop trips counted."""
    total = 0
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        if name == "ppermute":
            total += times * len(params["perm"]) * len(eqn.invars)
        elif name in ("all_gather", "all_to_all"):
            groups = params["axis_index_groups"] or [range(8)]
            total += times * sum(len(g) * (len(g) - 1) for g in groups)
        trips = params["length"] if name == "scan" else 1
        for inner in jax.extend.core.jaxprs_in_params(params):
            total += sent(inner, times * trips)
    return total


def headers(text: str) -> list[tuple[int, int]]:
    """(messages of the plan, messages sent) of each pass."""
    found = re.findall(r"(\d+) messages planned, (\d+) sent", text)
    return [(int(a), int(b)) for a, b in found]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mask", [Causal(), Window(4)], ids=str)
def test_the_header_tells_how_many_messages_are_sent(schedule: str, mask: Mask) -> None:
    work = replace(SMALL, seq=64, kv_seq=64, dtype="float32", mask=mask)
    pair = plan(schedule, work, 8, pass_="both")
    text = emit(pair, "jax")
    module = ModuleType("emitted")
    exec(text, module.__dict__)
    (planned, ahead_sent), (planned_back, back_sent) = headers(text)
    assert [planned, planned_back] == [sum(len(m) for _, m in p.moves()) for p in pair]
    tokens = 8 * len(module.positions(0))
    q, k = np.zeros((1, 4, tokens, 3), "f4"), np.zeros((1, 2, tokens, 3), "f4")

    def attend(q: object, k: object, v: object) -> object:
        return module.attention(q, k, v, mesh=mesh_of(8))

    ahead = jax.make_jaxpr(attend)(q, k, k)
    both = jax.make_jaxpr(lambda *x: jax.vjp(attend, *x)[1](x[0]))(q, k, k)
    assert sent(ahead.jaxpr) == ahead_sent
    assert sent(both.jaxpr) == ahead_sent + back_sent


def test_the_ring_exchanges_once_less_than_there_are_ranks() -> None:
    module = emitted(plan("ring", replace(SMALL, mask=Full()), 8))
    placement = module.setups(37, 37)[0].placement
    assert sum(s.turns * len(s.collectives) for s in placement.segments) == 7


def collectives(module: ModuleType) -> list[set[str]]:
    """The kinds of collectives of each pass."""
    setups = module.setups(64, 64)
    kinds = [[c[1] for s in setup.placement.segments for c in s.collectives] for setup in setups]
    return [set(some) for some in kinds]


def test_full_exchanges_and_broadcasts_are_the_collectives_made_for_them() -> None:
    work = replace(SMALL, seq=64, kv_seq=64, heads=8, kv_heads=8)
    gather = emitted(plan("allgather", work, 4, pass_="both"))
    assert collectives(gather) == [{"all-gather"}, {"all-gather", "all-to-all"}]
    ulysses = emitted(plan("ulysses", work, 4, pass_="both"))
    assert collectives(ulysses) == [{"all-to-all"}, {"all-to-all"}]
    assert collectives(emitted(plan("ring", work, 4, pass_="both"))) == [{"permute"}] * 2
