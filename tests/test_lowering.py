"""Lowering: rules that say what the plan says, calls that cover the mask, an order that works."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen import emit, rules, tables
from codegen.calls import TILE, Call, causal_calls, count, full_calls, mask_calls
from codegen.lowering import lower
from codegen.order import Order, orders, verify_orders
from codegen.program import Program
from codegen.rows import Attend, Held, Move
from planner.errors import PlanError
from planner.ir import Plan
from planner.masks import Blocks, Causal, Documents, Full, Mask, Window, region_of
from planner.partitions import Block, Partition, Side, merge
from planner.planning import plan
from planner.schedules import SCHEDULES
from planner.workload import Workload
from strategies import masks, range_sets, ranks, schedules, workloads


def lowered(schedule: str, ranks: int, mask: Mask, **sizes: int) -> Program:
    work = Workload(**({"seq": 64 * ranks} | sizes), mask=mask)
    return lower(plan(schedule, work, ranks, pass_="both"))


# ---- rules


# One cell hidden: in a ring all ranks attend, then all but one, then all again.
HOLE = Blocks([[(i, j) != (1, 0) for j in range(8)] for i in range(8)], 64)


@pytest.mark.parametrize(
    "mask", [Causal(), Full(), Window(100), HOLE], ids=["causal", "full", "window", "hole"]
)
@pytest.mark.parametrize(
    "schedule",
    [*SCHEDULES, "burst:layout=striped", "allgather:keep=1", "usp:ring=1:layout=contiguous"],
)
def test_schedules_of_the_table_are_rules(schedule: str, mask: Mask) -> None:
    for number in range(1, 9):
        for heads, kv_heads in ((8, 8), (6, 3), (4, 1)):
            found = lowered(schedule, number, mask, heads=heads, kv_heads=kv_heads)
            assert found.layout.maker is not None
            assert all(schedule.rule for schedule in found.passes)


def test_what_no_rule_says_becomes_a_table() -> None:
    found = lowered("zigzag", 4, Causal() & Documents((20, 100, 136)))
    assert found.layout.maker is not None
    odd = replace(plan("ring", Workload(seq=8), 2), name="my own")
    assert lower(odd).forward.rule is None


def test_a_rule_is_not_believed_where_the_plan_differs() -> None:
    made = plan("ring", Workload(seq=64), 4)
    *most, last = made.steps
    changed = replace(made, steps=(*most[:-1], replace(most[-1], moves=()), last))
    assert lower(made).forward.rule == "ring"
    assert lower(changed).forward.rule is None


REGULAR = {"ring": 1024, "striped": 64, "zigzag": 64, "balanced": 256, "burst": 64,
           "allgather": 64, "ulysses": 64, "usp": 64}  # fmt: skip


@pytest.mark.parametrize("mask", [Causal(), Full()], ids=str)
@pytest.mark.parametrize("schedule", REGULAR)
def test_programs_do_not_grow_with_the_ranks(schedule: str, mask: Mask) -> None:
    works = {n: Workload(seq=1024 * n, kv_heads=8, mask=mask) for n in (8, REGULAR[schedule])}
    few, many = (emit(plan(schedule, works[n], n, pass_="both"), "torch") for n in works)
    assert few.count("\n") == many.count("\n")
    assert abs(len(many) - len(few)) <= 0.05 * len(few)


@given(st.data(), ranks, workloads())
def test_tables_read_as_they_were_written(data: st.DataObject, number: int, work: Workload) -> None:
    found = lower(plan(data.draw(schedules(number)), work, number, pass_="both"))
    for schedule in found.passes:
        nodes = schedule.nodes
        if nodes:
            read = list(tables.read_schedule("\n".join(tables.write_schedule(nodes))))
            assert list(map(plain, read)) == [row for node in nodes for row in rows_of(node)]
    for pieces in (found.layout.q, found.layout.kv):
        read_pieces = tables.read_pieces("\n".join(tables.write_pieces(pieces)))
        assert [(merge(a).tolist(), h) for a, h in pieces if any(a)] == [
            (merge(a).tolist(), h) for a, h in read_pieces if any(a)
        ]


def plain(node: Attend | Move | Held) -> tuple[object, ...]:
    """A node of one row, without its -1s."""
    return next(iter(rows_of(node)))


def rows_of(node: Attend | Move | Held) -> list[tuple[object, ...]]:
    columns = [
        [c] * len(node[-1]) if not isinstance(c, np.ndarray) else [some(x) for x in c] for c in node
    ]
    return list(zip(*columns, strict=True))


def some(value: np.ndarray | np.integer) -> object:
    return [int(x) for x in value if x >= 0] if np.ndim(value) else int(value)


# ---- collectives


def test_known_collectives_are_recognised() -> None:
    gathered = lowered("allgather", 4, Full())
    assert gathered.forward.exchanges == {0: "all-gather"}
    dealt = lowered("ulysses", 4, Full())
    assert set(dealt.forward.exchanges.values()) == {"all-to-all"}
    assert len(dealt.forward.exchanges) == 2
    assert lowered("ring", 4, Full()).forward.exchanges == {}


# ---- layouts


def test_a_partition_without_local_shards_is_refused() -> None:
    work = Workload(seq=4, heads=2, mask=Full())
    blocks = tuple(Block((range(4),), range(h, h + 1), h) for h in range(2))
    side = Side(blocks)
    made = Plan("mine", work, 2, Partition(side, side), "forward", (), (), ())
    with pytest.raises(PlanError, match="some rank holds only some heads of a token"):
        lower(made)


def test_only_forward_plans_and_pairs_are_lowered() -> None:
    forward, backward = plan("ring", Workload(seq=8), 2, pass_="both")
    with pytest.raises(PlanError, match="needs a forward plan"):
        lower(backward)
    with pytest.raises(PlanError, match="differ in workload"):
        lower((forward, plan("ring", Workload(seq=9), 2, pass_="backward")))
    with pytest.raises(PlanError, match="unknown target 'cobol'"):
        emit(forward, "cobol")


# ---- kernel calls


def covered(calls: list[Call], shape: tuple[int, int]) -> np.ndarray:
    """How often calls look at each pair, after checking that no row of a call sees nothing."""
    seen = np.zeros(shape, int)
    for call in calls:
        rows = np.arange(shape[0])[call.rows]
        columns = np.arange(shape[1])[call.columns]
        assert len(rows) == count(call.rows) > 0
        assert len(columns) == count(call.columns) > 0
        if call.kind == "spans":
            first, last = call.spans[:, :, :, None]
            inside = ((np.arange(len(columns)) >= first) & (np.arange(len(columns)) < last)).any(0)
        elif call.kind == "causal":
            assert len(rows) == len(columns)
            inside = np.tri(len(rows), dtype=bool)
        else:
            inside = np.ones((len(rows), len(columns)), bool)
        assert inside.any(axis=1).all()
        seen[np.ix_(rows, columns)] += inside
    return seen


@given(st.data(), st.integers(1, 60), st.integers(1, 60))
def test_calls_cover_the_mask_exactly_once(data: st.DataObject, seq: int, kv_seq: int) -> None:
    mask = data.draw(masks(seq, kv_seq))
    q, kv = (merge(data.draw(range_sets(n))) for n in (seq, kv_seq))
    calls = mask_calls(q, kv, kv_seq - seq, region_of(mask).pieces)
    np.testing.assert_array_equal(
        covered(calls, (len(q), len(kv))), mask.allowed(q + kv_seq - seq, kv).astype(int)
    )


@given(st.data(), st.integers(1, 60), st.integers(1, 60), st.integers(1, 5))
def test_causal_tiles_take_at_most_three_calls(
    data: st.DataObject, seq: int, kv_seq: int, step: int
) -> None:
    q, kv = (np.arange(data.draw(st.integers(0, step)), n, step) for n in (seq, kv_seq))
    calls = causal_calls(q, kv, kv_seq - seq)
    assert calls is not None
    assert len(calls) <= 3
    np.testing.assert_array_equal(
        covered(calls, (len(q), len(kv))), Causal().allowed(q + kv_seq - seq, kv).astype(int)
    )


def test_striped_tiles_are_causal_or_strictly_causal() -> None:
    first, second = np.arange(0, 64, 2), np.arange(1, 64, 2)
    assert causal_calls(first, first, 0) == [Call(slice(0, 32), slice(0, 32), "causal")]
    assert causal_calls(second, first, 0) == [Call(slice(0, 32), slice(0, 32), "causal")]
    assert causal_calls(first, second, 0) == [Call(slice(1, 32), slice(0, 31), "causal")]
    assert full_calls(first, second, 0) == [Call(slice(0, 32), slice(0, 32), "full")]


def test_a_crooked_diagonal_is_left_to_its_parts() -> None:
    assert causal_calls(np.array([0, 1, 8, 9]), np.arange(10), 0) is None


def test_a_long_window_costs_no_more_than_its_width() -> None:
    q = np.arange(8 * TILE)
    calls = mask_calls(q, q, 0, region_of(Window(2 * TILE)).pieces)
    looked = sum(count(call.rows) * count(call.columns) for call in calls)
    masked = sum(count(c.rows) * count(c.columns) for c in calls if c.kind == "spans")
    assert looked <= 1.5 * len(q) * 2 * TILE
    assert masked <= len(q) * TILE


def test_many_small_documents_share_a_call() -> None:
    calls = mask_calls(q := np.arange(400), q, 0, region_of(Documents((4,) * 100)).pieces)
    assert len(calls) == 1


# ---- order


def all_orders(found: Program) -> list[tuple[list[Order], bool]]:
    return [
        (orders(schedule, found.layout, found.ranks, backward), backward)
        for schedule, backward in zip(found.passes, (False, True), strict=False)
    ]


@given(st.data(), ranks, workloads())
def test_every_rank_finds_what_it_needs_in_its_slots(
    data: st.DataObject, number: int, work: Workload
) -> None:
    found = lower(plan(data.draw(schedules(number)), work, number, pass_="both"))
    for made, backward in all_orders(found):
        verify_orders(made, found.layout, backward)


def test_a_ring_needs_two_slots_and_its_gradient_three() -> None:
    (ahead, _), (back, _) = all_orders(lowered("ring", 8, Full()))
    assert all(order.slots == {"KV": 2} for order in ahead)
    assert all(order.slots == {"KV": 2, "DKV": 3} for order in back)


def sabotaged(what: str) -> list[Order]:
    made = deepcopy(all_orders(lowered("ring", 4, Full()))[0][0])
    turn = made[1].turns[1]
    match what:
        case "a lost receive":
            turn.receives.clear()
        case "a slot too early":
            slots = made[1].turns[0].receives[0].slots
            turn.receives = [replace(m, slots=slots) for m in turn.receives]
        case "a copy dropped":
            made[1].turns[0].frees += made[1].turns[0].receives[0].places
        case "a late send":
            for order in made:
                for one in order.turns:
                    one.step += 10 * (order.rank == 1)
    return made


SAID = {
    "a lost receive": "but rank 1 receives",
    "a slot too early": r"rank 1 puts \('KV', 3\) into slot 0, where \('KV', 0\) is",
    "a copy dropped": "rank 1 reads KV block 0, which is not there",
    "a late send": "but rank 1 receives",
}


@pytest.mark.parametrize("what", SAID)
def test_a_wrong_order_is_refused(what: str) -> None:
    with pytest.raises(PlanError, match=SAID[what]):
        verify_orders(sabotaged(what), lowered("ring", 4, Full()).layout, False)


def test_a_rule_that_misses_one_block_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = plan("zigzag", Workload(seq=64, heads=1, head_dim=4), 4), rules.ring

    def other(*what: Any) -> Iterator[Attend | Move | Held]:
        for node in said(*what):
            if isinstance(node, Attend) and node.step == 1:
                q = node.q.copy()
                q[-1, 0] = q[0, 0]
                yield node._replace(q=q)
            else:
                yield node

    assert lower(found).forward.rule == "ring"
    monkeypatch.setattr(rules, "ring", other)
    assert lower(found).forward.rule is None
