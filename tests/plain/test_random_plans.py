"""Random plans, verified: most have loops, which expand to their rows and compute attention."""

from contextlib import suppress

import pytest
from hypothesis import given

from loop_interpreter import assert_exact
from printed_loops import FEW
from ringloom.codegen import emit
from ringloom.codegen.programs import TARGETS, program_of
from ringloom.planner.errors import PlanError
from ringloom.planner.loops import recover
from ringloom.planner.masks import Causal, Chunks, Documents, Prefix
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from stand_ins import check
from strategies.plans import random_plans


def test_loops_of_random_plans_compute_what_dense_attention_computes() -> None:
    regular = list[bool]()

    @FEW
    @given(random_plans)
    def drawn(plans: Plans) -> None:
        for made in plans:
            try:
                loops = recover(made)
            except PlanError:
                regular.append(False)
            else:
                regular.append(True)
                assert_exact(made, loops, 1)

    drawn()
    assert sum(regular) > 0.75 * len(regular)


@pytest.mark.parametrize("target", TARGETS)
def test_printed_loops_of_random_plans_are_exact(target: str) -> None:
    loops = list[bool]()

    @FEW
    @given(random_plans)
    def drawn(plans: Plans) -> None:
        with suppress(PlanError):
            loops.append(exact(plans, target))

    drawn()
    assert sum(loops) >= 3


def exact(plans: Plans, target: str) -> bool:
    """True for loops, which have to be exact, False for tables."""
    text = emit(plans, target)
    if "(as tables" in " ".join(text.split()):
        return False
    check(program_of(plans, target), text)
    return True


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("schedule", "ranks", "work"),
    [  # owners keep partial outputs; sums are sent before they begin; arrive from three in a step
        (
            "pass-q:layout=contiguous:late=0",
            4,
            Workload(seq=16, heads=2, head_dim=8, mask=Causal() | Prefix(2)),
        ),
        ("zigzag:layout=contiguous", 3, Workload(seq=12, heads=3, head_dim=8, mask=Chunks(8))),
        (
            "tokenring:layout=contiguous",
            5,
            Workload(seq=60, heads=2, head_dim=8, mask=Documents((21, 1, 38))),
        ),
    ],
)
def test_sums_that_stay_or_come_at_once_are_exact(
    schedule: str, ranks: int, work: Workload, target: str
) -> None:
    exact(Plans.of(plan(schedule, work, ranks, pass_="both")), target)


def test_sums_that_stay_on_the_ranks_that_do_not_send_them_are_exact() -> None:
    work = Workload(seq=16, heads=2, head_dim=8, mask=Documents((4, 12)))
    both = plan("double-ring:layout=contiguous", work, 4, pass_="both")
    program = program_of(both, "torch")
    assert program.lowered
    check(program, emit(both, "torch"))
