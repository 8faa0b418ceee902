"""Adjoints: backward plans derived from forward plans, and what they hold of these."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from plain.test_passes import CAUSAL, WORK, flat, hand_made, names, ranks
from ringloom.planner.analysis.liveness import occupancy, slots
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.layouts import LAYOUTS
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.planning import run_passes
from ringloom.planner.plans import Plans
from ringloom.planner.schedules import SCHEDULES
from ringloom.planner.verify import verify, verify_pair
from strategies import masks, schedules, workloads


@given(st.data(), names, ranks)
def test_the_adjoint_of_any_forward_plan_is_a_backward_plan(
    data: st.DataObject, name: str, P: int
) -> None:
    mask = data.draw(masks(24, 24))
    forward = rl.plan(name, replace(WORK, mask=mask), P)
    backward = verify(adjoint(forward))
    assert backward.pass_ == "backward"
    assert [a for _, a in backward.attends()] == [a for _, a in forward.attends()]


def routes(plan: Plan, tensor: str) -> set[tuple[int, int, int]]:
    """(block, src, dst) of all messages of a tensor."""
    return {(b, src, dst) for _, tensors, b, src, dst in flat(plan) if tensors == (tensor,)}


def test_gradients_go_along_with_their_keys_and_from_the_last_rank_home() -> None:
    forward = SCHEDULES["ring"].build(WORK, 4, "forward")
    backward = verify(adjoint(forward))
    assert len(backward.steps) == len(forward.steps) + 1  # one step behind
    way, back = routes(forward, "KV"), routes(backward, "DKV")
    onward = {(b, src, dst) for b, src, dst in way if src != b}
    assert onward < back
    assert back - onward == {(b, (b - 1) % 4, b) for b in range(4)}


def test_gradients_of_copies_that_spread_go_back_over_the_reversed_routes() -> None:
    """Rank 0 sends its keys to rank 1, which passes them on to ranks 2 and 3."""
    r = np.arange(4)
    first, rest = Move(("KV",), [[0]], [0], [1]), Move(("KV",), [[0], [0]], [1, 1], [2, 3])
    attends = [Attend(r[:n], r[:n, None], np.zeros((n, 1), int)) for n in (1, 2, 4)]
    parts = attends[0], attends[1].select(r[:2] == 1), attends[2].select(r >= 2)
    steps = Step((parts[0],), (first,)), Step((parts[1],), (rest,)), Step((parts[2],), ())
    back = routes(adjoint(hand_made(CAUSAL, 4, "forward", *steps)), "DKV")
    assert back == {(0, 2, 1), (0, 3, 1), (0, 1, 0)}


@pytest.mark.parametrize(
    ("plan", "keep", "message"),
    [
        (rl.plan("ring", WORK, 3, pass_="backward"), (), "adjoint takes a forward plan"),
        (rl.plan("ring", WORK, 3), ("DOUT",), "adjoint can keep Q, KV, OUT, not DOUT"),
        (
            hand_made(WORK, 2, "forward", start=(InitialCopy(("Q",), [[0]], [1]),)),
            (),
            "DOUT and STATS cannot follow initial copies of Q",
        ),
    ],
)
def test_adjoint_refuses_what_it_cannot_derive(plan: Plan, keep: tuple, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        adjoint(plan, keep=keep)


def test_copies_that_are_never_used_bring_no_sums_back() -> None:
    here = Attend([0, 1], [[0], [1]], [[0], [1]])
    rest = Attend([1], [[1]], [[0]])
    swap = Move(("KV",), [[0], [1]], [0, 1], [1, 0])
    plan = hand_made(CAUSAL, 2, "forward", Step((here,), (swap,)), Step((rest,), ()))
    sums = [m for _, m in verify(adjoint(verify(plan))).moves() if m.accumulates]
    assert sums == [Move(("DKV",), [[0]], [1], [0])]


def test_sums_wait_for_the_last_of_several_that_come_to_a_rank() -> None:
    """Keys go from rank 0 to 1, from there to 3 and 2, and from 3 to 4; sums of 4 come last."""
    work = replace(WORK, seq=20, kv_seq=20, mask=rl.Keys(4))
    ways = [([0], [1]), ([1, 1], [3, 2]), ([3], [4])]
    steps = [Step((), (Move(("KV",), [[0]] * len(src), src, dst),)) for src, dst in ways]
    every = Attend([*range(5)], [[rank] for rank in range(5)], [[0]] * 5)
    forward = verify(hand_made(work, 5, "forward", *steps, Step((every,), ())))
    for keep in ((), ("KV",)):
        verify_pair(forward, verify(adjoint(forward, keep)))


@given(st.data(), names, ranks)
def test_the_adjoint_that_keeps_all_is_a_backward_plan_of_its_forward(
    data: st.DataObject, name: str, P: int
) -> None:
    forward = rl.plan(name, replace(WORK, mask=data.draw(masks(24, 24))), P)
    backward = run_passes(adjoint(forward, keep=("Q", "KV", "OUT")))
    verify_pair(forward, backward)
    carried = {t for _, m in backward.moves() for t in m.tensors}
    assert not carried & {"Q", "KV"}
    if name == "ulysses":  # every result is finished where it is made
        assert carried <= {"DOUT", "DQ", "DKV"}


def test_out_is_left_only_where_it_is_finished() -> None:
    """A helper's part of a result is no result: DOUT goes there with STATS."""
    forward = rl.plan("balanced", replace(CAUSAL, seq=60, kv_seq=60), 5)
    backward = run_passes(adjoint(forward, keep=("Q", "KV", "OUT")))
    assert not any(held.tensors == ("OUT",) for held in backward.start)
    assert ("DOUT", "STATS") in {m.tensors for _, m in backward.moves()}


@given(st.data(), workloads(), st.integers(1, 8), st.sampled_from(["messages", "blocks"]))
def test_a_backward_pass_holds_what_its_forward_pass_left(
    data: st.DataObject, work: rl.Workload, P: int, trim_: str
) -> None:
    degrees = [u for u in range(1, P + 1) if P % u == 0]
    sharded = f"usp:layout={data.draw(st.sampled_from(sorted(LAYOUTS)))}"
    sharded = f"{sharded}:ulysses={data.draw(st.sampled_from(degrees))}"
    name = data.draw(st.one_of(st.just(sharded), schedules(P)))
    forward, backward = rl.plan(name, work, P, pass_="both", trim=trim_)
    assert verify_pair(forward, backward) == Plans(forward, backward)


@pytest.mark.parametrize("trim_", ["messages", "blocks"])
def test_a_copy_that_was_not_sharded_to_be_passed_on_is_not_held_for_that_either(
    trim_: str,
) -> None:
    mask = rl.Window(None, 1) & rl.Global(3)
    work = rl.Workload(seq=3, kv_seq=4, heads=15, kv_heads=5, mask=mask)
    _, backward = rl.plan("usp:layout=striped:ulysses=2", work, 6, pass_="both", trim=trim_)
    held = {
        (b, r) for h in backward.start if "KV" in h.tensors for b, r in zip(*h.flat(), strict=True)
    }
    assert held == {(1, 1), (2, 1), (7, 3), (8, 3), (13, 5), (14, 5)}


@pytest.mark.parametrize("P", [3, 4, 8])
def test_a_ring_needs_two_slots_and_its_travelling_sums_three(P: int) -> None:
    work = replace(WORK, seq=8 * P, kv_seq=8 * P)
    forward, backward = rl.plan("ring", work, P, pass_="both")
    assert slots(forward, "KV").max() == 2
    assert slots(backward, "KV").max() == 2
    assert slots(backward, "DKV").max() == 3
    assert slots(forward, "OUT").max() == 0  # results are at their owners from the first


def test_a_copy_lives_from_its_arrival_to_its_last_use() -> None:
    work = replace(WORK, seq=6, kv_seq=6)
    send, onward = Move(("KV",), [[0]], [0], [1]), Move(("KV",), [[0]], [1], [2])
    idle = Step((Attend([0], [[0]], [[0]]),), ())  # nothing travels in it
    plan = hand_made(
        work,
        3,
        "forward",
        Step((), (send,)),
        idle,
        Step((Attend([1], [[1]], [[0]]),), ()),
        Step((), (onward,)),
        Step((Attend([2], [[2]], [[0]]),), ()),
        idle,
    )
    held = slots(plan, "KV")
    assert held[:, 0].tolist() == [0] * 6
    assert held[:, 1].tolist() == [1, 1, 1, 1, 0, 0]
    assert held[:, 2].tolist() == [0, 0, 0, 1, 1, 0]
    assert (occupancy(plan, "KV", np.array([7, 1, 1])) == 7 * held).all()
