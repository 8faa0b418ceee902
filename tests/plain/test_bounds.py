"""Lower bounds: no plan beats them, and on small instances not even the best of all plans."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain.test_simulator_reference import crowded, machines, plans
from planner.analysis.tiles import tiles
from planner.ir import Attend, Move, Plan, Step
from planner.layouts import by_tokens
from planner.masks import Blocks, Causal, Full, Mask, Window
from planner.planning import plan
from planner.verify import verify
from planner.workload import Workload
from sampling import NIGHTLY as EVERY
from simulator.bounds import Bounds, Limits, best_bound, lower_bounds
from simulator.costs.prices import Costs
from simulator.engines.recurrence import run
from simulator.hardware import Hardware, hardware
from simulator.network.ports import NodePorts
from simulator.network.reach import Reach
from simulator.prediction import simulate
from simulator.scenario import Scenario

A100 = hardware("a100-nvlink")
ROUNDING = 1 + 1e-9
Tile = tuple[int, int]


@given(plans() | crowded(), machines, st.booleans())
def test_no_plan_beats_any_bound(one: Plan, machine: Hardware, overlap: bool) -> None:
    result, reach = simulate(one, machine, overlap=overlap), Reach.of_hardware(machine, one.ranks)
    limits = lower_bounds(Costs(one, machine), reach, np.ones(one.ranks))
    assert [limit.why for limit in limits] == ["compute", "link", "latency", "dependency"]
    for limit in limits:
        assert result.makespan * ROUNDING >= limit.seconds, limit
    assert result.bounds == best_bound(limits)
    assert result.bounds.seconds == result.bound == max(limit.seconds for limit in limits)
    assert result.bound_ratio * ROUNDING >= 1.0
    assert result.bound <= result.own_limit <= result.makespan * ROUNDING
    assert result.compute_bound == limits[0].seconds


PLACES = st.sampled_from([None, "ring", "switch", "nodes:nics=1"])


@given(plans() | crowded(), machines, PLACES, st.floats(0.1, 3.0), st.floats(0.05, 2.0))
def test_no_plan_beats_a_bound_in_any_scenario(
    one: Plan, machine: Hardware, place: str | None, speed: float, factor: float
) -> None:
    links: dict[Any, float] = {(0, 1): factor} if one.ranks > 1 else {}
    scenario = Scenario(topology=place, speeds={0: speed}, links=links)
    result = simulate(one, machine, scenario)
    assert result.makespan * ROUNDING >= result.bound
    assert result.makespan * ROUNDING >= result.own_limit


def test_no_plan_beats_a_bound_where_links_are_faster_than_the_hardware_says() -> None:
    slow = A100.changed({"intra.bandwidth": 1e9})
    one = plan("allgather", Workload(seq=2**12, heads=8, mask=Full()), 4)
    links: dict[Any, float] = {(rank, "s0"): 1000.0 for rank in range(4)}
    assert simulate(one, slow).bounds.why == "link"
    result = simulate(one, slow, Scenario(links=links))
    assert result.bound <= result.makespan < simulate(one, slow).bound


def assignments(one: Plan) -> Iterator[dict[Tile, int]]:
    """Every way to give every live tile of a plan to a rank."""
    table = tiles(one)
    q, kv = (np.arange(len(side), dtype=np.int32) for side in (one.partition.q, one.partition.kv))
    live = [(int(i), int(j)) for i, j in product(q, kv) if table.live(q[i : i + 1], kv[j])[0]]
    for ranks in product(range(one.ranks), repeat=len(live)):
        yield dict(zip(live, ranks, strict=True))


def schedules(one: Plan, given_to: dict[Tile, int]) -> Iterator[Plan]:
    """Plans in which every tile is attended where it was given to.

    Inputs go straight from home, what is at home is attended first, all tiles of a q block in one
    row; accumulators go straight home. Every night also in all orders of messages, with what is
    at home last, and tile by tile.
    """
    homes = [one.partition.q.homes.tolist(), one.partition.kv.homes.tolist()]
    q = sorted({(i, r) for (i, _), r in given_to.items() if homes[0][i] != r})
    kv = sorted({(j, r) for (_, j), r in given_to.items() if homes[1][j] != r})
    sent = [("Q", i, homes[0][i], r) for i, r in q] + [("KV", j, homes[1][j], r) for j, r in kv]
    ready = {t: r for t, r in given_to.items() if homes[0][t[0]] == r == homes[1][t[1]]}
    later = {t: r for t, r in given_to.items() if t not in ready}
    back = Step((), moves([("OUT", i, r, homes[0][i]) for i, r in q]))
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
    ports, pace = NodePorts(machine, one.ranks), np.ones(one.ranks)
    found = [
        (run(Costs(built, machine), ports, pace)[0].end, number, built)
        for number, built in enumerate(
            built for given_to in assignments(one) for built in schedules(one, given_to)
        )
    ]
    assert found, "nothing was enumerated"
    best, _, built = min(found)
    verify(built)
    return best


def tiny(ranks: int, mask: Mask, kv_heads: int = 2) -> Plan:
    work = Workload(
        seq=6 * ranks, heads=2, kv_heads=kv_heads, head_dim=4, dtype="float64", mask=mask
    )
    partition = by_tokens(work, ranks, "contiguous", 1)
    return Plan("tiny", work, ranks, partition, "forward", (), (), ())


def bound_of(one: Plan, machine: Hardware) -> float:
    reach = Reach.of_hardware(machine, one.ranks)
    return best_bound(lower_bounds(Costs(one, machine), reach, np.ones(one.ranks))).seconds


@settings(max_examples=200 if EVERY else 20)
@given(machines, st.sampled_from([Full(), Causal(), Window(3, 2)]), st.integers(1, 2))
def test_two_ranks_cannot_do_better_however_tiles_are_dealt(
    machine: Hardware, mask: Mask, kv_heads: int
) -> None:
    one = tiny(2, mask, kv_heads)
    assert optimum(one, machine) * ROUNDING >= bound_of(one, machine)


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
def test_three_ranks_cannot_do_better_however_tiles_are_dealt(name: str, mask: Mask) -> None:
    plain = {"attention.launch": 1e-6, "attention.tile_q": 1, "attention.tile_kv": 1}
    machine, one = A100.changed(plain | MACHINES[name]), tiny(3, mask)
    assert optimum(one, machine) * ROUNDING >= bound_of(one, machine) > 0


EVEN = Scenario()


def bounds(one: Plan, machine: Hardware = A100, scenario: Scenario = EVEN) -> dict[str, Bounds]:
    """The bounds by their reasons."""
    reach = Reach.of_hardware(machine, one.ranks)
    limits = lower_bounds(Costs(one, machine), reach, scenario.speed(one.ranks))
    assert simulate(one, machine, scenario).bounds == best_bound(limits)
    return {limit.why: limit for limit in limits}


def test_slow_chips_are_bound_by_compute_and_slow_links_by_links() -> None:
    work = Workload(seq=2**14, heads=32, mask=Full())
    one = plan("ulysses", work, 8)

    def best(key: str, value: float, ranks: int = 8) -> tuple[str, str]:
        bound = simulate(plan("ulysses", work, ranks), A100.changed({key: value})).bounds
        return bound.why, bound.group

    assert best("peak.bfloat16", 1e10) == ("compute", "all ranks")
    assert best("intra.bandwidth", 1e7) == ("link", "rank")
    assert best("inter.bandwidth", 1e6, ranks=32) == ("link", "node")
    limits = bounds(one, A100.changed({"intra.alpha": 1.0}))
    largest, latency = best_bound(limits.values()), limits["latency"]
    assert largest.seconds == pytest.approx(latency.seconds, rel=1e-3)
    assert latency.group == "tile"


def test_the_bound_of_a_pair_is_the_sum_of_both_and_says_why_the_longer_one_is() -> None:
    both = simulate(plan("zigzag", Workload(seq=2**14), 8, pass_="both"), A100)
    forward, backward = (one.bounds for one in both.passes)
    assert both.bounds.seconds == forward.seconds + backward.seconds
    assert forward.seconds < backward.seconds
    assert (both.bounds.why, both.bounds.group) == (backward.why, backward.group)


def test_the_link_bound_of_two_ranks_is_what_one_has_to_receive() -> None:
    """Infinitely fast chips: one rank receives the Q rows (or K and V rows) of the other.

    Half of all pairs has both sides at home. The other half needs at least one Q row per seq pairs
    (16 bytes each at head_dim 8, 36 of output back) or one K and V row per 256 queries at home.
    """
    work = Workload(seq=512, heads=1, head_dim=8, mask=Full())
    fast = {"peak.bfloat16": 1e30, "intra.alpha": 0, "attention.launch": 0}
    machine = A100.changed(fast | {"intra.bandwidth": 1e3})
    link = bounds(plan("ring", work, 2), machine)["link"].seconds
    foreign = 512 * 512 / 2
    per_byte = max(512 / 16, 256 / 32), max(256 / 16, 512 / 32)
    assert link == pytest.approx(foreign / (2 * min(per_byte) * 1e3), rel=1e-6)
    assert simulate(plan("ring", work, 2), machine).makespan > link


@pytest.mark.parametrize(("pass_", "ways"), [("forward", 1), ("backward", 2)])
def test_latency_is_a_launch_and_a_message_each_way(pass_: str, ways: int) -> None:
    machine = A100.changed({"attention.launch": 3e-6, "intra.alpha": 1e-5})
    limits = bounds(plan("ring", Workload(seq=512), 4, pass_=pass_), machine)  # type: ignore[call-overload]
    assert limits["latency"].seconds == pytest.approx(machine.launch(pass_) + ways * 1e-5)  # type: ignore[arg-type]


def test_documents_at_home_need_no_message() -> None:
    grid = tuple(tuple(i == j for j in range(4)) for i in range(4))
    one = plan("ring", Workload(seq=512, mask=Blocks(grid, 128)), 4)
    assert bounds(one)["latency"].seconds == A100.launch("forward")
    assert simulate(one, A100).messages == 0


def test_a_straggler_lowers_what_all_can_do_by_its_share() -> None:
    one = plan("striped", Workload(seq=2**14), 8)
    even, slow = (bounds(one, A100, Scenario(speeds=s))["compute"] for s in (None, {3: 0.5}))
    assert slow.seconds == pytest.approx(even.seconds * 8 / 7.5)


def test_the_bound_ratio_tells_what_the_plans_own_limit_hides() -> None:
    """A striped ring over slow links is near its own bound and far from the best of all plans."""
    slow = A100.changed({"intra.bandwidth": 1e9})
    found = simulate(plan("striped", Workload(seq=2**14), 8), slow)
    assert found.own_limit == found.link_bound
    assert found.makespan < 1.1 * found.own_limit
    assert found.bound_ratio > 2
    assert simulate(plan("ulysses", Workload(seq=2**14), 8), slow).bound_ratio < found.bound_ratio


@pytest.mark.parametrize("name", ["ulysses", "usp", "zigzag"])
def test_pairs_at_home_are_counted_by_chunks_as_tile_by_tile(name: str) -> None:
    one = plan(name, Workload(seq=1003, heads=12, kv_heads=4, mask=Causal()), 16)
    group = np.repeat(np.arange(4, dtype=np.int32), 4)
    limits = Limits(Costs(one, A100), Reach.of_hardware(A100, 16), np.ones(16))
    homes = group[one.partition.q.homes], group[one.partition.kv.homes]
    q, kv = np.nonzero(homes[0][:, None] == homes[1])
    pairs = tiles(one).pairs(q.astype(np.int32), kv.astype(np.int32))
    counted = limits.local(group)
    assert counted.all()
    np.testing.assert_array_equal(counted, np.bincount(homes[0][q], pairs))
