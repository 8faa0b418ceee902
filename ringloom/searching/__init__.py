"""search(work, ranks, hardware)   finds the fastest plan and compares it with the lower bound.

seeds      the schedules of compare, so that a search never returns a slower plan than compare
built      plans of `ringloom.planner.search` that may be faster than the best candidate so far
both       the forward and backward plans that fit together with the least total time

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
from ringloom.planner.given import require_integer
from ringloom.planner.ir import Plan
from ringloom.planner.layouts import canonical_layout
from ringloom.planner.plans import Passes, Plans
from ringloom.planner.search import BUDGET, Candidate
from ringloom.planner.workload import Workload, check_request
from ringloom.pricing import prices_in
from ringloom.searching.gaps import gaps_of, lost_by
from ringloom.searching.pairs import by_sum, fit, plan_of, time_of
from ringloom.searching.result import RunnerUp
from ringloom.searching.result import SearchResult as SearchResult
from ringloom.searching.trying import PASSES, Report, Search, prediction_of
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.scenario import Scenario, scenario_of
from ringloom.trials import amount
from ringloom.views.units import size

MAX_RUNNER_UPS = 6
MAX_REASONS = 3  # reasons in an error


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
    report: Report = lambda *_: None,
) -> SearchResult:
    """Searches for the fastest plan of a workload on a machine: schedules, then built plans.

    `memory`: bytes per rank for attention, by default all of the chip's memory. `time_limit`:
    seconds after which a pass tries no more candidates, except its first; without a limit, the
    result is the same on any computer. `layout`: name of the layout that the tokens already have;
    by default the search chooses. `seed`: an integer without effect, as the search uses no random
    numbers. `budget`: number of built candidates per pass. `report(candidate, best_seconds,
    gap_to_bound)` is called to show progress. Raises RingloomError for unknown hardware and invalid
    scenarios or limits, PlanError if no plan fits.
    """
    check_request(work, ranks, "search(work, ranks, hardware)")
    if pass_ not in (*PASSES,):
        raise RingloomError(f"pass_ must be forward, backward or both, not {brief(pass_)}")
    if not isinstance(layout, str | None):
        raise RingloomError(
            f"layout must be the name of a layout, such as 'zigzag', not {brief(layout)}"
        )
    require_integer("seed", seed)
    budget = require_integer("budget", budget)
    machine, what_if = find_hardware(hardware), scenario_of(scenario or {})
    memory_limit = amount(memory, "memory", "bytes", machine["memory.capacity"])
    seconds_limit = amount(time_limit, "time_limit", "seconds", math.inf)
    state = Search(
        work,
        ranks,
        machine,
        what_if,
        memory_limit,
        layout and canonical_layout(layout),
        seconds_limit,
        monotonic(),
        report,
        prices_in(what_if, work, ranks, machine),
    )
    tried = [state.try_pass(name, budget) for name in PASSES[pass_]]
    if pass_ == "both":
        tried = state.complete_pairs(*tried)
    best = _best(tried, state)
    plans = Plans(**{plan_of(x).pass_: plan_of(x) for x in best})
    prediction = simulate(plans, machine, what_if)
    candidates = [*chain(*tried)]
    return SearchResult(
        plans,
        tuple(str(x.recipe) for x in best),
        prediction,
        tuple(gaps_of(_runs(best), machine, what_if)),
        _runner_ups(tried, best, machine, what_if),
        tried=sum(x.score is not None for x in candidates),
        pruned=sum(x.pruned for x in candidates),
        refused=sum(x.refused is not None for x in candidates),
        complete=not state.is_out_of_time(),
    )


def _best(tried: Sequence[list[Candidate]], search: Search) -> list[Candidate]:
    """Returns the fastest candidate, or the fastest pair whose plans fit together.

    Raises PlanError if there is none.
    """
    if not all(any(x.score for x in candidates) for candidates in tried):
        raise MultiPlanError("\n".join(_refusals(tried, search)))
    for pair in by_sum(tried):
        if fit(pair):
            return pair
    raise PlanError("no backward plan tried fits a forward plan: raise the time limit")


def _refusals(tried: Sequence[list[Candidate]], search: Search) -> Iterator[str]:
    """Yields a message that no candidate of a pass can run, and reasons for a few candidates."""
    within = f" within {search.time_limit:g} s" * search.is_out_of_time()
    failing = next(x for x in tried if not any(candidate.score for candidate in x))
    pass_ = PASSES["both"][tried.index(failing)] if len(tried) > 1 else None
    too_large = [plan for plan in search.too_large if pass_ in (None, plan.pass_)]
    kind = f"{pass_} plan" if pass_ else "plan"
    if too_large:
        smallest = sorted(too_large, key=lambda plan: plan.bytes)[:MAX_REASONS]
        yield (
            f"no {kind} tried{within} fits: a rank has {size(int(search.memory_limit))}, and the"
            f" smallest plan needs {size(smallest[0].bytes)}"
        )
        yield from map(str, smallest)
    else:
        yield f"no {kind} tried{within} can run"
        refused = (x for x in failing if x.refused)
        yield from islice((f"{x.recipe}: {x.refused}" for x in refused), MAX_REASONS)


def _runner_ups(
    tried: Sequence[list[Candidate]], winner: list[Candidate], machine: Hardware, scenario: Scenario
) -> tuple[RunnerUp, ...]:
    """Returns the best plans of other families, the fastest first; pairs for two passes."""
    best = {winner[0].family: winner}
    for pair in by_sum(tried):
        if len(best) > MAX_RUNNER_UPS:
            break
        if pair[0].family not in best and fit(pair):
            best[pair[0].family] = pair
    winner_gaps, *gaps = (gaps_of(_runs(pair), machine, scenario) for pair in best.values())
    _, *pairs = best.values()
    return tuple(
        RunnerUp(pair[0].family, _name(pair), sum(map(time_of, pair)), lost_by(lost, winner_gaps))
        for pair, lost in zip(pairs, gaps, strict=True)
    )


def _name(pair: Sequence[Candidate]) -> str:
    """Returns the recipe of a candidate, or both recipes of a pair if they differ."""
    return " / ".join(dict.fromkeys(str(x.recipe) for x in pair))


def _runs(pair: Sequence[Candidate]) -> list[tuple[Plan, Prediction]]:
    return [(plan_of(x), prediction_of(x)) for x in pair]
