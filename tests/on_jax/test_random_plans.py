"""JAX programs of random plans, verified: exact as loops, or no loops."""

from dense_attention import assert_dense
from jax_in_numpy import replayed
from printed_loops import check_random_plans
from ringloom.planner.plans import Plans
from ringloom.runtimes.arrays import draw


def assert_exact(source: str, plans: Plans) -> None:
    inputs = draw(plans.workload, 3)[: 2 + len(plans)]
    assert_dense(plans.workload, inputs, replayed(source, plans.ranks, *inputs))


def test_loops_of_random_plans_are_exact() -> None:
    check_random_plans("jax", assert_exact)
