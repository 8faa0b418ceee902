"""Blocks cut at a mask's edges, and rows that see the same keys attended by one call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import ringloom as rl
from dense_attention import assert_dense
from ringloom.codegen.programs import program_of
from ringloom.codegen.torch.by_tables import tables_of
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS, Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.passes import by_rows as of_rows
from ringloom.planner.passes import edges
from ringloom.planner.passes.by_rows import AttendCosts, Price
from ringloom.planner.passes.edges import cut_at_edges
from ringloom.planner.passes.trim import drop_dead
from ringloom.runtimes.arrays import draw, draw_sinks
from ringloom.runtimes.backends import forward, run
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.prediction import simulate
from strategies import any_workloads, ranks, schedules

GRID = rl.Blocks(((1, 0, 1, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1)), 6)
WORK = rl.Workload(seq=24, heads=4, kv_heads=2, head_dim=8, mask=GRID, dtype="float64")
LARGE = rl.Workload(
    seq=65_536,
    heads=32,
    kv_heads=8,
    head_dim=128,
    mask=rl.Blocks(tuple(tuple((i + j) % 3 == 0 for j in range(32)) for i in range(32)), 2048),
)


class Priced:
    """Costs by a function of the rows and the columns of rectangles; adding costs nothing."""

    def __init__(self, plan: Plan, each: Callable[[Any, Any], NDArray[np.float64]]) -> None:
        self._plan, self._each = plan, each

    def attend(self, node: Attend) -> NDArray[np.float64]:
        sides = ((self._plan.partition.q, node.q), (self._plan.partition.kv, node.kv))
        return self._each(*(np.append(s.sizes, 0)[blocks].sum(axis=1) for s, blocks in sides))

    def per_block(self, event: str) -> dict[str, NDArray[np.float64]]:
        plan = self._plan
        return {t: np.zeros(len(plan.side(t)) + 1) for t in ACCUMULATORS[plan.pass_]}


def price(each: Callable[[Any, Any], Any]) -> Price:
    def costs(plan: Plan) -> AttendCosts:
        return Priced(plan, each)

    return costs


DEAR_CALLS = price(lambda rows, _: np.ones(len(rows)))
DEAR_ROOM = price(lambda rows, columns: (1.0 * rows * columns) ** 2)
H100 = rl.attend_price(rl.hardware("h100"))


def rectangles(plan: Plan) -> list[tuple[set[int], set[int]]]:
    rows = [(q, kv) for _, a in plan.attends() for q, kv in zip(a.q, a.kv, strict=True)]
    return [tuple({*side.tolist()} - {-1} for side in row) for row in rows]


@given(
    st.data(),
    ranks,
    any_workloads(longest=20),
    st.sampled_from([None, H100, DEAR_CALLS, DEAR_ROOM]),
    st.integers(0, 99),
)
def test_plans_cut_by_any_price_are_exact(
    data: st.DataObject, P: int, work: rl.Workload, price: Price | None, seed: int
) -> None:
    pair = rl.plan(data.draw(schedules(P)), work, P, pass_="both")
    cut = rl.verify(rl.by_rows(pair, price))
    inputs, sinks = draw(work, seed), draw_sinks(work, seed)
    _, lse = forward(cut.forward, *inputs[:3], sinks=sinks)
    assert_dense(work, inputs, run(cut, *inputs, sinks=sinks), sinks, lse)
    assert rl.by_rows(pair.backward, price) in (cut.backward, pair.backward)  # the same again


@given(st.data(), ranks, any_workloads(longest=20))
def test_parts_lie_between_edges_and_layouts_stay(
    data: st.DataObject, P: int, work: rl.Workload
) -> None:
    plan = rl.plan(data.draw(schedules(P)), work, P)
    cut = rl.verify(drop_dead(cut_at_edges(plan)))
    for name, at in zip(("q", "kv"), edges.edges(work), strict=True):
        before, after = plan.partition.side(name), cut.partition.side(name)
        for rank in range(P):
            np.testing.assert_array_equal(before.positions(rank), after.positions(rank))
        for chunk in after.chunks:
            if all(r.step == 1 for r in chunk):
                inside = [np.searchsorted(at, r, "right") for part in chunk for r in part]
                assert len({*map(int, inside)}) < 2


def test_rows_that_see_the_same_keys_are_one_full_call() -> None:
    plan = rl.plan("allgather:layout=contiguous", WORK, 1)
    assert rl.by_rows(plan, DEAR_CALLS) is plan  # one rectangle is fewest
    cut = rl.verify(rl.by_rows(plan, DEAR_ROOM))
    assert rectangles(cut) == [({0, 2}, {0, 2}), ({1}, {0, 1}), ({3}, {0, 1, 3})]
    assert tiles(cut).full(next(a for _, a in cut.attends())).all()


def test_documents_are_components_and_rows_below_them_are_full() -> None:
    mask = rl.Causal() & rl.Documents((4, 12, 8))
    plan = rl.plan("allgather:layout=contiguous", replace(WORK, mask=mask), 2)
    blocks = [({0}, {0}), ({1}, {1}), ({2}, {1, 2}), ({3}, {3})]
    assert rectangles(rl.verify(rl.by_rows(plan, price(lambda r, c: (r * c) ** 1.01)))) != blocks
    least = price(lambda rows, columns: rows * columns + 40.0)  # a call is worth 40 pairs
    assert rectangles(rl.verify(rl.by_rows(plan, least))) == blocks
    cut = rl.verify(rl.by_rows(plan, DEAR_ROOM))
    apart = [({0}, {0}), ({1}, {1}), ({2}, {1}), ({2}, {2}), ({3}, {3})]
    assert sorted(map(str, rectangles(cut))) == sorted(map(str, apart))


def test_moves_copies_and_buffers_name_the_parts() -> None:
    sides = (
        Side(tuple(Block((range(12 * r, 12 * r + 12),), range(heads), r) for r in range(2)))
        for heads in (4, 2)
    )
    tile = Attend([0, 1], [[0], [1]], [[0], [1]])
    cross = Attend([0, 1], [[0], [1]], [[1], [0]])
    other = Move(("KV",), [[0]], [0], [1])
    plan = Plan(
        *("hand-made", WORK, 2, Partition(*sides), "forward"),
        (InitialCopy(("KV",), [[1]], [0]),),
        (("KV", 1),),
        (Step((tile,), (other,)), Step((cross,))),
    )
    cut = cut_at_edges(plan)
    assert [len(side) for side in (cut.partition.q, cut.partition.kv)] == [4, 4]
    assert cut.start == (InitialCopy(("KV",), [[2, 3]], [0]),)
    assert [m for _, m in cut.moves()] == [Move(("KV",), [[0, 1]], [0], [1])]
    assert cut.buffers == (("KV", 2),)


def test_a_grid_of_blocks_takes_a_quarter_of_the_time() -> None:
    machine = rl.hardware("h100")
    for name, pass_, gain in (
        ("ulysses-stages:stages=2:ahead=1", "forward", 3.0),
        ("ulysses", "backward", 1.3),
    ):
        plan = rl.plan(name, LARGE, 8, pass_=pass_)
        cut = rl.plan(name, LARGE, 8, pass_=pass_, passes=[rl.trim, by_rows_on_h100])
        before, after = (simulate(one, machine).makespan for one in (plan, cut))
        assert before > gain * after


def by_rows_on_h100(plan: Plan) -> Plan:
    return rl.by_rows(plan, H100)


def test_the_price_keeps_documents_whole_where_that_is_cheaper() -> None:
    mask = rl.Causal() & rl.Documents((2048,) * 32)
    plan = rl.plan("ulysses", replace(LARGE, mask=mask), 8)
    assert rl.by_rows(plan, H100) is plan
    assert rl.by_rows(plan, DEAR_ROOM) is not plan


def test_without_a_price_calls_merges_and_pairs_count() -> None:
    assert rectangles(rl.by_rows(rl.plan("ulysses", LARGE, 8)))
    whole = rl.plan("ulysses", replace(LARGE, mask=rl.Causal()), 8)
    assert rl.by_rows(whole) is whole
    cut = rl.by_rows(rl.plan("ulysses", LARGE, 8))
    assert len(rectangles(cut)) == 3 * 8  # rows of three kinds


def test_strided_blocks_stay_whole() -> None:
    plan = rl.plan("striped", replace(WORK, mask=rl.Documents((5, 19))), 4)
    assert cut_at_edges(plan) is plan


def test_too_many_edges_tiles_or_parts_leave_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = rl.plan("allgather", WORK, 1)
    assert rl.by_rows(plan, DEAR_ROOM) is not plan
    for module, limit, value in (
        (edges, "MOST_EDGES", 9),
        (edges, "MOST_TILES", 15),
        (of_rows, "MOST_PARTS", 2),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, value)
            assert rl.by_rows(plan, DEAR_ROOM) is plan


def test_both_passes_are_cut_where_one_gains() -> None:
    pair = rl.plan("allgather:layout=contiguous:keep=1", WORK, 2, pass_="both")

    def backward_only(plan: Plan) -> AttendCosts:
        return (DEAR_ROOM if plan.pass_ == "backward" else DEAR_CALLS)(plan)

    cut = rl.by_rows(pair, backward_only)
    assert cut.forward is not None
    assert cut.forward.partition == cut.backward.partition != pair.forward.partition
    assert len(rectangles(cut.forward)) == len(rectangles(pair.forward))
    with pytest.raises(PlanError, match="need the same partition"):
        rl.verify((pair.forward, cut.backward))


@pytest.mark.parametrize("mask", [GRID, rl.Causal() & rl.Documents((4, 12, 8))], ids=str)
def test_table_programs_make_one_call_of_each_full_part(mask: rl.Mask) -> None:
    pair = rl.plan("allgather:layout=contiguous", replace(WORK, mask=mask), 2, pass_="both")
    cut = rl.by_rows(pair, DEAR_ROOM)
    tables = tables_of(program_of(cut, "torch"))
    for plan, name in ((cut.forward, "FORWARD"), (cut.backward, "BACKWARD")):
        made = [sum(len(calls) for step in rank for *_, calls in step[2]) for rank in tables[name]]
        costs, priced = Costs(plan, rl.hardware("h100")).rectangles, np.zeros(2, int)
        for _, node in plan.attends():
            np.add.at(priced, node.rank, costs.of(node)[0].astype(int))
            assert (costs.of(node)[0] == 1).all()
        assert made == priced.tolist()


def test_what_is_seen_in_part_is_attended_once() -> None:
    """Rows 3 and 4 see keys in part that the other sees in full."""
    work = replace(WORK, seq=36, kv_seq=36, mask=rl.Window(26, 14))
    cut = rl.by_rows(rl.plan("allgather", work, 3), DEAR_ROOM)
    assert len(rectangles(rl.verify(cut))) > 3


def test_rectangles_that_stay_whole_may_be_the_widest() -> None:
    work = replace(WORK, seq=20, kv_seq=20, mask=rl.Blocks(((0, 0, 0), (1, 1, 1), (0, 1, 1)), 7))
    cut = rl.by_rows(rl.plan("allgather", work, 4))
    assert len(rectangles(rl.verify(cut))) > 3


def test_sums_of_parts_have_the_slots_that_they_need() -> None:
    mask = rl.Global(2) | rl.Window(10)
    work = rl.Workload(seq=256, heads=2, kv_heads=1, mask=mask)
    plan = rl.plan("ring", work, 4, pass_="backward")
    made = rl.by_rows(plan, rl.attend_price(rl.hardware("a100-pcie")))
    assert made.partition != plan.partition
    assert rl.verify(made)
