"""The vectorised recurrence equals a slow simulation, one rank and one row at a time."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringloom.planner.ir import ACCUMULATORS, INPUTS, TENSORS, Attend, Move, Plan, Step
from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import DTYPES, Workload
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.recurrence import run
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.network.ports import node_ports
from ringloom.simulator.prediction import simulate
from ringloom.simulator.timeline import Span, spans
from slow_prices import SlowPrices
from strategies import any_workloads, schedules

STREAMS = "compute", "merge"  # of a rank's own work
Arrived = tuple[Move, int, int, list[int], float, int]
SLOW = {  # a chip and links slow enough for small workloads to matter on all of them
    "intra.alpha": st.sampled_from([0.0, 1e-6, 1e-3]),
    "intra.bandwidth": st.sampled_from([1e5, 1e7, 1e12]),
    "inter.alpha": st.sampled_from([0.0, 1e-4]),
    "inter.bandwidth": st.sampled_from([1e4, 1e6]),
    "memory.bandwidth": st.sampled_from([1e5, 1e7, 1e12]),
    "peak.float64": st.sampled_from([1e5, 1e7, 1e12]),
    "peak.bfloat16": st.sampled_from([1e5, 1e7, 1e12]),
    "attention.launch": st.sampled_from([0.0, 1e-5, 1e-2]),
    "attention.tile_q": st.integers(1, 9),
    "attention.tile_kv": st.integers(1, 9),
    "attention.short_tile_q": st.integers(1, 9),
    "attention.skip_q": st.integers(1, 5),
    "attention.skip_kv": st.integers(1, 5),
    **dict.fromkeys(("attention.traffic", "attention.backward_traffic"), st.sampled_from([0, 0.6])),
    "attention.causal": st.sampled_from([1.0, 1.5]),
    "attention.mask": st.sampled_from([0.0, 1e-6]),
    "attention.bottom_right": st.sampled_from([0, 1]),
    "attention.merge": st.sampled_from([1.0, 4.0]),
    "attention.blocks": st.sampled_from([0, 1, 3]),
    "attention.host": st.sampled_from([0.0, 1e-3]),
    "inter.incast": st.sampled_from([1.0, 2.0]),
    "intra.sm_share": st.sampled_from([0.0, 0.3]),
    "node.ranks": st.integers(1, 4),
}
machines = st.fixed_dictionaries(SLOW).map(hardware("a100-nvlink").changed)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of every schedule, both passes, on 1 to 7 ranks."""
    ranks = draw(st.integers(1, 7))
    work = draw(any_workloads(draw(st.sampled_from(["float64", "bfloat16"])), longest=24))
    pass_ = draw(st.sampled_from(["forward", "backward"]))
    return plan(draw(schedules(ranks)), work, ranks, pass_=pass_)


@st.composite
def crowded(draw: st.DrawFn) -> Plan:
    """Nodes in which a rank has several rows and messages share ports in every way."""
    ranks = draw(st.integers(2, 4))
    work = Workload(seq=9, heads=2, head_dim=3, dtype="float64", mask=Full())
    base = plan("allgather", work, ranks)
    rows = [(b, r) for b in range(len(base.partition.kv)) for r in range(ranks)]
    owners = base.partition.kv.owners
    rows = draw(st.permutations([(b, r) for b, r in rows if owners[b] != r]))
    block, dst = zip(*rows, strict=True)
    tiles = draw(
        st.permutations([(q, k) for q in range(len(base.partition.q)) for k in range(len(owners))])
    )
    q, kv = zip(*tiles, strict=True)
    attend = Attend(base.partition.q.owners[list(q)], q, kv)
    steps = Step((), (Move(("KV",), block, owners[list(block)], dst),)), Step((attend,), ())
    return Plan("crowded", work, ranks, base.partition, "forward", (), (), steps)


@dataclass
class Reference(SlowPrices):
    """The semantics of a step, one row at a time, with every price from its definition."""

    overlap: bool
    now: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    port: dict[tuple[str, bool, int], float] = field(default_factory=lambda: defaultdict(float))
    busy: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    exposed: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    ready: dict[tuple[str, int, int], tuple[float, float]] = field(default_factory=dict)
    held: set[tuple[str, int, int]] = field(default_factory=set)
    parts: dict[tuple[str, int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    flying: list[tuple[tuple[str, int, int], set[int]]] = field(default_factory=list)
    taken: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    rows: int = 0  # rectangles so far
    last: float = 0.0
    moves: tuple[Move, ...] = ()  # of the step at hand
    times: list[list[list[float]]] = field(default_factory=list)

    def add(self, rank: int, tensor: str, blocks: list[int], arriving: bool) -> float:
        seconds = 0.0
        for block in blocks:
            if (tensor, block, rank) in self.held:
                seconds += self.price(tensor, block, arriving)
            self.held.add((tensor, block, rank))
        return seconds

    def returned(self, move: Move, block: int, src: int, dst: int) -> bool:
        """True if a sum goes to its owner with all that any rank adds to it, now or later."""
        (tensor,) = move.tensors
        side = TENSORS[tensor].side
        adds = sum(
            block in row
            for _, attend in self.plan.attends()
            for row in (attend.q if side == "q" else attend.kv).tolist()
        )
        owner = self.plan.side(tensor).blocks[block].home
        return dst == owner and len(self.parts[tensor, block, src]) == adds

    def start(self) -> None:
        plan, work = self.plan, self.plan.workload
        for tensor in INPUTS[plan.pass_]:
            for block, owner in enumerate(plan.side(tensor).owners.tolist()):
                self.ready[tensor, block, owner] = 0.0, 0.0
        for held in plan.start:
            for block, rank in zip(*held.flat(), strict=True):
                made = ("STATS",) if held.tensors == ("OUT",) else held.tensors
                self.ready.update({(t, int(block), int(rank)): (0.0, 0.0) for t in made})
        for block in plan.partition.q.blocks if plan.pass_ == "backward" else ():
            row = 2 * DTYPES[work.dtype] * work.v_head_dim + max(4, DTYPES[work.dtype])
            rows = block.size * len(block.heads) * work.batch
            self.now[block.home] += rows * row / self.machine["memory.bandwidth"]
        self.busy.update(self.now)

    def send(self, move: Move, begin: dict[int, float]) -> Iterator[Arrived]:
        nodes = self.machine.ranks_per_node
        for src, dst, row in zip(move.src.tolist(), move.dst.tolist(), move.blocks, strict=True):
            blocks = [b for b in row.tolist() if b >= 0]
            finished = move.accumulates and all(self.returned(move, b, src, dst) for b in blocks)
            size = sum(
                int(self.plan.block_bytes(t, finished)[b]) for t in move.tensors for b in blocks
            )
            far = src // nodes != dst // nodes
            out, in_ = ("out", far, src), ("in", far, dst)
            link = self.machine.links[far]
            began = max(begin[src], self.port[out], self.port[in_])
            if not self.overlap:
                began = max(began, begin[dst])
            for tensor in move.tensors:
                for block in blocks:
                    if move.accumulates:
                        self.held.discard((tensor, block, src))
                        carried = self.parts.pop((tensor, block, src), set())
                        self.flying.append(((tensor, block, dst), carried))
                    else:
                        began = max(began, self.ready[tensor, block, src][1])
            wire = float(size)
            if far and self.share(move, src, dst):
                wire *= self.machine.option("inter.incast")
            arrival = began + wire / link.bandwidth + link.alpha
            self.port[out] = self.port[in_] = arrival
            for rank in (src, dst) if self.overlap else ():
                self.taken[rank] += link.share * wire / link.bandwidth
            if not move.accumulates:
                new = {(t, b, dst): (begin[src], arrival) for t in move.tensors for b in blocks}
                self.ready.update(new)
            self.sent[src] += size
            self.last = max(self.last, arrival)
            yield move, src, dst, blocks, arrival, size

    def attend(self, node: Attend) -> Iterator[tuple[int, float]]:
        for rank, qs, kvs in zip(node.rank.tolist(), node.q, node.kv, strict=True):
            sides = {"q": qs[qs >= 0].tolist(), "kv": kvs[kvs >= 0].tolist()}
            free = self.now[rank]
            inputs = [
                self.ready[t, b, rank]
                for t in INPUTS[self.plan.pass_]
                for b in sides[TENSORS[t].side]
            ]
            start = max(free, *(arrival for _, arrival in inputs))
            waits = [arrival - max(free, offered) for offered, arrival in inputs]
            q, kv = ([getattr(self.plan.partition, s).blocks[b] for b in sides[s]] for s in sides)
            seconds = self.kernels(q, kv)
            seconds += self.taken.pop(rank, 0.0)
            self.rows += 1
            for tensor in ACCUMULATORS[self.plan.pass_]:
                seconds += self.add(rank, tensor, sides[TENSORS[tensor].side], arriving=False)
                for block in sides[TENSORS[tensor].side]:
                    self.parts[tensor, block, rank].add(self.rows)
            self.exposed[rank] += max(0.0, *waits)
            self.busy[rank] += seconds
            self.now[rank] = start + seconds
            yield rank, start

    def share(self, move: Move, src: int, dst: int) -> float:
        """Bytes, with those that stay, per byte of an all-to-all of heads; 0 where it is none."""
        side, owner = self.plan.partition.side(move.side), dst if move.accumulates else src
        given = list[set[int]]()
        for other in (m for m in self.moves if m.tensors == move.tensors):
            ends = other.dst if other.accumulates else other.src
            given += [{*row.tolist()} - {-1} for row in other.blocks[ends == owner]]
        cut = len({block.heads for block in side.blocks}) > 1
        own = all(side.blocks[b].home == owner for part in given for b in part)
        alike = len(given) > 1 and set.intersection(*given)
        return 1 + 1 / len(given) if cut and own and not alike else 0.0

    def step(self, step: Step) -> None:
        self.moves = step.moves
        begin = {rank: self.now[rank] for rank in range(self.plan.ranks)}
        self.taken.clear()
        arrivals = [message for move in step.moves for message in self.send(move, begin)]
        if not self.overlap:
            waits = defaultdict[int, float](float)
            for _, src, dst, _, arrival, _ in arrivals:
                for rank in (src, dst):
                    since = max(begin[rank], begin[src])
                    waits[rank] = max(waits[rank], arrival - since)
                    self.now[rank] = max(self.now[rank], arrival)
            for rank, wait in waits.items():
                self.exposed[rank] += wait
        first = dict[int, float]()
        for node in step.attends:
            for rank, start in self.attend(node):
                first.setdefault(rank, start)
        ranks = range(self.plan.ranks)
        ends = [self.now[rank] for rank in ranks]
        self.times.append([[*begin.values()], [first.get(r, self.now[r]) for r in ranks], ends])
        copies, last = defaultdict[int, float](float), dict[int, int]()
        for number, (move, src, dst, _, _, size) in enumerate(arrivals):
            if share := self.share(move, src, dst):
                copies[dst] += share * size
                last[dst] = number
        for number, (move, src, dst, blocks, arrival, _) in enumerate(arrivals):
            if move.accumulates or self.share(move, src, dst):
                self.exposed[dst] += max(0.0, arrival - max(self.now[dst], begin[src]))
                seconds = 0.0
                if move.accumulates:
                    seconds += sum(self.add(dst, t, blocks, arriving=True) for t in move.tensors)
                if last.get(dst) == number:  # packed and unpacked: read and written twice
                    seconds += 4 * copies[dst] / self.machine["memory.bandwidth"]
                self.now[dst] = max(self.now[dst], arrival) + seconds
                self.busy[dst] += seconds
        for place, carried in self.flying:
            self.parts[place] |= carried
        self.flying.clear()

    def run(self) -> "Reference":
        self.start()
        for step in self.plan.steps:
            self.step(step)
        return self

    def of_ranks(self, values: dict[int, float] | dict[int, int]) -> list[float]:
        return [values[rank] for rank in range(self.plan.ranks)]


def close(result: object, expected: object) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-15)  # type: ignore[arg-type]


def compare(one: Plan, machine: Hardware, overlap: bool) -> None:
    slow = Reference(one, machine, overlap).run()
    ports, pace = node_ports(machine, one.ranks), np.ones(one.ranks)
    timeline, sums = run(Costs(one, machine), ports, pace, overlap=overlap, record=True)
    close(timeline.finish, slow.of_ranks(slow.now))
    close(timeline.end, max(slow.last, *slow.of_ranks(slow.now)))
    close(sums.busy, slow.of_ranks(slow.busy))
    close(sums.exposed, slow.of_ranks(slow.exposed))
    close(sums.sent, slow.of_ranks(slow.sent))
    assert timeline.steps is not None
    if slow.times:
        close(timeline.steps, [*zip(*slow.times, strict=True)])


@given(plans(), machines, st.booleans())
def test_the_recurrence_equals_the_slow_simulation(
    one: Plan, machine: Hardware, overlap: bool
) -> None:
    compare(one, machine, overlap)


@given(crowded(), machines, st.booleans())
def test_rows_that_share_ranks_and_ports_take_turns(
    one: Plan, machine: Hardware, overlap: bool
) -> None:
    compare(one, machine, overlap)


def overlapping(one: list[Span]) -> bool:
    """True if any two of these spans run at the same time, rounding forgiven."""
    ordered = sorted((s.start, s.end) for s in one)
    return any(b < a - 1e-9 * max(1.0, a) for (_, a), (b, _) in pairwise(ordered))


@given(plans() | crowded(), machines, st.booleans())
def test_a_rank_does_one_thing_at_a_time_and_spans_add_up_to_its_busy_time(
    one: Plan, machine: Hardware, overlap: bool
) -> None:
    """Without overlap, nothing travels to or from it while it attends, either."""
    prediction = simulate(one, machine, overlap=overlap, record=True)
    assert prediction.timeline is not None
    every, prologue = spans(prediction.timeline), Costs(one, machine).prologue
    for rank in range(one.ranks):
        own = [s for s in every if s.rank == rank]
        work = [s for s in own if s.stream in STREAMS]
        wires = [s for s in own if s.stream not in STREAMS]
        assert not overlapping(work)
        assert all(0 <= s.start < s.end <= prediction.makespan * (1 + 1e-12) for s in own)
        close(prologue[rank] + sum(s.end - s.start for s in work), prediction.busy[rank])
        attends = [s for s in work if s.stream == "compute" and not overlap]
        assert not any(overlapping([attend, wire]) for attend in attends for wire in wires)
