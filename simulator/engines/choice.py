"""Choice of the engine: the recurrence where no two messages can meet, events elsewhere.

Both engines apply, and agree to rounding, exactly when

* no link is shared: on every link, all messages are of one sender's stream or all are of one
  receiver's (`Traffic.contended` is False; on the default topology it always is),
* buffers are not limited, transfers are launched in time and take nothing from the chip.

Where nothing but the chip's share is in the way and a plan has more than `LARGE` rows, the choice
falls on the recurrence all the same, and the share is left out.
Speeds, slowed links and any topology are within the reach of both.
"""

from dataclasses import dataclass
from typing import Literal

from planner.errors import RingloomError
from simulator.costs.prices import Costs
from simulator.engines.discrete_event import run_events
from simulator.engines.recurrence import Sums, run
from simulator.network.ports import LinkPorts, NodePorts, Ports
from simulator.network.routes import Traffic
from simulator.scenario import Scenario
from simulator.timeline import Timeline

Engine = Literal["auto", "recurrence", "events"]
LARGE = 1 << 18  # rows
ENGINES: tuple[Engine, ...] = ("auto", "recurrence", "events")


@dataclass(frozen=True, eq=False)
class Timed:
    """The answer of an engine, its name, and True if messages may have met on a link."""

    timeline: Timeline
    sums: Sums
    engine: Engine
    contended: bool


def timed(costs: Costs, scenario: Scenario, engine: Engine, *, record: bool) -> Timed:
    """Time a plan; raises RingloomError where the recurrence cannot follow the scenario."""
    if engine not in ENGINES:
        raise RingloomError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")
    ranks, speed = costs.plan.ranks, scenario.speed(costs.plan.ranks)
    events_only = scenario.events_only or _takes(costs, scenario) or engine == "events"
    ports: Ports
    ordinary = scenario.topology is None and scenario.placement is None and not scenario.links
    if ordinary and not events_only:
        ports = NodePorts(costs.hardware, ranks)
    else:
        traffic = Traffic(costs.plan, scenario.routes(costs.hardware, ranks))
        why = _beyond_the_recurrence(traffic, scenario)
        if engine == "recurrence" and why:
            raise RingloomError(f"{costs.plan.name}: {why}, which only the event engine knows")
        if engine == "events" or why:
            timeline, sums = run_events(costs, traffic, scenario, record=record)
            return Timed(timeline, sums, "events", traffic.contended)
        ports = LinkPorts(traffic)
    timeline, sums = run(costs, ports, speed, overlap=scenario.overlap, record=record)
    return Timed(timeline, sums, "recurrence", False)


def _takes(costs: Costs, scenario: Scenario) -> bool:
    """True if transfers over the hardware's own links take a share of the chip worth following."""
    own = scenario.share is None and any(link.share for link in costs.hardware.links)
    return own and costs.plan.rows <= LARGE


def _beyond_the_recurrence(traffic: Traffic, scenario: Scenario) -> str:
    if traffic.contended:
        return f"messages share link {traffic.example()}"
    if scenario.buffers is not None:
        return "receives wait for buffers"
    if scenario.late:
        return "transfers are launched late"
    takes = any(path.share for path in traffic.paths) if scenario.share is None else False
    return "transfers take a share of the chip" if takes or scenario.share else ""
