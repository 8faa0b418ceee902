"""Chooses the engine: the recurrence if no two messages can share a link, events otherwise.

Both engines apply, and agree up to rounding, exactly when

* no link is shared: on every link, all messages belong to the stream of one sender or of one
  receiver (`Traffic.contended` is False, as always on the default topology), and
* buffers are not limited, and transfers are not launched late.

Both engines support speeds, slow links and any topology.
"""

from typing import Literal

from ringloom.planner.errors import RingloomError, unknown
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.discrete_event import run_events
from ringloom.simulator.engines.recurrence import Sums, run
from ringloom.simulator.network.ports import link_ports, node_ports
from ringloom.simulator.network.routes import Traffic
from ringloom.simulator.scenario import Scenario
from ringloom.simulator.timeline import Timeline

Engine = Literal["auto", "recurrence", "events"]
ENGINES: tuple[Engine, ...] = ("auto", "recurrence", "events")


def timed(
    costs: Costs, scenario: Scenario, engine: Engine, *, record: bool
) -> tuple[Timeline, Sums, Engine, bool]:
    """Times a plan; also returns the engine, and True if messages may have shared a link.

    Raises RingloomError if `engine` is "recurrence" and the scenario needs events.
    """
    if engine not in ENGINES:
        raise RingloomError(unknown("engine", engine, ENGINES))
    ranks, speed = costs.plan.ranks, scenario.speed(costs.plan.ranks)
    by_nodes = scenario.topology is None and scenario.placement is None and not scenario.links
    by_nodes &= costs.hardware.node == "switch" and engine != "events"
    if by_nodes and scenario.buffers is None and not scenario.late:
        ports = node_ports(costs.hardware, ranks, scenario.share)
    else:
        traffic = Traffic(costs.plan, scenario.routes(costs.hardware, ranks))
        reason = _reason_for_events(traffic, scenario)
        if engine == "recurrence" and reason:
            raise RingloomError(f"{costs.plan.name}: {reason}, which needs engine='events'")
        if engine == "events" or reason:
            return *run_events(costs, traffic, scenario, record=record), "events", traffic.contended
        ports = link_ports(traffic, scenario.share)
    return *run(costs, ports, speed, overlap=scenario.overlap, record=record), "recurrence", False


def _reason_for_events(traffic: Traffic, scenario: Scenario) -> str:
    """Returns why the recurrence does not apply; "" if it applies."""
    if traffic.contended:
        return f"messages share link {traffic.example()}"
    if scenario.buffers is not None:
        return "receives wait for buffers"
    return "transfers are launched late" if scenario.late else ""
