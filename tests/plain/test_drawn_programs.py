"""Schedule, layout, lengths, heads, value dimension, sinks and mask, drawn together.

Every program of loops is exact on the stand-ins of its framework: 20 a target, 1,000 at night.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from ringloom.codegen import emit
from ringloom.codegen.programs import TARGETS, Target, program_of
from ringloom.planner.errors import PlanError
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from sampling import NIGHTLY
from stand_ins import check
from strategies import any_workloads, divided_workloads, schedules

CASES = 1000 if NIGHTLY else 20
RANKS = st.sampled_from([2, 3, 4, 4, 5, 6, 8])


@st.composite
def cases(draw: st.DrawFn, target: Target) -> tuple[str, Workload, int]:
    """A schedule, a workload and ranks; these divide lengths in most, since more of them loop."""
    ranks = draw(RANKS)
    work = draw(any_workloads(longest=29) | st.one_of([divided_workloads(ranks)] * 3))
    wide, sinks = draw(st.sampled_from([0, 0, 2])), draw(st.booleans()) and target == "torch"
    work = replace(work, v_head_dim=work.head_dim + wide, sinks=sinks)  # JAX's: tests/on_jax
    return draw(schedules(ranks)), work, ranks


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_of_loops_is_exact_whatever_is_drawn(target: Target) -> None:
    looped = list[bool]()

    @settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
    @given(cases(target))
    def drawn(case: tuple[str, Workload, int]) -> None:
        schedule, work, ranks = case
        try:
            both = plan(schedule, work, ranks, pass_="both")
        except PlanError:
            assume(False)
        note(f"plan({schedule!r}, {work.python}, {ranks})")
        text = emit(both, target)
        looped.append("(as tables" not in " ".join(text.split()))
        if looped[-1]:
            check(program_of(both, target), text)

    drawn()
    assert sum(looped) > 0.15 * len(looped)
