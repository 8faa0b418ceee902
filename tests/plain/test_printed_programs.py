"""Torch programs printed from the program IR, run on all ranks with numpy in place of torch."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stand_ins
from loop_schedules import foreign_pair
from lowered_programs import SCHEDULES, masks, workload
from ringloom.codegen import emit, ir
from ringloom.codegen.frame.formatting import format_source
from ringloom.codegen.programs import TARGETS, Program, program_of
from ringloom.codegen.torch import write
from ringloom.codegen.torch.schedule import schedule
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from stand_ins import Different


def program(name: str, ranks: int, mask: str) -> Program:
    """Both passes of a schedule."""
    work = workload(ranks, mask)
    passes = ("forward", "backward")
    return program_of(Plans.of(tuple(plan(name, work, ranks, pass_=p) for p in passes)), "torch")


def printed(made: Program) -> str:
    """The text of a program of loops; "" for one by tables."""
    text = write(made) if made.lowered else ""
    return "" if "(as tables" in " ".join(text.split()) else text


@pytest.mark.parametrize("name", SCHEDULES)
def test_printed_programs_compute_attention(name: str) -> None:
    exact = 0
    for mask in masks(4)[:3]:
        made = program(name, 4, mask)
        if text := printed(made):
            stand_ins.check(made, text)
            exact += 1
    assert exact >= 2


@pytest.mark.parametrize("mask", masks(4)[:3])
@pytest.mark.parametrize("name", ["head-chunks", "ulysses-stages"])
def test_heads_that_are_swapped_in_stages_are_printed(name: str, mask: str) -> None:
    work = replace(workload(4, mask), heads=16, kv_heads=8)
    made = program_of(plan(name, work, 4, pass_="both"), "torch")
    text = printed(made)
    assert "    merge_heads(" in text
    assert "slice(1, 8, 2)" in text
    stand_ins.check(made, text)


@pytest.mark.parametrize("ranks", [4, 5])
@pytest.mark.parametrize("name", ["zigzag", "burst", "usp", "striped", "balanced"])
def test_printed_programs_compute_attention_under_masks(name: str, ranks: int) -> None:
    exact = 0
    for mask in masks(ranks)[2:]:
        made = program(name, ranks, mask)
        if text := printed(made):
            stand_ins.check(made, text)
            exact += 1
    assert exact >= 4


@pytest.mark.parametrize("mask", ["causal", "causal & window:7"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_last_query_meets_the_last_key(ranks: int, mask: str) -> None:
    work = replace(workload(ranks, mask), seq=8 * ranks, kv_seq=24 * ranks)
    made = program_of(plan("ring", work, ranks, pass_="both"), "torch")
    stand_ins.check(made, printed(made) or "no loops")


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(2, 12), st.integers(0, 6), st.sampled_from(TARGETS))
def test_programs_of_any_schedule_mask_and_target_are_exact(
    name: str, ranks: int, mask: int, target: str
) -> None:
    work = workload(ranks, masks(ranks)[mask])
    passes = ("forward", "backward")
    plans = Plans.of(tuple(plan(name, work, ranks, pass_=p) for p in passes))
    text = emit(plans, target)
    if "(as tables" not in " ".join(text.split()):
        stand_ins.check(program_of(plans, target), text)


def test_a_defect_in_a_printed_program_is_noticed() -> None:
    made = program("zigzag", 4, "causal")
    text = write(made)
    for line in ("elif rank >= step:", "kv = wait(arriving_kv) or kv", "cols=slice(size)"):
        assert line in text
    with pytest.raises(Different, match="its passes"):
        stand_ins.check(made, text.replace("elif rank >= step:", "elif rank > step:"))


def test_programs_are_as_long_at_more_ranks() -> None:
    lines = [len(schedule(program("zigzag", ranks, "causal")).splitlines()) for ranks in (4, 9)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("name", ["stride", "halves"])
def test_programs_of_unfamiliar_schedules_are_as_long_at_more_ranks(name: str) -> None:
    texts = [
        printed(program_of(foreign_pair(name, workload(ranks, "full"), ranks), "torch"))
        for ranks in (5, 8, 35)
    ]
    assert texts[0]
    assert len({len(text.splitlines()) for text in texts}) == 1


def test_a_program_is_formatted_and_compiles() -> None:
    text = write(program("usp", 4, "causal"))
    assert format_source(text) == text
    compile(text, "program", "exec")


def test_cases_that_are_all_alike_are_printed_without_a_test() -> None:
    made = program("zigzag", 4, "causal")
    assert made.lowered

    def alike(op: ir.Op) -> ir.Op:
        if isinstance(op, ir.For):
            return replace(op, body=tuple(map(alike, op.body)))
        if isinstance(op, ir.Choose):
            return ir.Choose(tuple((tests, op.cases[0][1]) for tests, _ in op.cases))
        return op

    passes = [replace(one, ops=tuple(map(alike, one.ops))) for one in made.lowered]
    text = schedule(replace(made, lowered=tuple(passes)))
    assert "if step == 0" not in text
    assert "else:" not in text
    compile(text, "printed", "exec")
