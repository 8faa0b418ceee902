"""Values cached on a plan are of that plan, and no part of it."""

from dataclasses import replace

from ringloom.planner.analysis.messages import block_bytes
from ringloom.planner.cached import cached_on_plan
from ringloom.planner.files import dumps
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

WORK = Workload(seq=64, heads=2, mask=Causal())


def test_an_answer_is_found_once_for_each_plan() -> None:
    asked = []

    @cached_on_plan
    def rounds(one: object) -> int:
        asked.append(one)
        return len(asked)

    first, second = plan("ring", WORK, 4), plan("ring", WORK, 4)
    assert first == second
    assert [rounds(first), rounds(second), rounds(first)] == [1, 2, 1]
    assert rounds(replace(first, name="other")) == 3


def test_what_is_kept_is_no_part_of_the_plan() -> None:
    kept, fresh = plan("ring", WORK, 4), plan("ring", WORK, 4)
    before = repr(kept), dumps(kept), hash(kept)
    block_bytes(kept)
    assert (repr(kept), dumps(kept), hash(kept)) == before
    assert kept == fresh
