"""Choice of the engine: the recurrence where no two messages can meet, events elsewhere.

Both engines apply, and agree to rounding, exactly when

* no link is shared: on every link, all messages are of one sender's stream or all are of one
  receiver's (`Traffic.contended` is False; on the default topology it always is),
* buffers are not limited, and transfers are launched in time.

Speeds, slowed links and any topology are within the reach of both.
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
    """Times a plan; returns the engine, too, and True if messages may have met on a link.

    Raises RingloomError where the recurrence cannot follow the scenario.
    """
    if engine not in ENGINES:
        raise RingloomError(unknown("engine", engine, ENGINES))
    ranks, speed = costs.plan.ranks, scenario.speed(costs.plan.ranks)
    ordinary = scenario.topology is None and scenario.placement is None and not scenario.links
    ordinary &= costs.hardware.node == "switch" and engine != "events"
    if ordinary and scenario.buffers is None and not scenario.late:
        ports = node_ports(costs.hardware, ranks, scenario.share)
    else:
        traffic = Traffic(costs.plan, scenario.routes(costs.hardware, ranks))
        why = _beyond_the_recurrence(traffic, scenario)
        if engine == "recurrence" and why:
            raise RingloomError(f"{costs.plan.name}: {why}, which only the event engine knows")
        if engine == "events" or why:
            return *run_events(costs, traffic, scenario, record=record), "events", traffic.contended
        ports = link_ports(traffic, scenario.share)
    return *run(costs, ports, speed, overlap=scenario.overlap, record=record), "recurrence", False


def _beyond_the_recurrence(traffic: Traffic, scenario: Scenario) -> str:
    if traffic.contended:
        return f"messages share link {traffic.example()}"
    if scenario.buffers is not None:
        return "receives wait for buffers"
    return "transfers are launched late" if scenario.late else ""
