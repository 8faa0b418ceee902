"""Plans that searches find run exactly as torch programs; so do batches of documents by tables."""

from dataclasses import replace

import pytest

import ringloom as rl
from small_searches import PROGRAMS, in_float64, search_freely

pytest.importorskip("torch")

from rank_threads import assert_exact, load


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_found_plans_are_exact(name: str) -> None:
    plans = in_float64(search_freely(PROGRAMS[name]).plans)
    assert_exact(load(rl.emit(plans, "torch")), plans)


def test_one_dynamic_program_runs_the_plans_of_every_batch() -> None:
    one = PROGRAMS["documents"]
    work = replace(one.work, mask=rl.Causal(), dtype="float64")
    planner = rl.batch_planner(work, 4, one.machine, samples=[(150, 60, 30)])
    any_plan = rl.plan("ring", work, 4, pass_="both")
    program = load(rl.emit(any_plan, "torch", dynamic=True))
    for lengths in [(150, 60, 30), (7, 1, 90, 33), (5,) * 30]:
        batch = planner(lengths)
        assert batch.recipe.startswith("found:")
        assert_exact(program, batch.plans, program.Tables(batch.tables))
