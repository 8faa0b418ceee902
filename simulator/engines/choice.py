"""Which engine times a plan: the recurrence where no two messages can meet, events elsewhere.

Both apply, and agree to rounding, exactly when

* no link is shared: on every link, all messages are of one sender's stream or all are of one
  receiver's (`Traffic.contended` is False; on the default topology it always is),
* buffers are not limited, transfers are launched in time and take nothing from the chip.

Where nothing but the chip's share is in the way and a plan has more than `LARGE` rows, the choice
falls on the recurrence all the same, and the share is left out.
Speeds, slowed links and any topology are within the reach of both.
"""

from dataclasses import dataclass
from typing import Literal

import networkx as nx

from planner.errors import PlanError
from planner.ir import Plan
from simulator.costs import Costs
from simulator.engines.discrete_event import run_events
from simulator.engines.recurrence import Sums, run
from simulator.hardware import Hardware
from simulator.network.ports import LinkPorts, NodePorts, Ports
from simulator.network.reach import Reach
from simulator.network.routes import Routes, Traffic
from simulator.network.topology import Topology, nodes
from simulator.network.topology import topology as spelled_topology
from simulator.scenario import Scenario
from simulator.timeline import Timeline

Engine = Literal["auto", "recurrence", "events"]
LARGE = 1 << 18  # rows
ENGINES: tuple[Engine, ...] = ("auto", "recurrence", "events")


@dataclass(frozen=True, eq=False)
class Timed:
    """What an engine found out, which one it was, and whether messages may have met on a link."""

    timeline: Timeline
    sums: Sums
    engine: Engine
    contended: bool


def timed(costs: Costs, scenario: Scenario, engine: Engine, *, record: bool) -> Timed:
    """Time a plan; raises PlanError where the recurrence is asked for what it cannot know."""
    if engine not in ENGINES:
        raise PlanError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")
    ranks, pace = costs.plan.ranks, scenario.pace(costs.plan.ranks)
    events_only = scenario.events_only or _takes(costs, scenario) or engine == "events"
    ports: Ports
    if scenario.by_default and not events_only:
        ports = NodePorts(costs.hardware, ranks)
    else:
        place = scenario.topology or nodes(costs.hardware, ranks)
        traffic = Traffic(costs.plan, Routes(place, scenario.links))
        why = _beyond_the_recurrence(traffic, scenario)
        if engine == "recurrence" and why:
            raise PlanError(f"{costs.plan.name}: {why}, which only the event engine knows")
        if engine == "events" or why:
            timeline, sums = run_events(costs, traffic, scenario, record=record)
            return Timed(timeline, sums, "events", traffic.contended)
        ports = LinkPorts(traffic)
    timeline, sums = run(costs, ports, pace, overlap=scenario.overlap, record=record)
    return Timed(timeline, sums, "recurrence", False)


def _takes(costs: Costs, scenario: Scenario) -> bool:
    """Whether transfers over the hardware's own links take a share of the chip worth following."""
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


def place_of(
    topology: Topology | nx.Graph | str | None, hardware: Hardware, plan: Plan
) -> Topology | None:
    """The topology that is meant; a graph's nodes 0 to ranks - 1 are the ranks."""
    if isinstance(topology, str):
        return spelled_topology(topology, hardware, plan.ranks)
    if topology is None or isinstance(topology, Topology):
        if topology is not None and topology.ranks != plan.ranks:
            raise PlanError(
                f"topology {topology.name} has {topology.ranks} ranks, the plan has {plan.ranks}"
            )
        return topology
    return Topology("given", plan.ranks, topology)


def reach_of(costs: Costs, scenario: Scenario) -> Reach:
    """What links can do at the most under some scenario, for lower bounds."""
    if scenario.by_default or scenario.topology is None:
        return Reach.of_hardware(costs.hardware, costs.plan.ranks)
    return Reach.of_routes(Routes(scenario.topology, scenario.links))
