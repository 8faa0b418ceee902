"""Passes: each keeps a plan exact for the verifier, and does what its docstring draws."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import TENSORS, Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.passes.exchanges import exchanges
from ringloom.planner.passes.pieces import join_messages, per_block, per_piece
from ringloom.planner.passes.relays import shortcut_copies, shortcut_sums
from ringloom.planner.passes.trim import drop_dead, drop_empty, drop_unused, trim
from ringloom.planner.schedules import SCHEDULES
from ringloom.planner.verify import verify
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.backends import run
from ringloom.runtimes.reference import dense
from strategies import masks

names, passes, ranks = (
    st.sampled_from(sorted(SCHEDULES)),
    st.sampled_from(["forward", "backward"]),
    st.integers(1, 7),
)
WORK = rl.Workload(seq=24, heads=2, head_dim=8, mask=rl.Full())
CAUSAL = replace(WORK, mask=rl.Causal())


def contiguous(work: rl.Workload, P: int) -> rl.Partition:
    return SCHEDULES["ring"].build(work, P, "forward").partition


def hand_made(work: rl.Workload, P: int, pass_: str, *steps: Step, start: tuple = ()) -> Plan:
    return Plan("hand-made", work, P, contiguous(work, P), pass_, start, (), steps)


@given(st.data(), names, passes, ranks)
def test_any_order_of_the_passes_stays_exact(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    mask = data.draw(masks(24, 24))
    built = SCHEDULES[name].build(replace(WORK, mask=mask), P, pass_)
    rewrites = [shortcut_sums, shortcut_copies, trim, per_piece, per_block, join_messages]
    for rewrite in data.draw(st.permutations(rewrites)):
        built = verify(rewrite(trim(built)))


@pytest.mark.parametrize(
    "takes_one", [rl.trim, rl.shortcut_sums, rl.shortcut_copies, rl.run_passes, rl.adjoint]
)
def test_a_pair_is_told_that_a_pass_takes_one_plan(takes_one: Any) -> None:
    with pytest.raises(PlanError, match=f"{takes_one.__name__} takes one plan, such as pair.for"):
        takes_one(rl.plan("ring", WORK, 2, pass_="both"))


def messages(plan: Plan) -> list[tuple[tuple[str, ...], frozenset[int], int, int]]:
    return [
        (move.tensors, frozenset(blocks) - {-1}, src, dst)
        for _, move in plan.moves()
        for blocks, src, dst in zip(
            move.blocks.tolist(), move.src.tolist(), move.dst.tolist(), strict=True
        )
    ]


@given(st.data(), names, passes, ranks)
def test_messages_go_whole_on_the_way_they_had_or_on_a_shorter_one(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    mask = data.draw(masks(24, 24))
    work = replace(WORK, mask=mask)
    built = messages(per_piece(SCHEDULES[name].build(work, P, pass_)))
    if mask in (rl.Full(), rl.Causal()):
        assert set(built) == set(messages(SCHEDULES[name].build(work, P, pass_)))
    for tensors, blocks, src, dst in messages(rl.plan(name, work, P, pass_=pass_)):
        same = [(s, d) for t, b, s, d in built if (t, b) == (tensors, blocks)]
        if TENSORS[tensors[0]].accumulates:  # leaves where it did, ends where such messages end
            assert src in {s for s, _ in same}
            assert dst in {d for _, d in same}
        else:  # comes where it did, from a rank that sends it
            assert dst in {d for _, d in same}
            assert src in {s for s, _ in same}


@given(st.data(), names, passes, ranks)
def test_trimming_by_blocks_is_exact_and_sends_no_more(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    work = replace(WORK, mask=data.draw(masks(24, 24)), dtype="float64")
    whole, blocks = (rl.plan(name, work, P, pass_=pass_, trim=t) for t in ("messages", "blocks"))
    least = sum(len(b) for _, b, _, _ in messages(blocks))
    assert least <= sum(len(b) for _, b, _, _ in messages(whole))
    if pass_ == "forward":
        q, k, v = draw(work, 0)[:3]
        within = {"rtol": 0, "atol": 1e-12}
        np.testing.assert_allclose(run(blocks, q, k, v), dense.forward(work, q, k, v)[0], **within)


@given(st.data(), names, passes, ranks)
def test_trimming_twice_changes_nothing(data: st.DataObject, name: str, pass_: str, P: int) -> None:
    mask = data.draw(masks(24, 24))
    once = trim(SCHEDULES[name].build(replace(WORK, mask=mask), P, pass_))
    assert trim(once) == once


def test_trim_drops_dead_tiles_unused_copies_and_empty_transfers() -> None:
    q, kv = Attend([0], [[0]], [[0]]), Attend([0], [[0]], [[1]])
    copy, empty = Move(("KV",), [[1]], [1], [0]), Move(("OUT",), [[1]], [0], [1])
    other = Attend([1], [[1]], [[1]]), Attend([1], [[1]], [[0]])
    back = Move(("KV",), [[0]], [0], [1])
    plan = hand_made(
        CAUSAL, 2, "forward", Step((q, other[0]), (copy, back)), Step((kv, other[1]), (empty,))
    )
    assert [a for _, a in drop_dead(plan).attends()] == [q, *other]
    assert [m for _, m in drop_unused(drop_dead(plan)).moves()] == [back, empty]
    assert [m for _, m in drop_empty(plan).moves()] == [copy, back]
    assert trim(plan).steps == (Step((q, other[0]), (back,)), Step((other[1],), ()))


def test_homeward_sends_a_finished_sum_straight_to_its_owner() -> None:
    ring = trim(SCHEDULES["ring"].build(replace(CAUSAL, seq=32, kv_seq=32), 4, "backward"))
    long, short = (
        {(b, dst) for _, tensors, b, _, dst in flat(plan) if tensors == ("DKV",)}
        for plan in (ring, verify(shortcut_sums(ring)))
    )
    assert (2, 0) in long  # past rank 0, which adds nothing to block 2
    assert (2, 0) not in short
    assert (2, 2) in short


FAR = rl.Blocks(((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 1)), 6)  # 3 sees 0


def test_what_is_added_later_does_not_travel_with_what_is_at_its_owner() -> None:
    built = trim(SCHEDULES["ring"].build(replace(WORK, mask=FAR), 4, "backward"))
    plan = verify(shortcut_sums(built))
    hops = [(n, *map(int, (m.src[0], m.dst[0]))) for n, m in plan.moves() if m.tensors == ("DKV",)]
    assert hops == [(4, 3, 0)]  # what rank 0 added stays there
    assert sum(len(m) for _, m in built.moves() if m.accumulates) == 16  # all around the ring


def test_sums_keep_their_way_where_a_shorter_one_would_not_bring_them_to_their_owners() -> None:
    """Block 0, sent to its owner at once, would leave by a message that names but has it not."""
    bring = Move(("KV",), [[0], [1]], [0, 1], [1, 0])
    one, back = Attend([1], [[1]], [[0]]), Attend([0], [[0]], [[1]])
    work = replace(WORK, mask=rl.Blocks(((0, 1, 0), (1, 1, 0), (0, 0, 1)), 8))
    plan = hand_made(
        work,
        3,
        "backward",
        Step((Attend([1, 2], [[1], [2]], [[1], [2]]),), (bring,)),
        Step((back, one), ()),
        Step((), (Move(("DKV",), [[0]], [1], [2]),)),
        Step((), (Move(("DKV",), [[0]], [2], [0]), Move(("DKV",), [[0, 1]], [0], [1]))),
    )
    verify(plan)
    assert shortcut_sums(plan) is plan


def test_direct_skips_ranks_that_only_pass_a_copy_on() -> None:
    built = trim(SCHEDULES["ring"].build(replace(WORK, mask=FAR), 4, "forward"))
    assert sum(len(m) for _, m in built.moves()) == 3  # 0 -> 1 -> 2 -> 3
    assert [m for _, m in shortcut_copies(built).moves()] == [Move(("KV",), [[0]], [0], [3])]


def test_after_a_rank_that_is_skipped_copies_come_from_where_their_way_begins() -> None:
    """Of 8 early and 8 late pieces, ranks 5, 6 and 7 use late piece 7: its owner sends it them."""
    work = replace(WORK, seq=256, kv_seq=256, mask=rl.Window(30))
    forward, backward = rl.plan("zigzag", work, 8, pass_="both")
    late = [(s, d) for _, _, b, s, d in flat(forward) if b == 8]
    assert late == [(7, 5), (7, 6)]
    sums = [(s, d) for _, tensors, b, s, d in flat(backward) if b == 8 and tensors == ("DKV",)]
    assert sums == [(5, 6), (6, 7)]  # and those of 7 stay with it


def test_copies_of_several_owners_may_be_held_by_one_rank() -> None:
    """Rank 0 has blocks 1 and 2 from the start: no one way brought them."""
    apart = replace(WORK, mask=rl.Documents((18, 6)))
    every = Attend([0, 1, 2, 3], [[0], [1], [2], [3]], [[0, 1, 2]] * 3 + [[3, -1, -1]])
    copies = Move(("KV",), [[0], [0], [1], [2]], [0, 0, 1, 2], [1, 2, 2, 1])
    held = InitialCopy(("KV",), [[1, 2]], [0])
    plan = hand_made(apart, 4, "forward", Step((), (copies,)), Step((every,)), start=(held,))
    for rewrite in (shortcut_copies, trim, shortcut_sums, per_piece, per_block, join_messages):
        assert verify(rewrite(plan)).steps


@pytest.mark.parametrize("by", [1, 2, 3])
def test_rows_that_fall_away_take_their_columns_with_them(by: int) -> None:
    """A column that only such a row filled would make rectangles of one shape look like two."""
    blocks = [[0, *[-1] * by], [-1, *[1] * by]]
    assert Attend([0, 1], blocks, [[0], [-1]]) == Attend([0], [[0]], [[0]])
    assert Move(("KV",), blocks, [0, 1], [1, 1]) == Move(("KV",), [[0]], [0], [1])
    assert Attend([0, 1], blocks, [[0], [-1]]).q.shape == (1, 1)
    assert Move(("KV",), blocks, [0, 1], [1, 1]).blocks.shape == (1, 1)


# ---- pieces


@pytest.mark.parametrize("name", ["allgather", "ulysses", "usp:ulysses=2", "allgather:node=2"])
def test_what_is_attended_together_stays_one_message(name: str) -> None:
    built = rl.plan(name, replace(WORK, seq=64, kv_seq=64), 4, passes=())
    windowed = replace(built, workload=replace(built.workload, mask=rl.Window(9)))
    hops = {n for n, m in built.moves() if name.startswith("usp") and n == 1}  # the ring of groups
    for before, after in zip(built.steps, per_piece(windowed).steps, strict=True):
        if built.steps.index(before) not in hops:
            assert before.moves == after.moves
        else:
            assert len(after.moves) == 2 * len(before.moves)


@given(st.data(), st.sampled_from(["zigzag", "usp", "burst"]), passes, ranks)
def test_pieces_are_the_blocks_of_their_messages(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    built = SCHEDULES[name].build(
        replace(WORK, mask=rl.Window(data.draw(st.integers(0, 9)))), P, pass_
    )
    for cut in (per_piece(built), per_block(built)):
        assert sorted(map(str, flat(join_messages(cut)))) == sorted(map(str, flat(built)))
    assert all(m.blocks.shape[1] == 1 for _, m in per_block(built).moves())


def flat(plan: Plan) -> list[tuple[int, tuple[str, ...], int, int, int]]:
    return [
        (n, m.tensors, *map(int, row))
        for n, m in plan.moves()
        for row in zip(*m.flat(), strict=True)
    ]


# ---- complete exchanges


def labels(P: int, *pairs: tuple[int, int]) -> list[int]:
    src, dst = zip(*pairs, strict=True)
    result = exchanges(P, [Move(("KV",), [[s] for s in src], src, dst)])
    return result.tolist()


def everybody(*ranks: int) -> list[tuple[int, int]]:
    return [(a, b) for a in ranks for b in ranks if a != b]


def test_an_exchange_is_complete_among_three_ranks_or_more() -> None:
    assert labels(4, *everybody(0, 1, 3)) == [0] * 6
    assert labels(4, *everybody(0, 1, 3)[1:]) == [-1] * 5
    assert labels(4, *everybody(0, 1)) == [-1] * 2
    assert labels(4, *[(r, (r + 1) % 4) for r in range(4)]) == [-1] * 4
    two = labels(8, *everybody(0, 2, 4), *everybody(1, 3, 5))
    assert len(set(two[:6])) == len(set(two[6:])) == 1
    assert -1 not in two
    assert two[0] != two[6]
    both_ways = [(r, (r + by) % 6) for by in (1, 5) for r in range(6)]
    assert labels(6, *both_ways) == [-1] * 12


def test_the_axes_of_a_mesh_are_exchanges_of_their_own() -> None:
    rows = [everybody(r, r + 1, r + 2) for r in (0, 3, 6)]
    columns = [everybody(c, c + 3, c + 6) for c in (0, 1, 2)]
    result = labels(9, *(pair for group in (*rows, *columns) for pair in group))
    groups = [set(result[at : at + 6]) for at in range(0, 36, 6)]
    assert all(len(group) == 1 for group in groups)
    assert len(set.union(*groups)) == 6
    assert -1 not in result


@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_blocks_of_no_token_do_not_travel(pass_: str) -> None:
    work = rl.Workload(seq=1, kv_seq=64, heads=4)
    for name in ("tree", "pass-q", "decode-a2a", "ulysses"):
        one = rl.plan(name, work, 4, pass_=pass_)
        sizes = {side: getattr(one.partition, side).sizes for side in ("q", "kv")}
        nodes = [*one.start, *(move for _, move in one.moves())]
        assert nodes
        assert all(sizes[n.side][n.blocks[n.blocks >= 0]].all() for n in nodes), name


@pytest.mark.parametrize("name", ["allgather", "allgather:layout=contiguous", "allgather:node=3"])
def test_a_gather_goes_whole_or_not_at_all(name: str) -> None:
    work = replace(WORK, seq=72, kv_seq=72)
    sent = [len(messages(rl.plan(name, replace(work, mask=mask), 6)))
            for mask in (rl.Full(), rl.Window(3), rl.Documents((12,) * 6))]  # fmt: skip
    assert sent[0] == sent[1]
    assert sent[2] == (0 if "contiguous" in name else sent[0])
    blocks = rl.plan(name, replace(work, mask=rl.Window(3)), 6, trim="blocks")
    assert len(messages(blocks)) < sent[1]


def test_what_is_held_of_several_owners_is_passed_on_from_where_it_is() -> None:
    start = (InitialCopy(("KV",), [[1, 2]], [0]),)
    attends = Attend([3], [[3]], [[1, 2]]), Attend([1], [[1]], [[1]]), Attend([2], [[2]], [[2]])
    on = Move(("KV",), [[1, 2]], [0], [3])
    plan = hand_made(CAUSAL, 4, "forward", Step((), (on,)), Step(attends), start=start)
    assert shortcut_copies(plan) == plan


def test_the_pass_that_broke_a_plan_is_the_one_that_is_told_of() -> None:
    """Whatever a later one makes of it: here it cannot go on, or breaks something else."""

    def forget(plan: Plan) -> Plan:
        return replace(plan, steps=plan.steps[1:])

    def narrow(plan: Plan) -> Plan:
        return replace(plan, buffers=(("KV", 0),))

    def stumble(plan: Plan) -> Plan:
        raise IndexError(plan.name)

    work = rl.Workload(seq=64, heads=4, mask=rl.Causal())
    for later in (), (stumble,), (narrow,):
        with pytest.raises(PlanError, match="block 0 never arrives there"):
            rl.plan("ring", work, 4, passes=(trim, forget, *later))
    with pytest.raises(PlanError, match="buffers allow 0"):
        rl.plan("ring", work, 4, passes=(trim, narrow))
    with pytest.raises(IndexError):
        rl.plan("ring", work, 4, passes=(trim, stumble))
