"""Every schedule of the table: what it attends, what it sends, and what the papers say of it."""

import ast
import inspect
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from planner.analysis.balance import imbalance, loads
from planner.analysis.tiles import tiles
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, INPUTS, TENSORS, Plan
from planner.schedules import SCHEDULES
from strategies import masks

NAMES = sorted(SCHEDULES)
PASSES = ["forward", "backward"]


def attended(plan: Plan) -> list[tuple[int, int, int, int]]:
    """(round, rank, q block, kv block) of every tile of every rectangle."""
    return [
        (number, rank, q, kv)
        for number, attend in plan.attends()
        for rank, qs, kvs in zip(
            attend.rank.tolist(), attend.q.tolist(), attend.kv.tolist(), strict=True
        )
        for q in qs
        for kv in kvs
        if q >= 0 and kv >= 0
    ]


@given(st.data(), st.sampled_from(NAMES), st.sampled_from(PASSES), st.integers(1, 7))
def test_nothing_travels_to_a_rank_that_has_no_use_for_it(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    mask = data.draw(masks(30, 30))
    plan = rl.plan(name, rl.Workload(seq=30, heads=4, kv_heads=2, mask=mask), P, pass_=pass_)
    table = tiles(plan)
    useful = {"q": set(), "kv": set()}
    for _, rank, q, kv in attended(plan):
        if table.live(np.array(q), np.array(kv)):
            useful["q"].add((rank, q))
            useful["kv"].add((rank, kv))
    for _, move in plan.moves():
        homes = plan.partition.side(move.side).homes
        for block, _, dst in zip(*map(np.ndarray.tolist, move.flat()), strict=True):
            at_home_again = move.accumulates and homes[block] == dst
            assert at_home_again or (dst, block) in useful[move.side], (plan, move)


@given(st.data(), st.sampled_from(NAMES), st.sampled_from(PASSES), st.integers(1, 7))
def test_dead_tiles_are_attended_only_inside_a_rectangle_with_live_edges(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    mask = data.draw(masks(30, 30))
    plan = rl.plan(name, rl.Workload(seq=30, heads=4, kv_heads=2, mask=mask), P, pass_=pass_)
    table = tiles(plan)
    for _, attend in plan.attends():
        live = table.live(attend.q[:, :, None], attend.kv[:, None, :])
        assert (live.any(axis=2) == (attend.q >= 0)).all()
        assert (live.any(axis=1) == (attend.kv >= 0)).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pass_", PASSES)
def test_one_rank_needs_nobody(name: str, pass_: str) -> None:
    plan = rl.plan(name, rl.Workload(seq=40, heads=4), 1, pass_=pass_)
    assert not list(plan.moves())
    assert plan.rounds == 1


GRID_OF_EIGHT = """
11 81 71 61 --   22 21 82 72 --   33 32 31 83 --   44 43 42 41 --
55 54 53 52 51   66 65 64 63 62   77 76 75 74 73   88 87 86 85 84
"""  # DistFlashAttn's grid for 8 workers, counted from 1: one cell "q,kv" per step


def test_the_balanced_grid_of_eight_workers_is_the_published_one() -> None:
    plan = rl.plan("balanced", rl.Workload(seq=64, heads=2), 8)
    cells = {(number, rank): (q, kv) for number, rank, q, kv in attended(plan)}
    grid = [
        "".join(map(str, (x + 1 for x in cells[step, rank]))) if (step, rank) in cells else "--"
        for rank in range(8)
        for step in range(5)
    ]
    assert grid == GRID_OF_EIGHT.split()
    assert plan.rounds == 5


def test_balanced_with_eight_workers_sends_22_keys_6_queries_and_6_results() -> None:
    plan = rl.plan("balanced", rl.Workload(seq=64, heads=2), 8)
    sent = Counter[str]()
    for _, move in plan.moves():
        sent[move.tensors[0]] += len(move)
    assert sent == {"KV": 22, "Q": 6, "OUT": 6}


@pytest.mark.parametrize("P", range(2, 12))
def test_balanced_needs_half_the_rounds_of_a_ring(P: int) -> None:
    plan = rl.plan("balanced", rl.Workload(seq=8 * P, heads=2), P)
    assert plan.rounds == P // 2 + 1
    cells = Counter(rank for _, rank, _, _ in attended(plan))
    idle = P * plan.rounds - sum(cells.values())
    assert idle == (0 if P % 2 else P // 2)  # of P * P cells: 0 or 1/(2P), as published


@pytest.mark.parametrize(("P", "c"), [(2, 5), (4, 8), (5, 3)])
def test_striped_tiles_hold_the_published_work(P: int, c: int) -> None:
    plan = rl.plan("striped", rl.Workload(seq=P * c, heads=1), P)
    areas = tiles(plan).areas
    for j in range(P):
        for k in range(P):
            assert areas[j, k] == (c * (c + 1) // 2 if j >= k else c * (c - 1) // 2)


def test_a_causal_ring_waits_in_every_round_for_a_full_block_and_stripes_do_not() -> None:
    P, c = 8, 64
    ring, striped = (rl.plan(s, rl.Workload(seq=P * c, heads=1), P) for s in ("ring", "striped"))
    assert loads(ring).max(axis=1).tolist() == [c * (c + 1) // 2, *[c * c] * (P - 1)]
    assert loads(striped).max(axis=1).tolist() == [c * (c + 1) // 2] * P
    assert imbalance(ring) > 1.85
    assert imbalance(striped) < 1.02


@pytest.mark.parametrize("P", [2, 3, 8])
def test_a_full_ring_sends_every_block_over_every_link_but_one(P: int) -> None:
    work = rl.Workload(seq=16 * P, heads=2, mask=rl.Full())
    forward, backward = rl.plan("ring", work, P, pass_="both")
    assert sum(len(m) for _, m in forward.moves()) == P * (P - 1)
    kinds = Counter[str]()
    for _, move in backward.moves():
        kinds[move.tensors[0]] += len(move)
    assert kinds == {"KV": P * (P - 1), "DKV": P * P}  # DKV goes all the way home


@pytest.mark.parametrize("name", NAMES)
def test_inputs_travel_before_and_results_after(name: str) -> None:
    for pass_ in PASSES:
        plan = rl.plan(name, rl.Workload(seq=48, heads=4), 4, pass_=pass_)
        for _, move in plan.moves():
            assert set(move.tensors) <= {*INPUTS[pass_], *ACCUMULATORS[pass_]}
            if move.side == "q" and not move.accumulates:
                left = any(held.tensors == ("OUT",) for held in plan.start)  # and Q beside it
                backward = ("DOUT",) if left else ("Q", "DOUT", "STATS")
                assert move.tensors == (("Q",) if pass_ == "forward" else backward)


def test_burst_moves_queries_backward_and_never_a_key() -> None:
    plan = rl.plan("burst", rl.Workload(seq=64, heads=4), 4, pass_="backward")
    assert {TENSORS[m.tensors[0]].side for _, m in plan.moves()} == {"q"}


def test_a_gathered_copy_that_is_kept_is_not_sent_again() -> None:
    work = rl.Workload(seq=64, heads=4)
    again = rl.plan("allgather", work, 4, pass_="backward")
    kept = rl.plan("allgather:keep=1", work, 4, pass_="backward")
    assert any("KV" in m.tensors for _, m in again.moves())
    assert not any("KV" in m.tensors for _, m in kept.moves())
    assert sum(h.blocks.size for h in kept.start) > 0


@pytest.mark.parametrize(
    ("heads", "kv_heads", "P", "slices"),
    [(33, 33, 16, [3] + [2] * 15), (4, 2, 5, [1, 1, 1, 1]), (8, 1, 4, [2, 2, 2, 2])],
)
def test_ulysses_pads_no_heads(heads: int, kv_heads: int, P: int, slices: list[int]) -> None:
    work = rl.Workload(seq=4 * P, heads=heads, kv_heads=kv_heads, head_dim=8)
    plan = rl.plan("ulysses", work, P)
    assert [len(s) for s in plan.partition.q.slices] == slices


def test_ulysses_keeps_the_sequence_in_order() -> None:
    plan = rl.plan("ulysses", rl.Workload(seq=12, heads=4, head_dim=8), 4)
    assert plan.partition.q.order(4).tolist() == list(range(12))


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("spiral", "unknown schedule 'spiral': choose one of ring"),
        ("ring:grain=2", "grain=2 is for stripes"),
        ("striped:width=2", "striped has no parameter 'width'; its parameters: layout, grain"),
        ("striped:grain=wide", "striped:grain takes a whole number, not 'wide'"),
        ("burst:layout=3", "burst:layout takes a word, not 3"),
        ("burst:layout=spiral", "unknown layout 'spiral'"),
        ("usp:ulysses=3", "ulysses=3 x ring=1 is 3, not 4 ranks"),
        ("usp:ulysses=-1", "usp:ulysses takes a whole number, not '-1'"),
    ],
)
def test_bad_schedules_are_refused_by_name(spelled: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rl.plan(spelled, rl.Workload(seq=64, heads=4), 4)


def _source(name: str) -> Path:
    build = SCHEDULES[name].build
    return Path(inspect.getfile(build.func if isinstance(build, partial) else build))


def test_the_median_schedule_is_under_forty_lines_and_draws_what_travels() -> None:
    lines = [len(_source(name).read_text().splitlines()) for name in NAMES]
    assert median(lines) < 40
    for name in NAMES:
        drawn = ast.get_docstring(ast.parse(_source(name).read_text()))
        assert drawn is not None
        assert {"->", "travels"} & set(drawn.split()), f"{name} does not draw what travels"
