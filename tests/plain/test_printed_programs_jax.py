"""JAX programs printed from the program IR, run on all ranks with numpy in place of JAX."""

import pytest

import stand_ins
from loop_schedules import foreign_pair
from lowered_programs import SCHEDULES, masks, workload
from ringloom.codegen import emit
from ringloom.codegen.jax.schedule import schedule
from ringloom.codegen.programs import Program, program_of
from ringloom.planner.errors import PlanError
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from stand_ins import Different

UNROLLED = "double-ring", "balanced"  # whose messages go other ways in each step


def program(name: str, ranks: int, mask: str) -> Program:
    """Both passes of a schedule."""
    work = workload(ranks, mask)
    passes = ("forward", "backward")
    return program_of(Plans.of(tuple(plan(name, work, ranks, pass_=p) for p in passes)), "jax")


def text_of(made: Program) -> str:
    """The program as a file."""
    return emit(Plans.of(made.plans), "jax")


def printed(made: Program) -> bool:
    """True if its loops are printed."""
    if made.lowered is None:
        return False
    try:
        schedule(made)
    except PlanError:
        return False
    return True


@pytest.mark.parametrize("name", SCHEDULES)
def test_printed_programs_compute_attention(name: str) -> None:
    exact = 0
    for mask in masks(4)[:3]:
        made = program(name, 4, mask)
        if printed(made):
            stand_ins.check(made, text_of(made))
            exact += 1
    assert exact >= 2 * (name != "head-chunks")  # whose ranks swap several slices each


@pytest.mark.parametrize("ranks", [4, 5])
@pytest.mark.parametrize("name", ["zigzag", "burst", "usp", "striped", "balanced"])
def test_printed_programs_compute_attention_under_masks(name: str, ranks: int) -> None:
    exact = 0
    for mask in masks(ranks)[2:]:
        made = program(name, ranks, mask)
        if printed(made):
            stand_ins.check(made, text_of(made))
            exact += 1
    assert exact >= 4


@pytest.mark.parametrize("name", ["zigzag", "ring", "striped", "burst", "tokenring", "llama3"])
def test_programs_are_as_long_at_more_ranks(name: str) -> None:
    lines = [len(schedule(program(name, r, "causal")).text.splitlines()) for r in (4, 8)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("name", ["stride", "halves"])
def test_programs_of_unfamiliar_schedules_are_exact_and_as_long_at_more_ranks(name: str) -> None:
    lines = set[int]()
    for ranks in (5, 8, 35):
        made = program_of(foreign_pair(name, workload(ranks, "full"), ranks), "jax")
        text = text_of(made)
        lines.add(len(schedule(made).text.splitlines()))
        if ranks < 35:
            stand_ins.check(made, text)
    assert len(lines) == 1


@pytest.mark.parametrize("mask", ["causal", "prefix:16"])
@pytest.mark.parametrize("name", ["stride", "halves"])
def test_unfamiliar_schedules_are_exact_under_masks(name: str, mask: str) -> None:
    made = program_of(foreign_pair(name, workload(5, mask), 5), "jax")
    assert printed(made)
    stand_ins.check(made, text_of(made))


@pytest.mark.parametrize("name", ["zigzag", "ring", "striped", "burst"])
def test_loops_whose_messages_are_alike_in_all_steps_are_rolled(name: str) -> None:
    for mask in ("causal", "full")[name == "ring" :]:
        text = schedule(program(name, 8, mask)).text
        assert "fori_loop" in text
        assert "for step in" not in text


@pytest.mark.parametrize("name", UNROLLED)
def test_loops_whose_messages_change_with_the_step_are_unrolled(name: str) -> None:
    text = schedule(program(name, 8, "causal")).text
    assert "for step in" in text
    assert "fori_loop" not in text


def test_a_defect_in_a_printed_program_is_noticed() -> None:
    made = program("zigzag", 4, "causal")
    text = text_of(made)
    for old, new in (
        ("rank >= step,", "rank > step,"),
        ("cols=slice(size)", "cols=slice(size, None)"),
        ("(r + 1) % RANKS)", "(r + 2) % RANKS)"),
        ("    visiting_dkv = add(visiting_dkv, returning_dkv)\n", ""),
    ):
        assert old in text
        with pytest.raises(Different, match="its passes"):
            stand_ins.check(made, text.replace(old, new))
