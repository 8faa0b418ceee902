"""Lower bounds: no plan of their class is below them, nor the best of all plans of a few tiles."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sanity_checks import run_checks

from plain.test_simulator_reference import crowded, machines, plans
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, InitialCopy, Move, Pass, Plan, Step
from ringloom.planner.layouts import by_tokens
from ringloom.planner.masks import Blocks, Causal, Full, Mask, Window
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.planning import plan
from ringloom.planner.schedules import comparable_schedules
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload
from ringloom.simulator.bounds import Bounds, lower_bound, reason_outside_class
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.recurrence import run
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.network.ports import node_ports
from ringloom.simulator.prediction import simulate
from ringloom.simulator.scenario import Scenario
from sampling import NIGHTLY as EVERY
from strategies import masks, workloads

A100 = hardware("a100-nvlink")
EVEN = Scenario()
ROUNDING = 1 + 1e-9
PLACES = st.sampled_from([None, "ring", "switch", "nodes:nics=1"])
Tile = tuple[int, int]


@settings(max_examples=5000 if EVERY else 100)
@given(
    plans() | crowded(),
    machines,
    PLACES,
    st.booleans(),
    st.floats(0.1, 3.0),
    st.floats(0.05, 2.0),
)
def test_no_plan_of_the_class_is_below_the_bound_in_any_scenario(
    one: Plan, machine: Hardware, place: str | None, overlap: bool, speed: float, factor: float
) -> None:
    links: dict[Any, float] = {(0, 1): factor} if one.ranks > 1 else {}
    scenario = Scenario(overlap, topology=place, speeds={0: speed}, links=links)
    result = simulate(one, machine, scenario)
    assert result.bound == bound_of(one, machine, scenario)
    assert result.makespan * ROUNDING >= result.plan_lower_bound >= result.busiest_link
    assert result.bound_inapplicable_reason == reason_outside_class(one)
    if result.bound_ratio is None:
        assert result.bound_reason
    else:
        assert result.makespan * ROUNDING >= result.bound.seconds
        assert result.plan_lower_bound >= result.bound.seconds
    assert result.bound.seconds >= result.compute_bound.seconds
    assert result.plan_lower_bound >= result.compute_bound.seconds


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, int, Pass]:
    """Workloads as they are trained or decoded, on some nodes: bounds of every kind."""
    ranks = draw(st.sampled_from([2, 3, 4, 8, 12]))
    seq = draw(st.sampled_from([ranks * 64, 1000, 2**14, 1, 9]))
    kv_seq = draw(st.sampled_from([seq, seq, 2 * seq] if seq > 9 else [1000, 2**17]))
    kv_heads = draw(st.sampled_from([1, 4, 8]))
    work = Workload(
        seq=seq,
        kv_seq=kv_seq,
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        mask=draw(st.sampled_from([Causal(), Causal(), Full()]) | masks(seq, kv_seq, 0)),
    )
    return work, ranks, draw(st.sampled_from(["forward", "backward"]))


fast_chips = st.fixed_dictionaries(
    {
        "peak.bfloat16": st.sampled_from([3e14, 1e16]),
        "intra.bandwidth": st.sampled_from([1e10, 3e11]),
        "inter.bandwidth": st.sampled_from([1e8, 2e10]),
        "memory.bandwidth": st.sampled_from([1e10, 2e12]),
        "node.ranks": st.sampled_from([2, 3, 8]),
    }
).map(A100.changed)


@settings(max_examples=500 if EVERY else 20)
@given(cases(), fast_chips)
def test_a_workload_has_one_bound_and_predictions_of_its_schedules_are_sound(
    case: tuple[Workload, int, Pass], machine: Hardware
) -> None:
    """No schedule is below the bound, by any engine, and none is slower where rates are higher."""
    work, ranks, pass_ = case
    names, bounds = comparable_schedules(work, ranks, machine.ranks_per_node), set[Bounds]()
    for name in names if EVERY else ["zigzag", *names[-3:]]:
        try:
            one = plan(name, work, ranks, pass_=pass_)
        except PlanError:
            continue
        result = simulate(one, machine, record=False)
        bounds.add(result.bound)
        assert result.bound_ratio is None or result.bound_ratio * ROUNDING >= 1.0, name
        if EVERY or name == "zigzag":
            assert [check for check, holds in run_checks(one, machine) if not holds] == [], name
    assert len(bounds) == 1


RATES = [*(f"{part}.bandwidth" for part in ("memory", "intra", "inter"))]
RATES += ["peak.bfloat16", "attention.forward"]


@given(cases(), fast_chips, st.sampled_from(RATES), st.floats(1.0, 1.35))
def test_bounds_fall_with_bandwidth_and_rate_and_never_below_the_flop_at_peak(
    case: tuple[Workload, int, Pass], machine: Hardware, key: str, times: float
) -> None:
    slow, fast = (
        lower_bound(*case, hardware).seconds
        for hardware in (machine, machine.changed({key: machine[key] * times}))
    )
    assert fast <= slow * ROUNDING
    work, ranks, pass_ = case
    pairs = tiles(plan("ring", work, ranks)).total_pairs() * work.batch
    flop = pairs * 2 * work.head_dim * (2 if pass_ == "forward" else 5)
    assert slow * ROUNDING >= flop / machine.peak(work.dtype) / ranks


def assignments(one: Plan) -> Iterator[dict[Tile, int]]:
    """Every way to give every live tile of a plan to a rank."""
    table = tiles(one)
    q, kv = (np.arange(len(side), dtype=np.int32) for side in (one.partition.q, one.partition.kv))
    live = [(int(i), int(j)) for i, j in product(q, kv) if table.live(q[i : i + 1], kv[j])[0]]
    for ranks in product(range(one.ranks), repeat=len(live)):
        yield dict(zip(live, ranks, strict=True))


def schedules(one: Plan, given_to: dict[Tile, int]) -> Iterator[Plan]:
    """Plans in which every tile is attended where it was given to.

    Inputs go straight from their owners, who attend what they have first, all tiles of a q block in
    one row; accumulators go straight to their owners. Every night also in all orders of messages,
    with what is owned last, and tile by tile.
    """
    owners = [one.partition.q.owners.tolist(), one.partition.kv.owners.tolist()]
    q = sorted({(i, r) for (i, _), r in given_to.items() if owners[0][i] != r})
    kv = sorted({(j, r) for (_, j), r in given_to.items() if owners[1][j] != r})
    sent = [("Q", i, owners[0][i], r) for i, r in q] + [("KV", j, owners[1][j], r) for j, r in kv]
    ready = {t: r for t, r in given_to.items() if owners[0][t[0]] == r == owners[1][t[1]]}
    later = {t: r for t, r in given_to.items() if t not in ready}
    back = Step((), moves([("OUT", i, r, owners[0][i]) for i, r in q]))
    for order in permutations(sent) if EVERY and one.ranks < 3 else [tuple(sent)]:
        for joined in (True, False) if EVERY else (True,):
            attends = [rows(part, joined) for part in (ready, later)]
            early = Step(attends[0], moves(order)), Step(attends[1], ()), back
            late = Step((), moves(order)), Step((*attends[1], *attends[0]), ()), back
            for steps in (early, late) if EVERY else (early,):
                yield replace(one, start=(), buffers=(), steps=tuple(filter(None, steps)))


def moves(sent: Sequence[tuple[str, int, int, int]]) -> tuple[Move, ...]:
    return tuple(Move((t,), [block], [src], [dst]) for t, block, src, dst in sent)


def rows(part: dict[Tile, int], joined: bool) -> tuple[Attend, ...]:
    if not joined:
        return tuple(Attend([r], [i], [j]) for (i, j), r in part.items())
    together = dict[tuple[int, int], list[int]]()
    for (i, j), r in part.items():
        together.setdefault((r, i), []).append(j)
    return tuple(Attend([r], [[i]], [kv]) for (r, i), kv in together.items())


def optimum(one: Plan, machine: Hardware) -> float:
    """The shortest makespan of all these plans; the best of them is verified."""
    ports, pace = node_ports(machine, one.ranks), np.ones(one.ranks)
    result = [
        (run(Costs(built, machine), ports, pace)[0].end, number, built)
        for number, built in enumerate(
            built for given_to in assignments(one) for built in schedules(one, given_to)
        )
    ]
    assert result, "nothing was enumerated"
    best, _, built = min(result)
    verify(built)
    return best


def tiny(ranks: int, mask: Mask, kv_heads: int = 2) -> Plan:
    work = Workload(
        seq=6 * ranks, heads=2, kv_heads=kv_heads, head_dim=4, dtype="float64", mask=mask
    )
    partition = by_tokens(work, ranks, "contiguous", 1)
    return Plan("tiny", work, ranks, partition, "forward", (), (), ())


def bound_of(one: Plan, machine: Hardware, scenario: Scenario = EVEN) -> Bounds:
    return lower_bound(one.workload, one.ranks, one.pass_, machine, scenario)


@settings(max_examples=200 if EVERY else 20)
@given(machines, st.sampled_from([Full(), Causal(), Window(3, 2)]), st.integers(1, 2))
def test_two_ranks_cannot_do_better_however_tiles_are_shared_out(
    machine: Hardware, mask: Mask, kv_heads: int
) -> None:
    one = tiny(2, mask, kv_heads)
    assert optimum(one, machine) * ROUNDING >= bound_of(one, machine).seconds


MACHINES = {
    "slow links": {"intra.bandwidth": 1e5, "intra.alpha": 1e-6, "peak.float64": 1e9},
    "long ways": {"intra.bandwidth": 1e9, "intra.alpha": 1e-3, "peak.float64": 1e9},
    "slow chips": {"intra.bandwidth": 1e12, "intra.alpha": 0, "peak.float64": 1e5},
    "two nodes": {"node.ranks": 2, "inter.bandwidth": 1e5, "inter.alpha": 1e-5},
}


BAND = Blocks(((True, False, False), (True, True, False), (False, True, True)), 6)
CELLS = Blocks(((True, True, False), (False, True, True), (True, False, False)), 6)
THREE = [*zip(MACHINES, [BAND, CELLS, CELLS, BAND], strict=True)]


@pytest.mark.parametrize(
    ("name", "mask"), THREE + [(name, Causal()) for name in MACHINES if EVERY], ids=str
)
def test_three_ranks_cannot_do_better_however_tiles_are_shared_out(name: str, mask: Mask) -> None:
    plain = {"attention.launch": 1e-6, "attention.tile_q": 1, "attention.tile_kv": 1}
    machine, one = A100.changed(plain | MACHINES[name]), tiny(3, mask)
    assert optimum(one, machine) * ROUNDING >= bound_of(one, machine).seconds > 0


def test_slow_chips_are_bound_by_compute_or_memory_and_slow_links_by_links() -> None:
    work = Workload(seq=2**14, heads=32, mask=Full())

    def best(key: str, value: float, ranks: int = 8) -> tuple[str, str]:
        bound = lower_bound(work, ranks, "forward", A100.changed({key: value}))
        return bound.why, bound.group

    assert best("peak.bfloat16", 1e10) == ("compute", "all ranks")
    assert best("memory.bandwidth", 1e7) == ("memory", "all ranks")
    assert best("intra.bandwidth", 1e7) == ("link", "rank")
    assert best("inter.bandwidth", 1e6, ranks=32) == ("link", "node")
    assert best("intra.alpha", 1.0) == ("latency", "rank")


def test_few_queries_are_bound_by_reading_the_keys_that_they_see() -> None:
    """All ranks together read K and V of each KV head once, and queries; they write results."""
    work = Workload(seq=3, kv_seq=2**20, heads=32, kv_heads=8, mask="window:4093 | keys:7")
    bound = lower_bound(work, 8, "forward", A100)
    moved = 8 * (4096 + 7) * 2 * 128 * 2 + 32 * 3 * (2 * 128 * 2 + 4)
    assert bound.seconds == pytest.approx(moved / 8 / A100["memory.bandwidth"])
    assert (bound.why, bound.group) == ("memory", "all ranks")


@given(workloads())
def test_what_is_read_is_every_query_that_sees_a_key_and_every_key_that_is_seen(
    work: Workload,
) -> None:
    machine = A100.changed({"peak.float64": 1e30, "attention.forward": 1.0})
    allowed = work.allowed(range(work.seq), range(work.kv_seq))
    rows, columns = (int(allowed.any(axis=axis).sum()) for axis in (1, 0))
    moved = (
        work.heads * rows * (2 * work.head_dim + 1) + 2 * work.kv_heads * columns * work.head_dim
    )
    seconds = 8 * work.batch * moved / machine["memory.bandwidth"]
    assert lower_bound(work, 1, "forward", machine).seconds == pytest.approx(seconds)


def test_the_halves_of_a_torus_are_bound_by_the_links_between_them() -> None:
    slow, work = A100.changed({"intra.bandwidth": 1e7}), Workload(seq=2**14, mask=Full())
    bound = lower_bound(work, 64, "forward", slow, Scenario(topology="torus:64"))
    assert (bound.why, bound.group) == ("link", "half")


def test_the_bound_of_a_pair_is_the_sum_of_both_and_says_why_the_longer_one_is() -> None:
    both = simulate(plan("zigzag", Workload(seq=2**14), 8, pass_="both"), A100)
    forward, backward = (one.bound for one in both.passes)
    assert both.bound.seconds == forward.seconds + backward.seconds
    assert forward.seconds < backward.seconds
    assert (both.bound.why, both.bound.group) == (backward.why, backward.group)


def test_a_straggler_raises_the_compute_bound_by_its_share() -> None:
    work = Workload(seq=2**14)
    even, slow = (
        lower_bound(work, 8, "forward", A100, Scenario(speeds=s)) for s in (None, {3: 0.5})
    )
    assert slow.seconds == pytest.approx(even.seconds * 8 / 7.5)


def test_the_bound_ratio_tells_what_the_plans_own_limit_hides() -> None:
    """A striped ring over slow links is near its own limit and far from the best of all plans."""
    slow = A100.changed({"intra.bandwidth": 1e9})
    striped, ulysses = (
        simulate(plan(name, Workload(seq=2**14), 8), slow) for name in ("striped", "ulysses")
    )
    assert striped.plan_lower_bound == striped.busiest_link
    assert striped.makespan < 1.1 * striped.plan_lower_bound
    assert striped.bound == ulysses.bound
    assert striped.bound_ratio is not None
    assert ulysses.bound_ratio is not None
    assert 2 < ulysses.bound_ratio < striped.bound_ratio


def owned(*owners: Sequence[int], heads: int = 1) -> Plan:
    """A plan without steps whose tokens, one to a block, have these owners per head slice."""
    work = Workload(seq=len(owners[0]), heads=2, head_dim=4)
    parts = [range(2)] if len(owners) == 1 else [range(1), range(1, 2)]
    sides = [
        Side(
            tuple(
                Block((range(n, n + 1),), part, owner)
                for part, row in zip(parts, rows, strict=True)
                for n, owner in enumerate(row)
            )
        )
        for rows in (owners, owners)
    ]
    return Plan("owned", work, 2, Partition(*sides), "forward", (), (), ())


def test_plans_outside_the_class_say_why_and_leave_the_bound_as_it_is() -> None:
    assert reason_outside_class(owned([0, 1, 1, 0])) is None
    assert (
        reason_outside_class(owned([0, 0, 1, 0]))
        == "a rank owns 3 tokens of the query side, more than 2"
    )
    assert reason_outside_class(owned([0, 0, 1, 1], [0, 0, 1, 1])) is None
    assert (
        reason_outside_class(owned([0, 0, 1, 1], [1, 1, 0, 0]))
        == "the heads of a query have several owners"
    )
    one, other = owned([0, 1, 1, 0]), owned([0, 0, 1, 1])
    apart = replace(one, partition=Partition(one.partition.q, other.partition.kv))
    assert reason_outside_class(apart) == "the query and the key of a token have different owners"
    full = replace(apart, workload=replace(apart.workload, mask=Full()))
    assert reason_outside_class(full) is None
    copied = replace(full, start=(InitialCopy(("KV",), [0], [1]),))
    early = "copies of KV are away from their owners at the start"
    assert reason_outside_class(copied) == early
    assert reason_outside_class(replace(copied, pass_="backward")) is None
    result = simulate(plan("groups", Workload(seq=2**12, mask="documents:96,4000"), 8), A100)
    assert result.bound_inapplicable_reason
    assert result.compute_bound_ratio == result.makespan / result.compute_bound.seconds > 1
    assert (result.bound_ratio is None) == (result.bound_inapplicable_reason is not None)
    assert result.as_row()["bound_reason"] == result.bound_inapplicable_reason
