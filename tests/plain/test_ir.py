"""The IR: values that print as the Python that builds them, and refuse what means nothing."""

import pickle
import re
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from ringloom.planner import ir, partitions
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import TENSORS, Attend, InitialCopy, Move, Step
from ringloom.planner.partitions import PRINTED_ROWS
from ringloom.planner.schedules import SCHEDULES

WORK = rl.Workload(seq=23, heads=4, kv_heads=2, head_dim=8, mask=rl.Causal())


@given(
    st.sampled_from([*SCHEDULES, "striped:grain=3", "allgather:keep=1"]),
    st.integers(1, 6),
    st.sampled_from(["forward", "backward"]),
)
def test_a_plan_prints_as_the_python_that_builds_it(name: str, P: int, pass_: str) -> None:
    plan = rl.plan(name, WORK, P, pass_=pass_)
    sides = plan.partition
    small = max(plan.rows, len(sides.q), len(sides.kv)) <= PRINTED_ROWS
    assert repr(plan).startswith("Plan(name=" if small else "<Plan ")
    with pytest.MonkeyPatch.context() as patch:
        for module in (ir, partitions):
            patch.setattr(module, "PRINTED_ROWS", 4000)
        again = eval(repr(plan), vars(rl).copy())
    assert again == plan
    assert hash(again) == hash(plan)


def test_what_is_not_small_prints_in_one_line() -> None:
    plan = rl.plan("ring", rl.Workload(seq=4096, mask=rl.Full()), 64)
    step = plan.steps[0]
    assert repr(plan) == "<Plan ring forward: 64 ranks, 64 rounds, 8128 rows>"
    assert repr(step) == "<Step of 64 attends and 64 messages>"
    assert repr(step.attends[0]) == "<Attend of 64 rows>"
    assert repr(step.moves[0]) == "<Move of 64 rows>"
    assert repr(rl.InitialCopy(("Q",), [[0]] * 17, [1] * 17)) == "<InitialCopy of 17 rows>"
    assert repr(plan.partition) == "<Partition of 64 query blocks and 64 KV blocks>"
    assert repr(plan.partition.q) == "<Side of 64 blocks>"
    few, many = (rl.plan("zigzag", WORK, ranks) for ranks in (2, 12))
    assert repr(few).startswith("Plan(name='zigzag', workload=Workload(seq=23, ")
    assert repr(many) == "<Plan zigzag forward: 12 ranks, 12 rounds, 254 rows>"


def test_nodes_compare_by_value_and_cannot_be_changed() -> None:
    one = Move(("KV",), [[0], [1]], [0, 1], [1, 0])
    assert one == Move(("KV",), np.array([0, 1]), np.array([0, 1]), np.array([1, 0]))
    assert one != Move(("DKV",), [[0], [1]], [0, 1], [1, 0])
    assert one != Attend([0, 1], [[0], [1]], [[0], [1]])
    with pytest.raises(FrozenInstanceError):
        one.tensors = ("Q",)
    with pytest.raises(ValueError, match="read-only"):
        one.blocks[0, 0] = 5


def test_what_a_plan_starts_with_may_be_one_value_or_an_iterator() -> None:
    plan = rl.adjoint(rl.plan("allgather", WORK, 3), keep=("KV",))
    assert len(plan.start) > 1
    assert replace(plan, start=iter(plan.start)) == plan
    one = replace(plan, start=plan.start[:1])
    assert replace(plan, start=plan.start[0]) == one


def test_steps_in_which_nothing_happens_fall_away() -> None:
    plan = rl.plan("ring", rl.Workload(seq=8, heads=1), 4)
    first, *others = plan.steps
    assert replace(plan, steps=(Step(), first, Step(), *others, Step())) == plan


def test_rows_of_nodes_are_joined() -> None:
    narrow, wide = Attend([0], [0], [2]), Attend([1, 2], [[1, 3], [2, -1]], [0, 1])
    assert Attend.joined([narrow, wide]) == Attend([0, 1, 2], [[0, -1], [1, 3], [2, -1]], [2, 0, 1])
    none = narrow.select(np.zeros(len(narrow), bool))
    assert Attend.joined([none, wide]) == wide
    copies, more = Move("KV", [[0, 1]], [0], [1]), Move("KV", [2], [2], [0])
    step = Step((wide,), (copies, Move("Q", [1], [1], [0]), more)).joined()
    assert step.moves == (Move("KV", [[0, 1], [2, -1]], [0, 2], [1, 0]), Move("Q", [1], [1], [0]))


def test_rows_that_go_nowhere_or_carry_nothing_fall_away() -> None:
    move = Move(("KV",), [[3, -1], [4, -1], [-1, -1]], [0, 1, 2], [0, 2, 1])
    assert move == Move(("KV",), [[4]], [1], [2])
    assert len(Attend([0, 1], [[0], [-1]], [[0], [1]])) == 1
    assert not Step((Attend([0], [[-1]], [[0]]),), (Move(("KV",), [[1]], [1], [1]),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Move(("Q", "KV"), [[0]], [0], [1]), "one side and one kind"),
        (lambda: Move(("Q", "OUT"), [[0]], [0], [1]), "one side and one kind"),
        (lambda: Move(("Q", "Q"), [[0]], [0], [1]), "each of its tensors once"),
        (lambda: Move((), [[0]], [0], [1]), "each of its tensors once"),
        (lambda: Move(("K",), [[0]], [0], [1]), "unknown tensor 'K'"),
        (lambda: Move(("KV",), [[0]], [0, 1], [1]), "2 sources but 1 destinations"),
        (lambda: Move(("KV",), [[0]], [0, 1], [1, 0]), "2 rows need"),
        (lambda: Move(("KV",), [[0.5]], [0], [1]), "whole numbers"),
        (lambda: Move(("KV",), [[2**40]], [0], [1]), "out of range"),
        (lambda: Move(("KV",), np.array([[-5]], np.int32), [0], [1]), "out of range: -5"),
        (lambda: Attend([[0]], [[0]], [[0]]), "one number per row"),
        (lambda: InitialCopy(("DKV",), [[0]], [0]), "initial copies must be of inputs or OUT"),
    ],
)
def test_nodes_that_mean_nothing_cannot_be_built(make, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pass_": "sideways"}, "forward or backward, not 'sideways'"),
        ({"ranks": 0}, "ranks must be a positive integer, not 0"),
        ({"ranks": 2}, "rank 2 owns a block, but there are 2 ranks"),
        ({"ranks": 2**30}, "exceed the limit"),
        ({"buffers": (("DKV", 2),)}, "no DKV buffers of 2 slots in a forward plan"),
        ({"steps": (Step((), (Move(("DQ",), [[0]], [0], [1]),)),)}, "no DQ in a forward plan"),
        ({"start": (InitialCopy(("OUT",), [[0]], [1]),)}, "start: no OUT in a forward plan"),
        ({"start": (InitialCopy(("DOUT",), [[0]], [1]),)}, "start: no DOUT in a forward plan"),
        ({"steps": (Step((), (Move(("KV",), [[7]], [0], [1]),)),)}, "KV block 7, but there are 3"),
        ({"steps": (Step((Attend([5], [[0]], [[0]]),)),)}, "rank 5, but ranks are 0..2"),
        ({"steps": (Step((), (Move(("KV",), [[1]], [0], [-1]),)),)}, "rank -1, but ranks are"),
    ],
)
def test_plans_with_wrong_numbers_cannot_be_built(change: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(rl.plan("ring", WORK, 3), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq": 0}, "seq must be between 1 and"),
        ({"seq": 2.5}, "seq must be a whole number, not 2.5"),
        ({"batch": True}, "batch must be a whole number"),
        ({"heads": 6, "kv_heads": 4}, "6 query heads cannot share 4 KV heads evenly"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"mask": 5}, "must be a Mask"),
        ({"mask": "casual"}, "is not a mask"),
        ({"scale": float("nan")}, "scale must be a finite number"),
        ({"scale": 10**400}, "scale must be a finite number"),
        ({"mask": rl.Documents((10, 5))}, "15"),
        ({"v_head_dim": 0}, "v_head_dim must be between 1 and"),
        ({"sinks": 4.0}, "sinks must be True or False, not 4.0"),
    ],
)
def test_workloads_that_mean_nothing_cannot_be_built(change: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rl.Workload(**({"seq": 23, "heads": 4} | change))


@pytest.mark.parametrize("join", ["&", "|"])
def test_masks_are_joined_with_masks_alone(join: str) -> None:
    said = "the mask must be a Mask such as Causal(), not 'causal'"
    with pytest.raises(PlanError, match=re.escape(said)):
        eval(f"rl.Documents((10, 13)) {join} 'causal'")


def test_a_workload_prints_as_the_python_that_builds_it() -> None:
    for more in ({}, {"v_head_dim": 8}, {"v_head_dim": 16, "sinks": True}):
        work = rl.Workload(seq=23, heads=4, head_dim=16, mask=rl.Causal(), **more)
        assert repr(work) == work.python
        assert eval(work.python, vars(rl) | {"Causal": rl.Causal, "Workload": rl.Workload}) == work
        assert ("v_head_dim" in repr(work)) is (work.v_head_dim == 8)


def test_bytes_follow_dimensions_dtypes_and_batch_rows() -> None:
    work = rl.Workload(seq=8, heads=4, head_dim=192, v_head_dim=128, batch=3, dtype="bfloat16")
    size = {name: tensor.bytes_per_token(work) for name, tensor in TENSORS.items()}
    assert size == {
        "Q": 3 * 2 * 192,
        "DOUT": 3 * 2 * 128,
        "STATS": 3 * 4 * 2,
        "OUT": 3 * 4 * (128 + 1),
        "DQ": 3 * 4 * 192,
        "KV": 3 * 2 * (192 + 128),
        "DKV": 3 * 4 * (192 + 128),
    }
    assert TENSORS["OUT"].bytes_per_token(replace(work, dtype="float64")) == 3 * 8 * (128 + 1)


def test_finished_results_take_the_bytes_of_inputs_and_so_does_out_that_was_left() -> None:
    work = rl.Workload(seq=8, heads=4, kv_heads=2, head_dim=16, batch=3, dtype="bfloat16")
    out, dkv = TENSORS["OUT"], TENSORS["DKV"]
    assert out.bytes_per_token(work, finished=True) == 3 * (2 * 16 + 4)  # lse stays wide
    assert dkv.bytes_per_token(work, finished=True) == 3 * 2 * 32
    forward, backward = rl.plan("ulysses", work, 4, pass_="both")
    assert (forward.block_bytes("OUT", finished=True) == backward.block_bytes("OUT")).all()
    assert (forward.block_bytes("OUT") > backward.block_bytes("OUT")).all()


def test_a_node_lists_the_blocks_that_it_holds() -> None:
    move = Move("KV", [[0, 1], [-1, 2]], [0, 1], [1, 2])
    assert [part.tolist() for part in move.flat()] == [[0, 1, 2], [0, 0, 1], [1, 1, 2]]
    again = pickle.loads(pickle.dumps(move))
    assert again == move
    assert again.flat()[0].tolist() == [0, 1, 2]
