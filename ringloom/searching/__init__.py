"""search(work, ranks, hardware)   finds the fastest plan and compares it with the lower bound.

seeds      schedules of compare: a search never returns a slower plan than compare
found      plans of `ringloom.planner.search` that may beat the best so far
both       the forward and backward plan that fit together with the least total time

trying     tries the candidates of each pass      result     the result of a search
pairs      pairs candidates of both passes        gaps       splits the time above the bound
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any

from ringloom.planner.errors import MultiPlanError, PlanError, RingloomError, brief
from ringloom.planner.given import whole
from ringloom.planner.ir import Plan
from ringloom.planner.layouts import own_name
from ringloom.planner.plans import Passes, Plans
from ringloom.planner.search import BUDGET, Tried
from ringloom.planner.workload import Workload, check_request
from ringloom.pricing import prices_in
from ringloom.searching.gaps import gaps_of, lost_by
from ringloom.searching.pairs import by_sum, fit, plan_of, time_of
from ringloom.searching.result import RunnerUp
from ringloom.searching.result import SearchResult as SearchResult
from ringloom.searching.trying import PASSES, Search, Told, prediction_of
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.scenario import Scenario, scenario_of
from ringloom.trials import amount
from ringloom.views.units import size

SHOWN = 6  # number of runner-ups
REASONS = 3  # number of reasons that an error lists


def search(
    work: Workload,
    ranks: int,
    hardware: Hardware | str | Path,
    *,
    pass_: Passes = "forward",
    memory: float | None = None,
    time_limit: float | None = None,
    scenario: Scenario | Mapping[str, Any] | None = None,
    layout: str | None = None,
    seed: int = 0,
    budget: int = BUDGET,
    told: Told = lambda *_: None,
) -> SearchResult:
    """Searches for the fastest plan of a workload on a machine: schedules, then built plans.

    `memory`: bytes per rank for attention, by default the chip's. `time_limit`: seconds after which
    a pass tries no further candidate, except its first; without it the result is the same on any
    machine. `layout`: name of the layout that the tokens already have; without it the search
    chooses. `seed`: an integer without effect, as the search uses no random numbers. `budget`:
    number of built candidates per pass. `told(candidate, best_seconds, gap_to_bound)` is called to
    show progress. Raises RingloomError for unknown hardware and invalid scenarios or limits,
    PlanError if no plan fits.
    """
    check_request(work, ranks, "search(work, ranks, hardware)")
    if pass_ not in (*PASSES,):
        raise RingloomError(f"a pass is forward, backward or both, not {brief(pass_)}")
    if not isinstance(layout, str | None):
        raise RingloomError(
            f"layout must be the name of a layout, such as 'zigzag', not {brief(layout)}"
        )
    whole("seed", seed)
    budget = whole("budget", budget)
    machine, what_if = find_hardware(hardware), scenario_of(scenario or {})
    room = amount(memory, "memory", "bytes", machine["memory.capacity"])
    limit = amount(time_limit, "time_limit", "seconds", math.inf)
    where = layout and own_name(layout)
    prices = prices_in(what_if, work, ranks, machine)
    one = Search(work, ranks, machine, what_if, room, where, limit, monotonic(), told, prices)
    every = [one.tried(each, budget) for each in PASSES[pass_]]
    if pass_ == "both":
        every = one.completed(*every)
    chosen = _fitting(every, one)
    plans = Plans(**{plan_of(x).pass_: plan_of(x) for x in chosen})
    prediction = simulate(plans, machine, what_if)
    flat = [*chain(*every)]
    return SearchResult(
        plans,
        tuple(str(x.recipe) for x in chosen),
        prediction,
        tuple(gaps_of(_runs(chosen), machine, what_if)),
        _runner_ups(every, chosen, machine, what_if),
        tried=sum(x.score is not None for x in flat),
        pruned=sum(x.pruned for x in flat),
        refused=sum(x.refused is not None for x in flat),
        complete=not one.stop(),
    )


def _fitting(every: Sequence[list[Tried]], search: Search) -> list[Tried]:
    """Returns the fastest candidate, or the fitting pair of two passes with the least total time.

    Raises PlanError if there is none.
    """
    if not all(any(x.score for x in tried) for tried in every):
        raise MultiPlanError("\n".join(_refusals(every, search)))
    for pair in by_sum(every):
        if fit(pair):
            return pair
    raise PlanError("no backward plan tried fits a forward plan: remove the time limit")


def _refusals(every: Sequence[list[Tried]], search: Search) -> Iterator[str]:
    """Yields why no candidate of a pass can run, with reasons for a few candidates."""
    early = f" within {search.limit:g} s" * search.stop()
    failing = next(tried for tried in every if not any(x.score for x in tried))
    pass_ = PASSES["both"][every.index(failing)] if len(every) > 1 else None
    lacking = [lack for lack in search.lacking if pass_ in (None, lack.pass_)]
    plan = f"{pass_} plan" if pass_ else "plan"
    if lacking:
        least = sorted(lacking, key=lambda lack: lack.bytes)[:REASONS]
        room = size(int(search.room))
        yield (
            f"no {plan} tried{early} fits: a rank has {room}, and the smallest plan needs"
            f" {size(least[0].bytes)}"
        )
        yield from map(str, least)
    else:
        yield f"no {plan} tried{early} can run"
        refused = (x for x in failing if x.refused)
        yield from islice((f"{x.recipe}: {x.refused}" for x in refused), REASONS)


def _runner_ups(
    every: Sequence[list[Tried]], winner: list[Tried], machine: Hardware, scenario: Scenario
) -> tuple[RunnerUp, ...]:
    """Returns the best plans of other families, the fastest first; pairs for two passes."""
    best = {winner[0].family: winner}
    for pair in by_sum(every):
        if len(best) > SHOWN:
            break
        if pair[0].family not in best and fit(pair):
            best[pair[0].family] = pair
    won, *others = (gaps_of(_runs(pair), machine, scenario) for pair in best.values())
    listed = zip([*best.values()][1:], others, strict=True)
    return tuple(
        RunnerUp(pair[0].family, _name(pair), sum(map(time_of, pair)), lost_by(gaps, won))
        for pair, gaps in listed
    )


def _name(chosen: Sequence[Tried]) -> str:
    """Returns the recipe of a candidate, or both recipes of a pair if they differ."""
    return " / ".join(dict.fromkeys(str(x.recipe) for x in chosen))


def _runs(chosen: Sequence[Tried]) -> list[tuple[Plan, Prediction]]:
    return [(plan_of(x), prediction_of(x)) for x in chosen]
