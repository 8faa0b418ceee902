"""The verifier: what it refuses, and how it says where."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import ringloom as rl
from ringloom.planner.analysis.liveness import slots
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS, INPUTS, Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.verify import verify, verify_pair

WORK = rl.Workload(seq=12, heads=4, kv_heads=2, head_dim=8, mask=rl.Full())
RING = rl.plan("ring", WORK, 3)
BACKWARD = rl.plan("ring", WORK, 3, pass_="backward")


def with_step(plan: Plan, number: int, change: Callable[[Step], Step]) -> Plan:
    """The plan with one step changed and no promise about buffers."""
    steps = [change(step) if n == number else step for n, step in enumerate(plan.steps)]
    return replace(plan, steps=tuple(steps), buffers=())


def adding(*moves: Move) -> Callable[[Step], Step]:
    return lambda step: Step(step.attends, (*step.moves, *moves))


def attending(*attends: Attend) -> Callable[[Step], Step]:
    return lambda step: Step((*step.attends, *attends), step.moves)


def only(attends: tuple = (), moves: tuple = ()) -> Callable[[Step], Step]:
    return lambda _: Step(attends, moves)


KV, DKV = ("KV",), ("DKV",)
LEFT = rl.plan("ulysses", WORK, 3, pass_="backward")  # starts from Q, KV and OUT


def made(plan: Plan) -> tuple[object, object]:
    """Where OUT is held, so that STATS are made."""
    held = next(h for h in plan.start if h.tensors == ("OUT",))
    return held.blocks, held.rank


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            with_step(RING, 1, lambda s: Step((), s.moves)),
            "q block 0 never attends kv block 2; 3 live tiles of 9 are missing",
        ),
        (
            with_step(RING, 2, attending(Attend([1], [[1]], [[1]]))),
            "step 2: rank 1 attends q block 1 x kv block 1, which rank 1 attends in step 0",
        ),
        (
            with_step(RING, 0, lambda s: Step(s.attends, ())),
            "step 1: rank 0 sends KV to rank 1, but block 2 never arrives there",
        ),
        (
            with_step(RING, 0, attending(Attend([0], [[0]], [[1]]))),
            "step 0: rank 0 attends KV, but block 1 is readable there only from step 2",
        ),
        (
            with_step(RING, 1, adding(Move(KV, [[0]], [0], [1]))),
            "step 1: rank 1 is sent KV block 0 a second time",
        ),
        (
            with_step(RING, 0, only((), (Move(KV, [[0], [0]], [0, 0], [1, 1]),))),
            "step 0: rank 1 is sent KV block 0 a second time",
        ),
        (
            with_step(BACKWARD, 0, adding(Move(DKV, [[0]], [1], [0]))),
            "step 0: rank 1 sends DKV block 0 but holds none",
        ),
        (
            with_step(BACKWARD, 1, adding(Move(DKV, [[0]], [0], [2]))),
            "step 1: rank 0 sends DKV block 0 twice in one step",
        ),
        (
            with_step(BACKWARD, 3, lambda s: Step(s.attends, ())),
            "still holds DKV block .* whose owner is rank .*; 3 such blocks in total",
        ),
        (
            replace(RING, buffers=(("KV", 1),)),
            "step 0: rank 0 needs 2 slots for KV, but buffers allow 1|needs 2 slots for KV",
        ),
        (
            with_step(
                BACKWARD, 3, lambda s: Step(s.attends, (Move(DKV, [[0, 1]] * 2, [0, 1], [1, 2]),))
            ),
            "step 3: rank 1 sends DKV block 0, 1 but holds none",
        ),
        (
            replace(LEFT, start=(*LEFT.start, InitialCopy(("STATS",), *made(LEFT)))),
            "step 1: rank 1 is sent STATS block 1 a second time",
        ),
        (
            replace(LEFT, start=tuple(h for h in LEFT.start if h.tensors != ("OUT",))),
            "attends STATS, but block .* never arrives there",
        ),
        (
            replace(RING, start=(InitialCopy(KV, [[0]], [0]),)),
            "start: rank 0 is sent KV block 0 a second time",
        ),
    ],
)
def test_a_broken_plan_is_refused_with_step_rank_and_block(plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        verify(plan)


def test_a_rectangle_with_a_dead_edge_is_refused() -> None:
    causal = replace(RING, workload=replace(WORK, mask=rl.Causal()), buffers=())
    with pytest.raises(PlanError, match="step 1: rank 0 attends q block 0, which has no live tile"):
        verify(causal)


def test_a_rectangle_names_a_block_once_and_one_head_slice_per_side() -> None:
    plan = rl.plan("ulysses", WORK, 2)
    attend = next(a for _, a in plan.attends())
    number = next(n for n, s in enumerate(plan.steps) if s.attends)
    q = np.column_stack([attend.q, [attend.q[0, 0], *[-1] * (len(attend) - 1)]])
    twice = Attend(attend.rank, q, attend.kv)
    again = f"rank 0 attends q block {attend.q[0, 0]} x kv block .*, which rank 0 attends in step"
    with pytest.raises(PlanError, match=again):
        verify(with_step(plan, number, only((twice,))))
    slices = plan.partition.q.slice
    foreign = next(b for b in range(len(slices)) if slices[b] != slices[attend.q[0, 0]])
    mixed = Attend(attend.rank[:1], [[attend.q[0, 0], foreign]], attend.kv[:1])
    with pytest.raises(PlanError, match="rank 0 attends q blocks of different head slices"):
        verify(with_step(plan, number, only((mixed,))))


def test_dead_inner_tiles_of_a_rectangle_are_legal() -> None:
    plan = rl.plan("allgather:layout=contiguous", replace(WORK, mask=rl.Causal()), 2)
    two = replace(WORK, seq=16, kv_seq=16, mask=rl.Causal())
    wide = rl.plan("zigzag", two, 1)
    assert next(a for _, a in wide.attends()) == Attend([0], [[0, 1]], [[0, 1]])
    assert verify(wide) is wide
    assert verify(plan) is plan


@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_an_empty_mask_needs_an_empty_plan(pass_: str) -> None:
    nothing = replace(WORK, mask=rl.Blocks(((0,),), 12))
    for name in rl.SCHEDULES:
        assert rl.plan(name, nothing, 3, pass_=pass_).steps == ()


@pytest.mark.parametrize(
    "name", ["ring", "burst", "balanced", "ulysses", "usp:ulysses=2", "allgather"]
)
def test_each_tensor_has_the_slots_that_it_needs_and_not_one_fewer(name: str) -> None:
    work = replace(WORK, seq=48, kv_seq=48, mask=rl.Causal() | rl.Window(3, 6))
    for plan in rl.plan(name, work, 4, pass_="both"):
        tensors = INPUTS[plan.pass_] + ACCUMULATORS[plan.pass_]
        needed = {tensor: int(slots(plan, tensor).max()) for tensor in tensors}
        verify(replace(plan, buffers=tuple(needed.items())))
        for tensor, most in needed.items():
            if most:
                fewer = tuple((needed | {tensor: most - 1}).items())
                with pytest.raises(
                    PlanError, match=f"{most} slots for {tensor}, but buffers allow"
                ):
                    verify(replace(plan, buffers=fewer))


def test_what_a_rank_begins_twice_in_a_step_takes_one_slot() -> None:
    """Rank 1 attends the q blocks 0 and 1 of rank 0 in two rectangles of one node."""
    work = replace(WORK, seq=4, kv_seq=4)
    partition = rl.plan("zigzag", work, 2).partition
    attend = Attend([1, 1], [[0, 3], [0, 3]], [[1], [2]])
    plan = Plan("hand-made", work, 2, partition, "forward", (), (), (Step((attend,)),))
    assert slots(plan, "OUT").tolist() == [[0, 2]]


def test_statistics_are_made_of_out_that_is_held_once_dout_is_there() -> None:
    """Rank 1 sends STATS of block 0 on, in the step in which DOUT comes to it or in the next."""
    work = replace(WORK, seq=9, kv_seq=9, mask=rl.Blocks(((1, 0, 0), (0, 1, 0), (0, 0, 1)), 3))
    partition, own = rl.plan("ring", work, 3).partition, Attend([1, 2], [[1], [2]], [[1], [2]])
    inputs = (InitialCopy((t,), [[0], [0]], [1, 2]) for t in ("Q", "KV"))
    start = (*inputs, InitialCopy(("OUT",), [[0]], [1]))
    dout, stats = Move(("DOUT",), [[0], [0]], [0, 0], [1, 2]), Move(("STATS",), [[0]], [1], [2])
    back = tuple(Move((t,), [[0]], [2], [0]) for t in ("DQ", "DKV"))
    rest = Step((Attend([2], [[0]], [[0]]),)), Step((), back)

    def sent_in(*steps: Step) -> Plan:
        return Plan("hand-made", work, 3, partition, "backward", start, (), (*steps, *rest))

    verify(sent_in(Step((own,), (dout,)), Step((), (stats,))))
    with pytest.raises(
        PlanError, match="step 0: rank 1 sends STATS to rank 2, but block 0 is readable there"
    ):
        verify(sent_in(Step((own,), (dout, stats))))


def test_a_pair_is_verified_pass_by_pass_and_together() -> None:
    pair = rl.plan("ring", WORK, 3, pass_="both")
    assert verify(pair) is pair
    forward, _ = pair
    wrong = replace(forward, steps=forward.steps[:-1])
    for given in ((wrong, BACKWARD), rl.Plans(forward=wrong)):
        with pytest.raises(PlanError, match="live tiles of 9 are missing"):
            verify(given)
    for other in (LEFT, rl.plan("zigzag", WORK, 3, pass_="backward")):  # one of them has copies
        with pytest.raises(PlanError, match="need the same partition"):
            verify((forward, other))
    with pytest.raises(PlanError, match="expected a plan or a"):
        verify("ring")


def test_a_backward_pass_cannot_hold_what_its_forward_pass_did_not_finish() -> None:
    work = replace(WORK, seq=60, kv_seq=60, mask=rl.Causal())
    forward, backward = rl.plan("balanced", work, 5, pass_="both")
    helped = next(m for _, m in forward.moves() if m.tensors == ("OUT",))
    held = InitialCopy(("OUT",), helped.blocks[:1], helped.src[:1])
    with pytest.raises(PlanError, match=r"start: rank \d holds OUT block \d, which the forward"):
        verify_pair(forward, replace(backward, start=(held,)))
    ahead, back = rl.plan("ulysses", work, 5, pass_="both")
    assert any(h.tensors == ("OUT",) for h in back.start if verify_pair(ahead, back))
