"""The passes of one workload as a value: what it takes, gives back and refuses."""

from dataclasses import replace

import pytest

import ringloom as rl
from ringloom.planner.plans import Plans

WORK = rl.Workload(seq=24, heads=2, head_dim=4)
FORWARD, BACKWARD = rl.plan("ring", WORK, 3, pass_="both")


def test_plans_unpack_count_and_index_as_a_pair() -> None:
    both = rl.plan("ring", WORK, 3, pass_="both")
    assert isinstance(both, Plans)
    assert (*both,) == (both[0], both[1]) == (FORWARD, BACKWARD)
    assert (len(both), len(Plans.of(FORWARD))) == (2, 1)
    assert (both.workload, both.ranks, both.name) == (WORK, 3, "ring")


@pytest.mark.parametrize("given", [(FORWARD, BACKWARD), Plans(FORWARD, BACKWARD)])
def test_a_pair_is_plans_however_it_is_given(given: tuple[rl.Plan, rl.Plan] | Plans) -> None:
    assert Plans.of(given) == Plans(FORWARD, BACKWARD)


def test_one_plan_is_the_plans_of_its_pass() -> None:
    assert Plans.of(FORWARD) == Plans(forward=FORWARD)
    assert Plans.of(BACKWARD) == Plans(backward=BACKWARD)
    assert Plans.of(BACKWARD).first == BACKWARD


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ((BACKWARD, FORWARD), "a forward and a backward plan, not"),
        ((FORWARD, replace(BACKWARD, workload=replace(WORK, scale=2.0))), "the same workload"),
        (
            (FORWARD, rl.plan("ring", WORK, 2, pass_="backward")),
            "the same number of ranks, not 3 and 2",
        ),
        ((FORWARD,), r"a \(forward, backward\) pair, not \(Plan"),
        ((FORWARD, "ring"), r"not \('forward', 'str'\)"),
        ("ring", r"expected a plan or a \(forward, backward\) pair, not 'ring'"),
    ],
    ids=["order", "workload", "ranks", "one", "not a plan", "name"],
)
def test_what_does_not_belong_together_is_refused(given: object, match: str) -> None:
    with pytest.raises(rl.PlanError, match=match):
        Plans.of(given)  # type: ignore[arg-type]


def test_no_plan_is_refused() -> None:
    with pytest.raises(rl.PlanError, match="a pair must be"):
        Plans()
