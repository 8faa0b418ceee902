"""Simulates the attention of one split with the fastest schedule for each mask of the layers."""

import math
from dataclasses import dataclass, replace

from ringloom.advising.costs import Checkpoint, Split, forwards
from ringloom.advising.model import Model
from ringloom.planner.errors import PlanError
from ringloom.planner.workload import Workload
from ringloom.rows import shortage
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.scenario import Scenario
from ringloom.trials import Case, Trials, schedule_names


@dataclass(frozen=True)
class Attention:
    """The seconds and peak bytes of all layers' attention over one sequence.

    `schedules` has the fastest schedule of each mask; it is empty if one rank has whole sequences.
    """

    seconds: float
    peak_bytes: int
    schedules: tuple[str, ...]


def attention_of(
    model: Model,
    work: Workload,
    split: Split,
    machine: Hardware,
    checkpoint: Checkpoint,
    memory_limit: float,
    used: int,
    *,
    variants: bool = False,
) -> Attention:
    """Returns the attention of a split on chips of `memory_limit` bytes, of which `used` are taken.

    Tries the default schedules of compare; `variants`: also the further settings of compare. Raises
    PlanError if no schedule fits.
    """
    seconds, peak, names = 0.0, 0, list[str]()
    for count, mask in model.masks(work):
        local_work = replace(work, mask=mask).split(split.tensor)
        best = _fastest(local_work, split, machine, memory_limit, used, variants)
        forward, backward = best.prediction.passes
        seconds += count * (forwards(checkpoint) * forward.makespan + backward.makespan)
        peak = max(peak, best.row.peak_bytes)
        names += [best.row.schedule] * (split.context > 1)
    return Attention(seconds, peak, tuple(names))


def _fastest(
    work: Workload, split: Split, machine: Hardware, memory_limit: float, used: int, variants: bool
) -> Case:
    scenario = Scenario(tensor_parallel=split.tensor)
    trials = Trials(work, split.context, "both", machine, scenario, math.inf)
    nodes = scenario.nodes(machine, split.context)
    names = schedule_names(None, work, split.context, nodes, variants=False)
    if split.context == 1:  # all schedules are equal, because nothing is sent
        names = names[:1]
    outcomes = [trials.outcome(name) for name in names]
    cases = [x for x in outcomes if isinstance(x, Case)]
    if variants and split.context > 1:
        settings = schedule_names(None, work, split.context, nodes)[len(names) :]
        cases += trials.try_settings(cases, settings).cases
    fitting = [case for case in cases if used + case.row.peak_bytes <= memory_limit]
    if not fitting:
        smallest = min(case.row.peak_bytes for case in cases)
        raise PlanError(shortage(used + smallest, memory_limit))
    return min(fitting, key=lambda case: case.row.order)
