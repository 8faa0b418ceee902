"""Plans by whole messages, until planning makes them so. To be deleted then."""

from dataclasses import replace

from planner.ir import Attend, Move, Pass, Plan, Step
from planner.loops import port
from planner.passes.trim import drop_dead
from planner.schedules import SCHEDULES
from planner.spelling import schedule
from planner.workload import Workload


def whole(name: str, work: Workload, ranks: int, pass_: Pass = "forward") -> Plan:
    """A plan of that schedule whose messages go whole or not at all."""
    kind, parameters = schedule(name)
    plan = drop_dead(SCHEDULES[kind].build(work, ranks, pass_, **parameters))
    return by_messages(replace(plan, name=name))


def by_messages(plan: Plan) -> Plan:
    """The plan without the messages that nobody needs; the others go whole."""
    steps = []
    for moves, attends in port.rows_of(plan, whole=True):
        made = tuple(Move(k, blocks, src, dst) for k, (src, dst, blocks) in moves.items())
        steps.append(Step((Attend(*attends),) if attends else (), made))
    return replace(plan, steps=tuple(steps))
