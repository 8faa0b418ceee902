"""Matching a recorded run with a comparison: schedule, ranks, tiles attended, bytes sent.

A recording names neither tokens nor heads nor its mask: the tiles that it attended and the bytes of
its messages are what it knows of them.
"""

from collections import Counter
from collections.abc import Iterator

from planner.analysis.messages import message_bytes
from planner.errors import RingloomError
from planner.ir import Plan
from ringloom.comparison import Case, Comparison
from ringloom.report.facts.recorded import Done, Recorded
from ringloom.views.units import size
from simulator.timeline import block_names, tile_names


def matching(compared: Comparison, run: Recorded) -> Case:
    """The case that the run is of; raises RingloomError, with the numbers, where there is none."""
    names = [case.row.schedule for case in compared.cases]
    if run.plan not in names:
        raise RingloomError(
            f"the recorded run is of {run.plan!r}, the report of {', '.join(names)}"
        )
    if run.ranks != compared.ranks:
        raise RingloomError(f"the recorded run has {run.ranks} ranks, the report {compared.ranks}")
    case = compared.cases[names.index(run.plan)]
    _same_attends(case, run)
    _same_messages(case, run)
    return case


def _same_attends(case: Case, run: Recorded) -> None:
    asked = Counter(done for plan, _ in case.passes for done in _attends(plan))
    if run.attends == asked:
        return
    recorded, wanted = run.attends.total(), asked.total()
    raise RingloomError(
        f"the recorded run attends {recorded} times, {run.plan} of the report {wanted} times,"
        f" {(run.attends & asked).total()} of them alike: not the same mask, heads or pass"
    )


def _same_messages(case: Case, run: Recorded) -> None:
    """No message beyond those of the plan: one that took no time has no bar."""
    asked = Counter(done for plan, _ in case.passes for done in _messages(plan))
    if not (other := run.messages - asked):
        return
    done = next(iter(other))
    alike = [n for (rank, step, name, n) in asked if (rank, step, name) == done[:3]]
    wanted = f"{size(alike[0])} ({alike[0]} bytes)" if alike else "nothing of the kind"
    raise RingloomError(
        f"the recorded run's rank {done[0]} sends {done[2]} of {size(done[3])} ({done[3]} bytes) in"
        f" step {done[1] + 1}, {run.plan} of the report {wanted}: not the same workload"
    )


def _attends(plan: Plan) -> Iterator[Done]:
    for step, node in plan.attends():
        for rank, name in zip(node.rank.tolist(), tile_names(node), strict=True):
            yield rank, step, name, 0


def _messages(plan: Plan) -> Iterator[Done]:
    for step, move in plan.moves():
        ends = move.src.tolist(), move.dst.tolist(), message_bytes(plan, step, move).tolist()
        for src, dst, sent, name in zip(*ends, block_names(move), strict=True):
            yield src, step, f"{name} to {dst}", sent
