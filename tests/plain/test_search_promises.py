"""Searches of random workloads: within the bound and compare's best, in memory, the same again."""

from dataclasses import replace
from time import process_time

import pytest

import ringloom as rl
from ringloom import searching
from ringloom.planner.plans import Passes, Plans
from ringloom.planner.search import BUDGET
from ringloom.searching import trying
from sampling import NIGHTLY
from small_searches import Searched, drawn

CASES = range(100 if NIGHTLY else 9)  # each family
ROWS = 97  # whose best rows are grouped, of a schedule that is slow as it is
TRIED = BUDGET if NIGHTLY else 8  # found candidates
PASSES: tuple[Passes, ...] = "forward", "backward", "both"
LONG = 64  # times as many tokens, on a quick machine, in every other case
ROUNDED = 1 + 1e-9
SLACK = 1.0  # processor seconds: a candidate that was begun, and what a result tells of the best


def case(number: int) -> tuple[Searched, Passes, float | None]:
    """A workload, what is planned of it, and in every third case the bytes that a ring needs."""
    one, pass_ = drawn(number, LONG if number % 2 else 1), PASSES[number % 4 % 3]
    if number % 3:
        return one, pass_, None
    ring = rl.plan("ring", one.work, one.ranks, pass_=pass_)
    return one, pass_, rl.simulate(ring, one.machine, one.scenario).peak_bytes


def check_promises(number: int) -> float:
    """Returns how many times faster than compare's best a search is; never less than 1."""
    one, pass_, memory = case(number)
    given = {"pass_": pass_, "memory": memory, "scenario": one.scenario}
    result = rl.search(one.work, one.ranks, one.machine, budget=TRIED, **given)  # type: ignore[arg-type]
    fastest = rl.compare(one.work, one.ranks, one.machine, **given).rows[0]  # type: ignore[arg-type]
    assert result.bound / ROUNDED <= result.makespan <= fastest.makespan_s * ROUNDED
    assert memory is None or result.prediction.peak_bytes <= memory
    again = Plans(**{plan.pass_: replace(plan) for plan in result.plans})  # without marks
    rl.verify(again)
    assert rl.simulate(again, one.machine, one.scenario).makespan == result.makespan
    return fastest.makespan_s / result.makespan


@pytest.mark.parametrize("number", [*CASES, *[ROWS] * (ROWS not in CASES)])
def test_searches_keep_their_promises(number: int) -> None:
    check_promises(number)


@pytest.mark.parametrize("number", CASES[::10])
def test_a_search_finds_the_same_again(number: int) -> None:
    one, pass_, memory = case(number)
    given = {"pass_": pass_, "memory": memory, "scenario": one.scenario, "budget": TRIED}
    first, again = (
        rl.search(one.work, one.ranks, one.machine, **given)  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert first.recipes == again.recipes
    assert first.plans == again.plans
    assert first.as_dict() == again.as_dict()


@pytest.mark.parametrize("number", CASES[5::10])
def test_a_search_ends_when_its_time_is_over(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (searching, trying):
        monkeypatch.setattr(module, "monotonic", process_time)
    one, began = drawn(number, LONG), process_time()
    result = rl.search(one.work, one.ranks, one.machine, time_limit=0.2, scenario=one.scenario)
    assert process_time() - began < 0.2 + SLACK
    assert not result.complete
