"""Random plans, verified: most have loops, which expand to their rows and compute attention."""

from hypothesis import given

from loop_interpreter import assert_exact
from planner.errors import PlanError
from planner.loops import recover
from planner.plans import Plans
from printed_loops import FEW
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
