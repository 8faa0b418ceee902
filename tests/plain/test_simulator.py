"""Predictions: laws that hold for every plan, and numbers known from the papers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain.test_simulator_reference import crowded, machines, plans
from ringloom.planner.errors import PlanError, RingloomError
from ringloom.planner.ir import Plan
from ringloom.planner.masks import Blocks, Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import Hardware, hardware, presets
from ringloom.simulator.memory import memory
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.timeline import spans

A100 = hardware("a100-nvlink")
LONG = Workload(seq=2**18, heads=32, head_dim=128)
FREE_LINKS = {"intra.alpha": 0, "intra.bandwidth": 1e30, "inter.alpha": 0, "inter.bandwidth": 1e30}
RATES = ["intra.bandwidth", "inter.bandwidth", "peak.float64", "peak.bfloat16"]
ROUNDING = 1 + 1e-9


@given(plans() | crowded(), machines)
def test_overlap_is_never_slower_where_transfers_take_nothing_from_the_chip(
    one: Plan, machine: Hardware
) -> None:
    with_, without = (simulate(one, machine, overlap=o, share=0.0) for o in (True, False))
    assert with_.makespan <= without.makespan * ROUNDING
    np.testing.assert_allclose(with_.busy, without.busy)


@given(plans() | crowded(), machines, st.sampled_from(RATES), st.floats(1, 1e6), st.booleans())
def test_more_bandwidth_and_a_faster_chip_are_never_slower(
    one: Plan, machine: Hardware, rate: str, times: float, overlap: bool
) -> None:
    faster = machine.changed({rate: machine[rate] * times})
    before, after = (simulate(one, m, overlap=overlap) for m in (machine, faster))
    assert after.makespan <= before.makespan * ROUNDING


@given(plans() | crowded(), machines, st.booleans())
def test_fractions_waits_and_sums_make_sense(one: Plan, machine: Hardware, overlap: bool) -> None:
    prediction = simulate(one, machine, overlap=overlap)
    assert 0.0 <= prediction.idle_fraction <= 1.0
    assert 0.0 <= prediction.exposed <= prediction.makespan * ROUNDING
    assert (prediction.busy <= prediction.makespan * ROUNDING).all()
    assert prediction.max_bytes_sent == prediction.bytes_sent.max()
    assert prediction.messages == sum(len(move) for _, move in one.moves())
    assert prediction.rounds == one.rounds


@given(plans(), machines)
def test_a_pair_sums_times_and_bytes_and_takes_the_larger_peak(
    one: Plan, machine: Hardware
) -> None:
    pair = plan(one.name, one.workload, one.ranks, pass_="both")
    parts, both = [simulate(p, machine) for p in pair], simulate(pair, machine)
    summed = (
        "makespan",
        "exposed",
        "max_bytes_sent",
        "bound",
        "plan_lower_bound",
        "busiest_link",
    )
    for name in (*summed, "rounds", "messages"):
        assert getattr(both, name) == getattr(parts[0], name) + getattr(parts[1], name)
    assert both.peak_bytes == max(p.peak_bytes for p in parts)
    np.testing.assert_array_equal(both.busy, parts[0].busy + parts[1].busy)
    idle = sum(p.idle_fraction * p.makespan for p in parts)
    assert both.idle_fraction * both.makespan == pytest.approx(idle, abs=1e-9 * both.makespan)
    assert [p.makespan for p in both.passes] == [p.makespan for p in parts]


@given(plans(), machines)
def test_a_row_is_plain_json(one: Plan, machine: Hardware) -> None:
    row = simulate(one, machine).as_row()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert list(row) == [
        *("makespan_s", "idle_fraction", "exposed_comm_s", "max_bytes_sent", "peak_bytes"),
        *("bound_s", "bound_ratio", "bound_reason"),
        *("compute_bound_s", "compute_bound_ratio", "own_limit_s"),
    ]


@pytest.mark.parametrize("name", presets())
def test_every_preset_simulates_by_name_forward_and_backward(name: str) -> None:
    both = simulate(plan("zigzag", LONG, 8, pass_="both"), name)
    assert both.hardware == name
    assert both.bound_ratio is not None
    assert 1.0 <= both.bound_ratio < 3.0
    assert 2.4 < both.passes[1].makespan / both.passes[0].makespan < 4.0


def test_a_causal_ring_wastes_nearly_half_of_eight_gpus() -> None:
    prediction = {
        s: simulate(plan(s, LONG, 8), A100)
        for s in ("ring", "striped", "zigzag", "balanced", "burst")
    }
    ring = prediction.pop("ring")
    assert 0.4 < ring.idle_fraction < 0.5
    for name, other in prediction.items():
        gain = {"balanced": 1.6, "striped": 1.7}.get(name, 1.75)  # rests at the end; half tiles
        assert gain < ring.makespan / other.makespan < 15 / 8


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_stripes_gain_what_the_pairs_say_when_links_and_tiles_cost_nothing(ranks: int) -> None:
    """Striped Attention's theoretical maximum, attention alone: the critical path in pairs."""
    c = 64
    work = Workload(seq=c * ranks, heads=2, head_dim=16)
    ideal = {"attention.host": 0, "attention.tile_q": 1, "attention.tile_kv": 1}
    ideal |= {"attention.traffic": 0, "attention.causal": 1}
    machine = A100.changed({**FREE_LINKS, **ideal, "memory.bandwidth": 1e30})
    times = [simulate(plan(s, work, ranks), machine).makespan for s in ("ring", "striped")]
    pairs = c * (c + 1) // 2 + (ranks - 1) * c**2, ranks * c * (c + 1) // 2
    assert times[0] / times[1] == pytest.approx(pairs[0] / pairs[1], rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_holds_one_q_two_kv_and_one_output_block(ranks: int) -> None:
    """Ring Attention counts 6bch 16-bit elements: Q, K and V current and arriving, output.

    Ours differs in two ways: the output is kept in 32 bits with its log-sum-exp, and from the
    second round on the owner's own K and V, which the backward pass needs, are there as well.
    """
    work = Workload(seq=1024 * ranks, heads=4, head_dim=32, batch=3, mask=Full())
    b, c, h = work.batch, 1024, work.heads * work.head_dim
    wider = 2 * b * c * h + 4 * b * c * work.heads
    kept = 2 * (2 * b * c * h) if ranks > 2 else 0
    used = memory(plan("ring", work, ranks))
    assert used.peak.tolist() == [2 * (6 * b * c * h) + wider + kept] * ranks
    assert (used.live.argmax(axis=0) == (1 if ranks > 2 else 0)).all()


def test_memory_over_time_begins_with_what_is_owned_and_its_peak_is_its_maximum() -> None:
    used = memory(plan("allgather", LONG, 8, pass_="backward"))
    assert (used.live >= used.owned).all()
    assert (used.live.max(axis=0) == used.peak).all()


def test_ranks_fill_nodes_in_order_and_the_slow_links_show() -> None:
    one, two = (A100.changed({"node.ranks": n, "inter.bandwidth": 1e9}) for n in (8, 4))
    near, far = (simulate(plan("striped", LONG, 8), machine) for machine in (one, two))
    assert far.makespan > 2 * near.makespan
    assert far.busiest_link == pytest.approx(near.busiest_link * 240)
    assert far.plan_lower_bound == far.busiest_link


def test_exposure_is_the_gather_where_nothing_can_hide_it() -> None:
    prediction = simulate(plan("allgather", LONG, 8), A100)
    assert prediction.exposed == pytest.approx(prediction.busiest_link, rel=0.01)
    assert simulate(plan("zigzag", LONG, 8), A100).exposed == 0.0


def test_a_rank_without_work_that_awaits_results_is_idle_but_not_exposed() -> None:
    """Rank 0 of a causal ring waits for its gradients until the last rank has computed them."""
    prediction = simulate(plan("ring", LONG, 8, pass_="backward"), A100)
    assert prediction.idle_fraction > 0.4
    assert prediction.exposed < 0.01 * prediction.makespan


def timed(one: Prediction) -> list[tuple[str, int, int]]:
    assert one.timeline is not None
    return [(s.stream, s.rank, s.step) for s in spans(one.timeline)]


def test_spans_tell_the_story_of_a_small_ring() -> None:
    prediction = simulate(plan("ring", Workload(seq=2048, heads=2, mask=Full()), 2), A100)
    assert prediction.timeline is not None
    named = {s.name: s for s in spans(prediction.timeline) if s.rank == 1}
    assert list(named) == [
        *("receive KV 0 from 0", "send KV 1 to 0"),
        *("attend q 1 x kv 1", "attend q 1 x kv 0", "merge q 1 x kv 0"),
    ]
    assert named["attend q 1 x kv 0"].start >= named["receive KV 0 from 0"].end
    assert ("compute", 0, 1) in timed(prediction)


def test_large_plans_keep_their_sums_but_neither_rows_nor_steps() -> None:
    prediction = simulate(plan("ring", LONG, 8), A100, record=False)
    assert prediction.timeline is not None
    assert prediction.timeline.begin.shape == (8, 8)
    with pytest.raises(RingloomError, match="not kept"):
        spans(prediction.timeline)
    with pytest.raises(RingloomError, match="times of 8 steps on 8 ranks were not kept"):
        replace(prediction.timeline, steps=None).begin.sum()


def test_nothing_to_do_takes_no_time() -> None:
    work = Workload(seq=64, mask=Blocks(((False,),), 64))
    prediction = simulate(plan("ring", work, 4), A100)
    assert (prediction.makespan, prediction.idle_fraction, prediction.bound_ratio) == (
        0.0,
        0.0,
        1.0,
    )
    backward = simulate(plan("ring", work, 4, pass_="backward"), A100).bound_ratio
    assert backward is None


def test_a_plan_that_reads_what_never_comes_is_refused() -> None:
    whole = plan("ring", LONG, 4)
    broken = replace(whole, steps=(replace(whole.steps[0], moves=()), *whole.steps[1:]))
    with pytest.raises(
        PlanError, match="step 1: rank 1 sends KV to rank 2, but block 0 never arrives there"
    ):
        simulate(broken, A100)


def test_a_thousand_ranks_are_simulated_by_columns() -> None:
    prediction = simulate(plan("striped", Workload(seq=2**16, heads=1), 256), "h100")
    assert prediction.messages == 255 * 256
    assert prediction.timeline is not None
    assert prediction.timeline.rows is None or len(prediction.timeline.rows) < 5 * 256
