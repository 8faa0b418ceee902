"""Loops of random plans, as programs: how many plans have them, and that each is exact."""

from collections.abc import Callable

from hypothesis import given, settings

from ringloom.codegen import emit
from ringloom.planner.errors import PlanError
from ringloom.planner.plans import Plans
from strategies.plans import random_plans

FEW = settings(max_examples=max(12, settings().max_examples // 2))


def printed_loops(plans: Plans, target: str) -> str:
    """The program of loops; "" for one by tables, and where plans have no program."""
    try:
        source = emit(plans, target)
    except PlanError:
        return ""
    return "" if "as tables" in " ".join(source.split()) else source


def check_random_plans(target: str, check: Callable[[str, Plans], None]) -> None:
    """Check every program of loops of random plans, of which a fifth at least have one."""
    printed = list[bool]()

    @FEW
    @given(random_plans)
    def drawn(plans: Plans) -> None:
        source = printed_loops(plans, target)
        printed.append(bool(source))
        if source:
            check(source, plans)

    drawn()
    assert sum(printed) > 0.2 * len(printed)
