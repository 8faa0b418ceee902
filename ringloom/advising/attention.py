"""Attention of one split: the fastest schedule for each mask of the model's layers, simulated."""

import math
from dataclasses import dataclass, replace

from ringloom.advising.costs import Checkpoint, Split, forwards
from ringloom.advising.model import Model
from ringloom.planner.errors import PlanError
from ringloom.planner.workload import Workload
from ringloom.rows import shortage
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.scenario import Scenario
from ringloom.trials import Case, Trials, asked_for


@dataclass(frozen=True)
class Attention:
    """Seconds of all layers' attention over one sequence, its peak bytes, a schedule per mask.

    There are no schedules where one rank has whole sequences.
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
    room: float,
    taken: int,
    *,
    every: bool = False,
) -> Attention:
    """Returns the attention of a split on chips of `room` bytes, of which `taken` are not free.

    The schedules are those that compare lists; `every`: with the settings that it tries beyond.
    Raises PlanError where none fits.
    """
    seconds, peak, names = 0.0, 0, list[str]()
    for count, mask in model.masks(work):
        one = replace(work, mask=mask).split(split.tensor)
        best = _fastest(one, split, machine, room, taken, every)
        forward, backward = best.prediction.passes
        seconds += count * (forwards(checkpoint) * forward.makespan + backward.makespan)
        peak = max(peak, best.row.peak_bytes)
        names += [best.row.schedule] * (split.context > 1)
    return Attention(seconds, peak, tuple(names))


def _fastest(
    work: Workload, split: Split, machine: Hardware, room: float, taken: int, every: bool
) -> Case:
    scenario = Scenario(tensor_parallel=split.tensor)
    trials = Trials(work, split.context, "both", machine, scenario, math.inf)
    nodes = scenario.nodes(machine, split.context)
    names = asked_for(None, work, split.context, nodes, variants=False)
    if split.context == 1:  # all schedules are alike: nothing travels
        names = names[:1]
    outcomes = [trials.outcome(name) for name in names]
    cases = [one for one in outcomes if isinstance(one, Case)]
    if every and split.context > 1:
        more = asked_for(None, work, split.context, nodes)[len(names) :]
        cases += trials.improved(cases, more).cases
    fitting = [one for one in cases if taken + one.row.peak_bytes <= room]
    if not fitting:
        least = min(one.row.peak_bytes for one in cases)
        raise PlanError(shortage(taken + least, room))
    return min(fitting, key=lambda one: one.row.order)
