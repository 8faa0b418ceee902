"""Passes: each keeps a plan exact for the verifier, and does what its docstring draws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from planner.errors import PlanError
from planner.ir import Attend, Held, Move, Plan, Step
from planner.liveness import occupancy, slots
from planner.passes.adjoint import adjoint
from planner.passes.homeward import direct, homeward
from planner.passes.trim import drop_dead, drop_empty, drop_unused, trim
from planner.schedules import SCHEDULES
from planner.verify import verify
from strategies import masks

names, passes, ranks = (
    st.sampled_from(sorted(SCHEDULES)),
    st.sampled_from(["forward", "backward"]),
    st.integers(1, 7),
)
WORK = rl.Workload(seq=24, heads=2, head_dim=8, mask=rl.Full())
CAUSAL = replace(WORK, mask=rl.Causal())


def contiguous(work: rl.Workload, P: int) -> rl.Partition:
    return SCHEDULES["ring"].build(work, P, "forward").partition


def hand_made(work: rl.Workload, P: int, pass_: str, *steps: Step, start: tuple = ()) -> Plan:
    return Plan("hand-made", work, P, contiguous(work, P), pass_, start, (), steps)


@given(st.data(), names, passes, ranks)
def test_any_order_of_the_passes_stays_exact(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    mask = data.draw(masks(24, 24))
    built = SCHEDULES[name].build(replace(WORK, mask=mask), P, pass_)
    for rewrite in data.draw(st.permutations([homeward, direct, trim])):
        built = verify(rewrite(trim(built)))


@given(st.data(), names, ranks)
def test_the_adjoint_of_any_forward_plan_is_a_backward_plan(
    data: st.DataObject, name: str, P: int
) -> None:
    mask = data.draw(masks(24, 24))
    forward = rl.plan(name, replace(WORK, mask=mask), P)
    backward = verify(adjoint(forward))
    assert backward.pass_ == "backward"
    assert [a for _, a in backward.attends()] == [a for _, a in forward.attends()]


@given(st.data(), names, passes, ranks)
def test_trimming_twice_changes_nothing(data: st.DataObject, name: str, pass_: str, P: int) -> None:
    mask = data.draw(masks(24, 24))
    once = trim(SCHEDULES[name].build(replace(WORK, mask=mask), P, pass_))
    assert trim(once) == once


def test_trim_drops_dead_tiles_unused_copies_and_empty_hand_overs() -> None:
    q, kv = Attend([0], [[0]], [[0]]), Attend([0], [[0]], [[1]])
    copy, empty = Move(("KV",), [[1]], [1], [0]), Move(("OUT",), [[1]], [0], [1])
    other = Attend([1], [[1]], [[1]]), Attend([1], [[1]], [[0]])
    back = Move(("KV",), [[0]], [0], [1])
    plan = hand_made(
        CAUSAL, 2, "forward", Step((q, other[0]), (copy, back)), Step((kv, other[1]), (empty,))
    )
    assert [a for _, a in drop_dead(plan).attends()] == [q, *other]
    assert [m for _, m in drop_unused(drop_dead(plan)).moves()] == [back, empty]
    assert [m for _, m in drop_empty(plan).moves()] == [copy, back]
    assert trim(plan).steps == (Step((q, other[0]), (back,)), Step((other[1],), ()))


def test_homeward_sends_a_finished_sum_straight_home() -> None:
    ring = trim(SCHEDULES["ring"].build(replace(CAUSAL, seq=32, kv_seq=32), 4, "backward"))
    long = {
        (int(b[0]), int(d))
        for _, m in ring.moves()
        if m.accumulates
        for b, d in zip(m.blocks, m.dst, strict=True)
    }
    short = homeward(ring)
    direct_home = {
        (int(b[0]), int(d))
        for _, m in short.moves()
        if m.accumulates
        for b, d in zip(m.blocks, m.dst, strict=True)
    }
    assert (2, 0) in long  # past rank 0, which adds nothing to block 2
    assert (2, 0) not in direct_home
    assert (2, 2) in direct_home
    verify(short)


def test_a_sum_waits_where_it_is_until_its_next_contribution() -> None:
    mask = rl.Blocks(((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 1)), 6)
    built = trim(SCHEDULES["ring"].build(replace(WORK, mask=mask), 4, "backward"))
    plan = verify(homeward(built))
    hops = [(n, *map(int, (m.src[0], m.dst[0]))) for n, m in plan.moves() if m.tensors == ("DKV",)]
    assert hops == [(3, 0, 3), (4, 3, 0)]  # rank 0 keeps it until rank 3 is about to add to it
    assert sum(len(m) for _, m in built.moves() if m.accumulates) == 16  # all around the ring


def test_direct_skips_ranks_that_only_pass_a_copy_on() -> None:
    mask = rl.Blocks(((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 1)), 6)
    built = trim(SCHEDULES["ring"].build(replace(WORK, mask=mask), 4, "forward"))
    assert sum(len(m) for _, m in built.moves()) == 3  # 0 -> 1 -> 2 -> 3
    assert [m for _, m in direct(built).moves()] == [Move(("KV",), [[0]], [0], [3])]


def test_adjoint_reverses_the_routes_of_the_keys() -> None:
    forward = SCHEDULES["ring"].build(WORK, 3, "forward")
    backward = verify(adjoint(forward))
    out = {
        (int(b), int(s), int(d))
        for _, m in forward.moves()
        for b, s, d in zip(*m.flat(), strict=True)
    }
    back = {
        (int(b), int(d), int(s))
        for _, m in backward.moves()
        if m.accumulates
        for b, s, d in zip(*m.flat(), strict=True)
    }
    assert out == back


@pytest.mark.parametrize(
    ("plan", "keep", "message"),
    [
        (rl.plan("ring", WORK, 3, pass_="backward"), (), "adjoint takes a forward plan"),
        (rl.plan("ring", WORK, 3), ("OUT",), "adjoint can keep KV, not OUT"),
        (
            hand_made(
                CAUSAL,
                2,
                "forward",
                Step((Attend([0, 1], [[0], [1]], [[0], [1]]),), (Move(("KV",), [[1]], [1], [0]),)),
            ),
            (),
            "1 copies are never used; trim the plan first",
        ),
        (
            hand_made(WORK, 2, "forward", start=(Held(("Q",), [[0]], [1]),)),
            (),
            "DOUT and STATS cannot follow a held Q",
        ),
    ],
)
def test_adjoint_refuses_what_it_cannot_derive(plan: Plan, keep: tuple, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        adjoint(plan, keep=keep)


@pytest.mark.parametrize("P", [3, 4, 8])
def test_a_ring_needs_two_slots_and_its_travelling_sums_three(P: int) -> None:
    work = replace(WORK, seq=8 * P, kv_seq=8 * P)
    forward, backward = rl.plan("ring", work, P, pass_="both")
    assert slots(forward, "KV").max() == 2
    assert slots(backward, "KV").max() == 2
    assert slots(backward, "DKV").max() == 3
    assert slots(forward, "OUT").max() == 0  # results are at home from the first


def test_a_copy_lives_from_its_arrival_to_its_last_use() -> None:
    work = replace(WORK, seq=6, kv_seq=6)
    send, onward = Move(("KV",), [[0]], [0], [1]), Move(("KV",), [[0]], [1], [2])
    plan = hand_made(
        work,
        3,
        "forward",
        Step((), (send,)),
        Step(),
        Step((Attend([1], [[1]], [[0]]),), ()),
        Step((), (onward,)),
        Step((Attend([2], [[2]], [[0]]),), ()),
        Step(),
    )
    held = slots(plan, "KV")
    assert held[:, 0].tolist() == [0] * 6
    assert held[:, 1].tolist() == [1, 1, 1, 1, 0, 0]
    assert held[:, 2].tolist() == [0, 0, 0, 1, 1, 0]
    assert (occupancy(plan, "KV", np.array([7, 1, 1])) == 7 * held).all()


def test_the_pass_that_broke_a_plan_is_the_one_that_is_told_of() -> None:
    """Whatever a later one makes of it: here it cannot go on, or breaks something else."""

    def forget(plan: Plan) -> Plan:
        return replace(plan, steps=plan.steps[1:])

    def narrow(plan: Plan) -> Plan:
        return replace(plan, buffers=(("KV", 0),))

    def stumble(plan: Plan) -> Plan:
        raise IndexError(plan.name)

    work = rl.Workload(seq=64, heads=4, mask=rl.Causal())
    for later in (), (stumble,), (narrow,):
        with pytest.raises(PlanError, match="block 0 never comes there"):
            rl.plan("ring", work, 4, passes=(trim, forget, *later))
    with pytest.raises(PlanError, match="buffers allow 0"):
        rl.plan("ring", work, 4, passes=(trim, narrow))
    with pytest.raises(IndexError):
        rl.plan("ring", work, 4, passes=(trim, stumble))
