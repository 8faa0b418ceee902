"""Formulas equal what plans count, and crossovers are where the counts cross."""

from fractions import Fraction
from functools import cache

import pytest
import sympy

from command_line import CommandLine
from ringloom.planner.analysis.balance import loads
from ringloom.planner.analysis.liveness import occupancy
from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import TENSORS, Pass, Plan
from ringloom.planner.masks import Full
from ringloom.planner.planning import NO_PASSES, plan
from ringloom.planner.workload import Workload
from ringloom.reproduce.formulas import interpolation, symbolic
from ringloom.reproduce.formulas.counts import cells_speedup, critical_pairs, measure_idle
from ringloom.reproduce.formulas.interpolation import P, c
from ringloom.reproduce.formulas.symbolic import (
    crossovers,
    formulas,
    grouping,
    hiding_block,
    parities,
    striping_length,
)
from ringloom.reproduce.papers.striped import coarse_tiles
from ringloom.simulator.memory import memory
from sampling import square
from strategies import CLASSIC

HEAD_DIM = 4
RANKS = {
    **dict.fromkeys(CLASSIC, (2, 3, 4, 5, 7, 8, 12)),
    "balanced": (7, 8, 9, 11, 12, 16),
    "usp": (6, 8, 12),
}
CASES = [case for s, most in RANKS.items() for case in square([s], most, (2, 6, 16), every=3)]


def groups(schedule: str, ranks: int) -> int:
    return 2 if schedule == "usp" else ranks


def written(schedule: str) -> str:
    return "usp:ulysses=2" if schedule == "usp" else schedule


def work(schedule: str, ranks: int, block: int) -> Workload:
    kv_heads = ranks if schedule == "ulysses" else 2
    return Workload(
        seq=ranks * block, heads=2 * kv_heads, kv_heads=kv_heads, head_dim=HEAD_DIM, batch=1
    )


@cache
def predicted(schedule: str, ranks: int, block: int) -> dict[str, Fraction]:
    sizes = work(schedule, ranks, block)
    numbers = {
        "P": ranks,
        "U": groups(schedule, ranks),
        "R": ranks // groups(schedule, ranks),
        "c": block,
        "h": sizes.heads,
        "g": sizes.kv_heads,
        "d": HEAD_DIM,
        "e": 2,
        "w": 4,
    }
    values = {}
    for name, expr in formulas(schedule).items():
        value = expr.subs({symbol: numbers[symbol.name] for symbol in expr.free_symbols})
        values[name] = Fraction(int(value.p), int(value.q))
    return values


@cache
def planned(schedule: str, ranks: int, block: int, pass_: Pass = "forward") -> Plan:
    return plan(written(schedule), work(schedule, ranks, block), ranks, pass_=pass_)


def sent_elements(plan: Plan) -> int:
    total = 0
    for _, move in plan.moves():
        for name in move.tensors:
            tensor, side = TENSORS[name], plan.side(name)
            each = tensor.elements(plan.workload) + tensor.scalars
            total += sum(
                int(side.sizes[b] * side.head_counts[b]) * each
                for b in move.blocks[move.blocks >= 0]
            )
    return total


def sent_bytes(plan: Plan) -> int:
    return sum(int(message_bytes(plan, number, move).sum()) for number, move in plan.moves())


def held(plan: Plan, tensor: str, block: int) -> Fraction:
    side = plan.side(tensor)
    most = occupancy(plan, tensor, side.sizes * side.head_counts).max(initial=0)
    return Fraction(int(most), block * int(side.head_counts.sum() // len(side.chunks)))


@pytest.mark.parametrize(("schedule", "ranks", "block"), CASES)
def test_work_rounds_and_idle_shares_are_what_the_plan_counts(
    schedule: str, ranks: int, block: int
) -> None:
    said, measured = predicted(schedule, ranks, block), planned(schedule, ranks, block)
    heads, seq = measured.workload.heads, ranks * block
    assert said["rounds"] == measured.rounds
    assert said["pairs"] == critical_pairs(measured)
    assert said["all_pairs"] == seq * (seq + 1) // 2 * heads
    shares = measure_idle(measured)
    assert float(said["idle_cells"]) == pytest.approx(shares.cells_of_schedule, abs=1e-12)
    assert float(said["idle_cells_of_square"]) == pytest.approx(shares.cells_of_square, abs=1e-12)
    assert float(said["idle_areas"]) == pytest.approx(shares.areas, abs=1e-12)
    ring = critical_pairs(plan("ring", measured.workload, ranks))
    assert said["speedup"] == Fraction(seq * (seq + 1) // 2 * heads, critical_pairs(measured))
    assert said["speedup_over_ring"] == Fraction(ring, critical_pairs(measured))


@pytest.mark.parametrize(("schedule", "ranks", "block"), CASES)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_traffic_is_what_the_plan_sends(schedule: str, ranks: int, block: int, pass_: Pass) -> None:
    said, plan = predicted(schedule, ranks, block), planned(schedule, ranks, block, pass_)
    assert said[f"{pass_}_elements"] * ranks == sent_elements(plan)
    assert said[f"{pass_}_bytes"] * ranks == sent_bytes(plan)


@pytest.mark.parametrize(("schedule", "ranks", "block"), [x for x in CASES if x[1] > 2])
def test_slots_are_what_liveness_counts(schedule: str, ranks: int, block: int) -> None:
    said, plan = predicted(schedule, ranks, block), planned(schedule, ranks, block)
    assert said["slots_kv"] == held(plan, "KV", block)
    assert said["slots_q"] == held(plan, "Q", block)


def test_slots_are_what_the_simulators_memory_holds_beside_the_owned_blocks() -> None:
    plan = planned("striped", 8, 16)
    used, kv = memory(plan), int(plan.block_bytes("KV")[0])
    assert used.peak.max() == used.owned.max() + formulas("striped")["slots_kv"] * kv


def test_a_schedule_that_no_polynomial_describes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = interpolation.counts

    def bent(schedule: str, ranks: int, tokens: int) -> dict[str, Fraction]:
        return right(schedule, ranks, tokens) | {"rounds": Fraction(2**ranks)}

    monkeypatch.setattr(interpolation, "counts", bent)
    with pytest.raises(RingloomError, match="no polynomial for rounds"):
        interpolation.interpolated.__wrapped__("ring")


def test_the_printed_idle_shares_and_speedups_come_out() -> None:
    ring, balanced = formulas("ring"), formulas("balanced")
    assert sympy.simplify(ring["idle_cells_of_square"] - (P**2 - P) / (2 * P**2)) == 0
    assert sympy.limit(ring["idle_areas"], c, sympy.oo) == (P - 1) / (2 * P - 1)
    even, odd = (parities(balanced["idle_cells_of_square"])[name] for name in ("even P", "odd P"))
    assert even == 1 / (2 * P)
    assert odd == 0
    assert parities(balanced["idle_cells"])["even P"] == 1 / (P + 2)
    areas = parities(balanced["idle_areas"])["even P"]
    assert sympy.simplify(sympy.limit(areas, c, sympy.oo) - 1 / (P + 1)) == 0
    assert cells_speedup(planned("ring", 8, 4)) == 4.5
    assert cells_speedup(planned("balanced", 8, 4)) == 7.2


# Crossovers


def test_the_block_that_hides_the_ring_computes_as_long_as_it_travels() -> None:
    flops, bandwidth, block = 64e9, 1e9, 64
    sizes = {"e": 2, "g": 4, "h": 4, "F": flops, "B": bandwidth}
    measured = hiding_block()
    assert float(measured.subs({s: sizes[s.name] for s in measured.free_symbols})) == block
    built = plan("ring", Workload(seq=4 * block, heads=4, head_dim=8), 4)
    computes = 4 * 8 * critical_pairs_of_a_full_block(built) / flops
    assert computes == pytest.approx(built.block_bytes("KV")[0] / bandwidth)


def critical_pairs_of_a_full_block(built: Plan) -> int:
    return int(loads(built)[1].max())


def tile_times(tiles: int, extra: Fraction, ranks: int, tile: int = 16) -> tuple[Fraction, ...]:
    seq = ranks * tiles * tile
    counts = [coarse_tiles(name, seq, ranks, (tile, tile)) for name in ("ring", "striped")]
    return tuple(count.live + extra * count.cut for count in counts)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("extra", [Fraction(0), Fraction(1, 3), Fraction(1, 2)])
def test_striping_wins_from_the_length_that_is_solved(ranks: int, extra: Fraction) -> None:
    numbers = {"P": ranks, "a": 16, "mu": sympy.Rational(extra.numerator, extra.denominator)}
    length = striping_length()
    solved = length.subs({s: numbers[s.name] for s in length.free_symbols})
    assert solved == ranks * 16 * (1 + extra) / (1 - extra)
    for tiles in range(1, 8):
        ring, striped = tile_times(tiles, extra, ranks)
        assert (striped < ring) == (ranks * tiles * 16 > solved)
        assert (striped == ring) == (ranks * tiles * 16 == solved)


def test_tiles_move_what_a_loop_over_them_loads_and_pay_from_the_memory_that_is_solved() -> None:
    tokens, dim, memory = 512, 16, 4096
    rows, moved = memory // (4 * dim), 0
    for _ in range(0, tokens, rows):
        moved += 2 * rows * dim  # a tile of K and V
        moved += sum(3 * rows * dim for _ in range(0, tokens, rows))  # Q, the output there and back
    size = {symbolic.c: tokens, symbolic.d: dim, symbolic.M: memory}
    assert symbolic.tiled().subs(size) == moved
    assert symbolic.untiled().subs(size) > moved
    turn = symbolic.tiling_memory()
    assert turn == 3 * symbolic.d**2
    for factor, pays in ((2, True), (sympy.Rational(1, 2), False)):
        long = {symbolic.c: 2**20, symbolic.d: dim, symbolic.M: factor * turn.subs(symbolic.d, dim)}
        assert bool(symbolic.tiled().subs(long) < symbolic.untiled().subs(long)) == pays


@pytest.mark.parametrize("head_dim", [16, 128])
def test_queries_travel_backward_until_groups_are_large_enough(head_dim: int) -> None:
    measured = grouping(in_bytes=True)
    numbers = {"d": head_dim, "e": 2, "w": 4}
    crossing = float(measured.subs({s: numbers[s.name] for s in measured.free_symbols}))
    assert 1 < crossing < 2
    for group in (1, 2, 4):
        sizes = Workload(seq=16, heads=4, kv_heads=4 // group, head_dim=head_dim, mask=Full())
        keys, queries = (
            hop_bytes(plan(s, sizes, 4, pass_="backward", passes=NO_PASSES), tensors)
            for s, tensors in (("ring", ("KV", "DKV")), ("burst", ("Q", "DOUT", "STATS", "DQ")))
        )
        assert (keys < queries) == (group > crossing)
    elements = grouping(in_bytes=False)
    assert sympy.limit(elements, next(iter(elements.free_symbols)), sympy.oo) == sympy.Rational(
        4, 3
    )


def hop_bytes(plan: Plan, tensors: tuple[str, ...]) -> int:
    """Bytes of a rank's own blocks of what travels."""
    own = {tensor: plan.side(tensor).owners == 0 for tensor in tensors}
    return sum(int(plan.block_bytes(tensor)[part].sum()) for tensor, part in own.items())


# The command


@pytest.mark.parametrize("schedule", sorted(CLASSIC))
def test_the_command_prints_within_80_columns(schedule: str, ringloom: CommandLine) -> None:
    assert "pairs on the critical path" in ringloom.narrow("formula", schedule)


def test_json_formulas_are_expressions_that_sympy_reads(ringloom: CommandLine) -> None:
    document = ringloom.json("formula", "striped")
    said = sympy.sympify(document["formulas"]["pairs"])
    values = {"P": 8, "c": 4, "h": 2}
    assert said.subs({s: values[s.name] for s in said.free_symbols}) == 8 * 10 * 2
    assert len(document["crossovers"]) == len(crossovers()) == 5


def test_a_schedule_without_formulas_is_refused(ringloom: CommandLine) -> None:
    with pytest.raises(RingloomError, match="no formulas for 'spiral'"):
        formulas("spiral")
    ringloom.refused("formula", "spiral")
