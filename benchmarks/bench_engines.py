"""Both engines beside the same model written in SimPy, on one machine in one run.

    python benchmarks/bench_engines.py --quick      smaller plans
    python benchmarks/bench_engines.py

ring        a full ring in which no link is shared: recurrence, event engine, SimPy
allgather   nodes of eight ranks behind one NIC each, chunks that take turns: event engine, SimPy
scale       a full ring of 1,024 ranks, 2.1 million tasks, by the recurrence alone

Ratios are of medians of processor time, engines in turn. SimPy is given the rows of the plan ready
made; the times of our engines are those from a plan to a timeline. All must agree on the makespan
and on what every rank does. SimPy: pip install -c constraints.txt -e '.[bench]', or make bench.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import thread_time

import numpy as np
from rich.console import Console
from rich.table import Table

from ringloom.planner.ir import Plan
from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.discrete_event import run_events
from ringloom.simulator.engines.recurrence import Sums, run
from ringloom.simulator.engines.tasks import RankStep, Tasks
from ringloom.simulator.engines.transfers import MOST_CHUNKS
from ringloom.simulator.hardware import hardware
from ringloom.simulator.network.ports import node_ports
from ringloom.simulator.network.routes import Routes, Traffic
from ringloom.simulator.network.topology import Topology, graph_of_links, nodes
from ringloom.simulator.scenario import CHUNK, Scenario
from ringloom.simulator.timeline import Timeline

try:
    import simpy
except ImportError:
    sys.exit("bench_engines: SimPy is missing: pip install -c constraints.txt -e '.[bench]'")

H100 = hardware("h100")
LEAST = {("ring", "recurrence"): 50.0, ("allgather", "events"): 3.0}  # times as fast as SimPy
SCALE = 0.15  # seconds
Times = tuple[float, list[float]]  # the makespan, the end of each rank


@dataclass
class InSimPy:
    """The model of the event engine in SimPy: processes, resources and events, plainly."""

    rows: Tasks
    traffic: Traffic
    env: simpy.Environment = field(default_factory=simpy.Environment)

    def __post_init__(self) -> None:
        pair = self.traffic.pair(np.array(self.rows.src), np.array(self.rows.dst))
        self.path = [self.traffic.paths[p] for p in pair]
        self.alone = [self.traffic.shared.isdisjoint(path.links) for path in self.path]
        self.links = [simpy.Resource(self.env) for _ in self.traffic.routes.links]
        self.offered, self.turn, self.arrived = ([self.env.event() for _ in pair] for _ in range(3))
        out, into = self.traffic.out[pair].tolist(), self.traffic.into[pair].tolist()
        self.after = dict[int, int]()
        last, queues = dict[int, int](), dict[int, list[int]]()
        for m in range(len(pair)):
            queues.setdefault(out[m], []).append(m)
            if into[m] in last:
                self.after[last[into[m]]] = m
            else:
                self.turn[m].succeed()
            last[into[m]] = m
        for queue in queues.values():
            self.env.process(self.stream(queue))
        self.finish = [0.0] * len(self.rows.steps)
        for rank, steps in enumerate(self.rows.steps):
            self.env.process(self.rank(rank, steps))

    def rank(self, rank: int, steps: list[RankStep]) -> Iterator[simpy.Event]:
        rows = self.rows
        for step in steps:
            for m in step.sends:
                self.offered[m].succeed()
            taken = sum(map(self.taken, (*step.sends, *step.receives)))
            for call in step.calls:
                for need in rows.reads[call]:
                    yield self.arrived[need]
                yield self.env.timeout(rows.seconds[call] + taken + rows.adding[call])
                taken = 0.0
            for m in step.merges:
                yield self.arrived[m]
                yield self.env.timeout(rows.merging[m])
        self.finish[rank] = self.env.now

    def stream(self, queue: list[int]) -> Iterator[simpy.Event]:
        """The messages over one link that leaves a rank, one after the other."""
        for m in queue:
            yield self.offered[m]
            for need in self.rows.needs[m]:
                yield self.arrived[need]
            yield self.turn[m]
            yield from self.transfer(m)
            yield self.env.timeout(self.path[m].alpha)
            self.arrived[m].succeed()
            if m in self.after:
                self.turn[self.after[m]].succeed()

    def taken(self, m: int) -> float:
        """Seconds that a message takes from the compute beside it, on either rank."""
        return self.path[m].share * self.rows.size[m] / self.path[m].bandwidth

    def transfer(self, m: int) -> Iterator[simpy.Event]:
        size = self.rows.size[m]
        if self.alone[m]:
            yield self.env.timeout(size / self.path[m].bandwidth)
            return
        pieces = max(1, min(MOST_CHUNKS, -(-size // CHUNK)))
        for piece in range(pieces):
            through = self.env.event()
            self.env.process(self.chunk(m, size / pieces, 0, 0.0, 0.0, through))
            first, start, end = yield through
            until = end if piece == pieces - 1 else max(first, start)
            yield self.env.timeout(max(0.0, until - self.env.now))

    def chunk(
        self, m: int, size: float, hop: int, before: float, first: float, through: simpy.Event
    ) -> Iterator[simpy.Event]:
        links = self.path[m].links
        with self.links[links[hop]].request() as turn:
            yield turn
            start = self.env.now
            end = max(start + size / self.traffic.routes.bandwidth[links[hop]], before)
            first = first if hop else end
            if hop + 1 < len(links):
                self.env.process(self.chunk(m, size, hop + 1, end, first, through))
            else:
                through.succeed((first, start, end))
            yield self.env.timeout(end - start)

    def run(self) -> Times:
        self.env.run()
        return self.env.now, self.finish


def by_simpy(costs: Costs, rows: Tasks, traffic: Traffic) -> Times:
    return InSimPy(rows, traffic).run()


def by_events(costs: Costs, rows: Tasks, traffic: Traffic) -> Times:
    timeline, _ = run_events(costs, traffic, Scenario())
    return timeline.end, timeline.finish.tolist()


def by_recurrence(costs: Costs, rows: Tasks, traffic: Traffic) -> Times:
    timeline, _ = recurrence(costs)
    return timeline.end, timeline.finish.tolist()


def recurrence(costs: Costs) -> tuple[Timeline, Sums]:
    ranks = costs.plan.ranks
    return run(costs, node_ports(costs.hardware, ranks), np.ones(ranks))


ENGINES: dict[str, Callable[[Costs, Tasks, Traffic], Times]] = {
    "recurrence": by_recurrence,
    "events": by_events,
    "SimPy": by_simpy,
}


def measure(one: Plan, traffic: Traffic, names: list[str], repeats: int) -> dict[str, float]:
    """Median seconds of each engine; they must agree."""
    costs = Costs(one, H100)
    rows, seconds = Tasks(costs, np.ones(one.ranks)), {name: list[float]() for name in names}
    for _ in range(repeats):
        results = dict[str, Times]()
        for name in names:
            began = thread_time()
            results[name] = ENGINES[name](costs, rows, traffic)
            seconds[name].append(thread_time() - began)
        for name in names[1:]:
            np.testing.assert_allclose(results[name][0], results[names[0]][0], rtol=1e-9)
            np.testing.assert_allclose(results[name][1], results[names[0]][1], rtol=1e-9)
    return {name: statistics.median(times) for name, times in seconds.items()}


def behind_nics(ranks: int) -> Routes:
    """Eight ranks to a NIC, on links that all differ a little, so that nothing ties."""
    intra, inter = H100.links
    links = list[tuple[int | str, int | str, float, float]]()
    for rank in range(ranks):
        own = 1 + 0.003 * (rank * 7 % ranks) + 1e-4 * rank
        links.append((rank, f"s{rank // 8}", intra.bandwidth * own, intra.alpha / 2))
        links.append((rank, f"n{rank // 8}", inter.bandwidth * own, 0.0))
    nics = [
        (f"n{node}", "fabric", inter.bandwidth * (1 + 0.0173 * node), inter.alpha / 2)
        for node in range(ranks // 8)
    ]
    return Routes(Topology("shared NICs", ranks, graph_of_links([*links, *nics])))


def cases(quick: bool) -> Iterator[tuple[str, Plan, Traffic, list[str]]]:
    """(name, plan, its traffic, the engines that can time it)."""
    ranks = 64 if quick else 512
    one = plan("ring", Workload(seq=2**18, mask=Full()), ranks)
    yield "ring", one, Traffic(one, Routes(nodes(H100, ranks))), [*ENGINES]
    ranks = 16 if quick else 64
    one = plan("allgather", Workload(seq=2**16, mask=Full()), ranks)
    traffic = Traffic(one, behind_nics(ranks))
    assert traffic.contended, "nothing to take turns for"
    yield "allgather", one, traffic, ["events", "SimPy"]


def scale(repeats: int) -> float:
    """The least seconds of 2.1 million tasks by the recurrence: what a quiet machine takes."""
    costs = Costs(plan("ring", Workload(seq=2**20, mask=Full()), 1024), H100)
    recurrence(costs)
    taken = []
    for _ in range(repeats):
        began = thread_time()
        recurrence(costs)
        taken.append(thread_time() - began)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller plans, no limits")
    quick = parser.parse_args().quick
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("case", "rows", "engine", "seconds", "SimPy / engine", "at least"):
        shown.add_column(head, justify="left" if head in ("case", "engine") else "right")
    missed, repeats = [], 1 if quick else 3
    for case, one, traffic, names in cases(quick):
        seconds = measure(one, traffic, names, repeats)
        for name in names:
            ratio = seconds["SimPy"] / seconds[name]
            wanted = LEAST.get((case, name), 0.0)
            least = f"{wanted:g}" if wanted else ""
            columns = case, f"{one.rows:,}", name, f"{seconds[name]:.4f}", f"{ratio:.1f}", least
            shown.add_row(*columns)
            if ratio < wanted:
                missed.append(f"{case}: {name} is {ratio:.1f} times as fast, not {wanted:g}")
    took = scale(3 * repeats)
    shown.add_row("scale", "2,096,128", "recurrence", f"{took:.4f}", "", f"{SCALE:g} s")
    if took > SCALE:
        missed.append(f"scale: {took:.3f} s, not {SCALE:g} s")
    Console().print(shown)
    if missed and not quick:  # a short run on a busy machine is no verdict
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
