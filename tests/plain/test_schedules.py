"""Every schedule of the table: what it attends, what it sends, and what the papers say of it."""

import ast
import inspect
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import IRREGULAR

import ringloom as rl
from ringloom.planner.analysis.balance import imbalance, loads
from ringloom.planner.analysis.liveness import slots
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS, INPUTS, Plan
from ringloom.planner.loops import recover
from ringloom.planner.loops.recovery import MOST_STATEMENTS
from ringloom.planner.schedules import SCHEDULES
from ringloom.planner.schedules.rings.multi import disjoint_rings
from shards import in_order
from strategies import OTHERS, masks

NAMES = sorted(SCHEDULES)
PASSES = ["forward", "backward"]


def attended(plan: Plan) -> list[tuple[int, int, int, int]]:
    """(round, rank, q block, kv block) of every tile of every rectangle."""
    return [
        (number, rank, q, kv)
        for number, attend in plan.attends()
        for rank, qs, kvs in zip(
            attend.rank.tolist(), attend.q.tolist(), attend.kv.tolist(), strict=True
        )
        for q in qs
        for kv in kvs
        if q >= 0 and kv >= 0
    ]


BY_MESSAGES = (  # of all others, exchanges among many ranks stay whole
    *("ring", "striped", "zigzag", "burst", "balanced", "bidirectional", "multi-ring"),
    *("cache-ring", "tokenring", "pass-q", "broadcast", "group-cast", "groups"),
)


@given(st.data(), st.sampled_from(BY_MESSAGES), st.sampled_from(PASSES), st.integers(1, 7))
def test_no_message_goes_to_a_rank_that_has_no_use_for_it(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    mask = data.draw(masks(30, 30))
    plan = rl.plan(name, rl.Workload(seq=30, heads=4, kv_heads=2, mask=mask), P, pass_=pass_)
    table = tiles(plan)
    useful = {"q": set(), "kv": set()}
    for _, rank, q, kv in attended(plan):
        if table.live(np.array(q), np.array(kv)):
            useful["q"].add((rank, q))
            useful["kv"].add((rank, kv))
    for number, move in plan.moves():
        if everyone_to_everyone(plan, number, move.tensors):
            continue  # a complete exchange stays whole
        owners = plan.partition.side(move.side).owners
        for dst, blocks in zip(move.dst.tolist(), move.blocks.tolist(), strict=True):
            returned = move.accumulates and owners[max(blocks)] == dst
            used = any((dst, block) in useful[move.side] for block in blocks)
            assert returned or used, (name, pass_, P, str(mask), move)


def everyone_to_everyone(plan: Plan, step: int, tensors: tuple[str, ...]) -> bool:
    """Returns True if at least three ranks of a step each send to all others, as in a gather."""
    moves = [m for m in plan.steps[step].moves if m.tensors == tensors]
    pairs = {pair for m in moves for pair in zip(m.src.tolist(), m.dst.tolist(), strict=True)}
    ranks = {rank for pair in pairs for rank in pair}
    return len(ranks) > 2 and len(pairs) == len(ranks) * (len(ranks) - 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pass_", PASSES)
def test_one_rank_needs_nobody(name: str, pass_: str) -> None:
    plan = rl.plan(name, rl.Workload(seq=40, heads=4), 1, pass_=pass_)
    assert not list(plan.moves())
    assert plan.rounds == 1


GRID_OF_EIGHT = """
11 81 71 61 --   22 21 82 72 --   33 32 31 83 --   44 43 42 41 --
55 54 53 52 51   66 65 64 63 62   77 76 75 74 73   88 87 86 85 84
"""  # DistFlashAttn's grid for 8 workers, counted from 1: one cell "q,kv" per step


def test_the_balanced_grid_of_eight_workers_is_the_published_one() -> None:
    plan = rl.plan("balanced", rl.Workload(seq=64, heads=2), 8)
    cells = {(number, rank): (q, kv) for number, rank, q, kv in attended(plan)}
    grid = [
        "".join(map(str, (x + 1 for x in cells[step, rank]))) if (step, rank) in cells else "--"
        for rank in range(8)
        for step in range(5)
    ]
    assert grid == GRID_OF_EIGHT.split()
    assert plan.rounds == 5


@pytest.mark.parametrize("P", range(2, 12))
def test_balanced_needs_half_the_rounds_of_a_ring(P: int) -> None:
    plan = rl.plan("balanced", rl.Workload(seq=8 * P, heads=2), P)
    assert plan.rounds == P // 2 + 1
    cells = Counter(rank for _, rank, _, _ in attended(plan))
    idle = P * plan.rounds - sum(cells.values())
    assert idle == (0 if P % 2 else P // 2)  # of P * P cells: 0 or 1/(2P), as published


@pytest.mark.parametrize(("P", "c"), [(2, 5), (4, 8), (5, 3)])
def test_striped_tiles_hold_the_published_work(P: int, c: int) -> None:
    plan = rl.plan("striped", rl.Workload(seq=P * c, heads=1), P)
    areas = tiles(plan).areas
    for j in range(P):
        for k in range(P):
            assert areas[j, k] == (c * (c + 1) // 2 if j >= k else c * (c - 1) // 2)


def test_a_causal_ring_waits_in_every_round_for_a_full_block_and_stripes_do_not() -> None:
    P, c = 8, 64
    ring, striped = (rl.plan(s, rl.Workload(seq=P * c, heads=1), P) for s in ("ring", "striped"))
    assert loads(ring).max(axis=1).tolist() == [c * (c + 1) // 2, *[c * c] * (P - 1)]
    assert loads(striped).max(axis=1).tolist() == [c * (c + 1) // 2] * P
    assert imbalance(ring) > 1.85
    assert imbalance(striped) < 1.02


@pytest.mark.parametrize("name", NAMES)
def test_inputs_travel_before_and_results_after(name: str) -> None:
    for pass_ in PASSES:
        plan = rl.plan(name, rl.Workload(seq=48, heads=4), 4, pass_=pass_)
        for _, move in plan.moves():
            assert set(move.tensors) <= {*INPUTS[pass_], *ACCUMULATORS[pass_]}
            if move.side == "q" and not move.accumulates:
                left = any(held.tensors == ("OUT",) for held in plan.start)  # and Q beside it
                backward = ("DOUT",) if left else ("Q", "DOUT", "STATS")
                assert move.tensors == (("Q",) if pass_ == "forward" else backward)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "P", "slices"),
    [(33, 33, 16, [3] + [2] * 15), (4, 2, 5, [1, 1, 1, 1]), (8, 1, 4, [2, 2, 2, 2])],
)
def test_ulysses_pads_no_heads(heads: int, kv_heads: int, P: int, slices: list[int]) -> None:
    work = rl.Workload(seq=4 * P, heads=heads, kv_heads=kv_heads, head_dim=8)
    plan = rl.plan("ulysses", work, P)
    assert [len(s) for s in plan.partition.q.slices] == slices


def test_ulysses_keeps_the_sequence_in_order() -> None:
    plan = rl.plan("ulysses", rl.Workload(seq=12, heads=4, head_dim=8), 4)
    assert in_order(plan.partition.q, 4).tolist() == list(range(12))


@pytest.mark.parametrize(
    ("elsewhere", "here"),
    [
        ("head-tail", "zigzag"),
        ("dual-chunk-swap", "zigzag"),
        ("strip", "striped"),
        ("PTRR", "snake"),
    ],
)
def test_layouts_go_by_the_names_of_peers_too(elsewhere: str, here: str) -> None:
    work = rl.Workload(seq=64, heads=4)
    plan = rl.plan(f"ring:layout={elsewhere}", work, 4)
    assert plan.name == f"ring:layout={elsewhere}"
    assert plan.partition == rl.plan(f"ring:layout={here}", work, 4).partition
    assert plan.partition == rl.plan("ring", work, 4, layout=elsewhere).partition


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("spiral", "unknown schedule 'spiral': choose one of ring"),
        ("USP", r"unknown schedule 'USP': did you mean 'usp'\? choose one of ring"),
        ("zigzg", r"unknown schedule 'zigzg': did you mean 'zigzag'\? choose one of ring"),
        ("ring:grain=2", "grain=2 needs one of striped"),
        ("striped:width=2", "striped has no parameter 'width'; its parameters: layout, grain"),
        ("striped:grain=wide", "striped:grain takes a whole number, not 'wide'"),
        ("burst:layout=3", "burst:layout takes a word, not 3"),
        ("burst:layout=spiral", "unknown layout 'spiral'"),
        ("usp:ulysses=3", "ulysses=3 x ring=1 is 3, not 4 ranks"),
        ("usp:ulysses=-1", "usp:ulysses takes a whole number, not '-1'"),
    ],
)
def test_bad_schedules_are_refused_by_name(written: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rl.plan(written, rl.Workload(seq=64, heads=4), 4)


def test_mistakes_of_a_schedule_are_told_under_a_causal_mask_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dead tiles were, which a pass drops; and of no plan that it has no name."""
    usual = SCHEDULES["tokenring"]

    def astray(work: rl.Workload, ranks: int, pass_: str) -> Plan:
        plan = usual.build(work, ranks, pass_)
        return replace(plan, steps=plan.steps[:-1])

    def forgetful(work: rl.Workload, ranks: int, pass_: str) -> None:
        astray(work, ranks, pass_)

    for build in astray, forgetful:
        mistaken = replace(usual, name=build.__name__, build=build)
        monkeypatch.setitem(SCHEDULES, build.__name__, mistaken)
    for mask in "full", "causal", "causal & window:100":
        work = rl.Workload(seq=256, heads=4, mask=mask)
        with pytest.raises(PlanError, match="still holds OUT block"):
            rl.plan("astray", work, 4)
    with pytest.raises(PlanError, match="forgetful must return a plan, not None"):
        rl.plan("forgetful", work, 4)


def test_no_schedule_takes_the_place_of_another_modules() -> None:
    """Comparisons would take it for the ring that they measure against."""

    def ring(work: rl.Workload, ranks: int, pass_: str) -> Plan:
        raise NotImplementedError

    with pytest.raises(PlanError, match="a schedule named ring is already registered"):
        rl.schedule(ring)
    assert rl.plan("ring", rl.Workload(seq=64), 4).rounds == 4


def _source(name: str) -> Path:
    build = SCHEDULES[name].build
    return Path(inspect.getfile(build.func if isinstance(build, partial) else build))


def test_a_schedule_has_at_most_sixty_lines_and_draws_what_travels() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in map(_source, NAMES)}
    assert [path.stem for path, count in lines.items() if count > 60] == ["usp"]
    for name in NAMES:
        drawn = ast.get_docstring(ast.parse(_source(name).read_text()))
        assert drawn is not None
        assert {"->", "travels"} & set(drawn.split()), f"{name} does not draw what travels"


# ---- schedules of the field


def test_there_are_at_least_24_names_of_at_least_20_plans() -> None:
    work = rl.Workload(seq=480, kv_seq=600, heads=16, kv_heads=8)
    plans = {name: rl.plan(name, work, 8) for name in NAMES}
    distinct = {(plan.partition, plan.steps) for plan in plans.values()}
    assert len(NAMES) >= 24
    assert len(distinct) >= 20
    assert plans["halo"].steps == plans["group-cast"].steps


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in IRREGULAR])
def test_regular_schedules_have_loops_that_do_not_grow_with_the_ranks(name: str) -> None:
    for mask in ("full", "causal"):
        for pass_ in PASSES:
            sizes = []
            for ranks in (8, 12):
                work = rl.Workload(16 * ranks, None, 4 * ranks, 2 * ranks, mask=mask)
                sizes.append(len(recover(rl.plan(name, work, ranks, pass_=pass_)).statements))
            assert max(sizes) <= 28
            assert sizes[1] <= sizes[0] + 4, (mask, pass_, sizes)


@pytest.mark.parametrize("name", IRREGULAR)
def test_irregular_schedules_have_loops_that_grow_with_the_ranks(name: str) -> None:
    few, many = (statements(name, ranks) for ranks in (8, 18))
    assert few < many or few > MOST_STATEMENTS


def statements(name: str, ranks: int) -> int:
    """Counts the statements of a backward pass, one too many where it has no loops."""
    work = rl.Workload(16 * ranks, None, 4 * ranks, 2 * ranks, mask="full")
    try:
        return len(recover(rl.plan(name, work, ranks, pass_="backward")).statements)
    except PlanError:
        return MOST_STATEMENTS + 1


@pytest.mark.parametrize("mask", ["window:20,20", "causal & window:40"])
@pytest.mark.parametrize("degree", [2, 4])
def test_a_gather_that_stays_whole_under_a_window_is_loops_backward_too(
    degree: int, mask: str
) -> None:
    work = rl.Workload(128, heads=16, kv_heads=8, mask=mask)
    schedule = f"ulysses-gather:ulysses={degree}:keep=1:layout=contiguous"
    backward = rl.plan(schedule, work, 8, pass_="backward")
    assert len(recover(backward).statements) <= 12


@pytest.mark.parametrize("ranks", range(3, 20))
def test_no_two_rings_have_a_link_in_common(ranks: int) -> None:
    rings = disjoint_rings(ranks)
    assert len(rings) == ranks - 1 - (ranks % 2 == 0)
    links = [link for ring in rings for link in zip(ring, np.roll(ring, -1), strict=True)]
    assert len(set(links)) == len(rings) * ranks
    assert all(sorted(ring) == list(range(ranks)) for ring in rings)


@given(st.data(), st.integers(1, 6), st.sampled_from(["contiguous", "zigzag"]))
def test_a_group_cast_sends_the_keys_that_are_seen_and_no_other(
    data: st.DataObject, ranks: int, layout: str
) -> None:
    work = rl.Workload(seq=30, heads=1, mask=data.draw(masks(30, 30)))
    plan = rl.plan(f"group-cast:layout={layout}", work, ranks)
    owners, sizes = plan.partition.kv.owners, plan.partition.kv.sizes
    received = np.zeros(ranks, int)
    for _, move in plan.moves():
        block, _, dst = move.flat()
        np.add.at(received, dst, sizes[block])
    owner = np.zeros(30, int)
    for block, rank in zip(plan.partition.kv.blocks, owners.tolist(), strict=True):
        owner[block.tokens()] = rank
    for rank in range(ranks):
        sees = work.allowed(plan.partition.q.positions(rank), range(30)).any(axis=0)
        assert received[rank] == (sees & (owner != rank)).sum()


def test_a_halo_is_the_border_that_a_window_reaches() -> None:
    work = rl.Workload(seq=512, heads=1, mask="causal & window:9")
    for _, move in rl.plan("halo", work, 8).moves():
        assert (move.dst - move.src).tolist() == [1] * 7
        assert move.blocks.shape == (7, 1)


def test_documents_have_ranks_in_proportion_and_send_nothing_to_others() -> None:
    work = rl.Workload(seq=800, heads=1, mask="causal & documents:500,300")
    plan = rl.plan("groups", work, 8)
    first = sorted({b.home for b in plan.partition.q.blocks if b.positions[0].start < 500})
    assert first == [0, 1, 2, 3, 4, 5]  # 500^2 of 500^2 + 300^2 are 5.9 of 8
    for _, move in plan.moves():
        assert ((move.src < 6) == (move.dst < 6)).all()
    many = rl.Workload(seq=64, heads=1, mask="documents:" + ",".join(["4"] * 16))
    assert not list(rl.plan("groups", many, 8).moves())


def test_stages_hold_less_than_ulysses_at_once() -> None:
    work = rl.Workload(seq=64, heads=16, kv_heads=8)
    names = ("ulysses", "ulysses-stages:stages=2", "ulysses-stages:stages=4")
    peaks = [int(slots(rl.plan(name, work, 2), "Q").max()) for name in names]
    held = [
        peak * rl.plan(name, work, 2).partition.q.head_counts[0]
        for name, peak in zip(names, peaks, strict=True)
    ]
    assert held[0] == 2 * held[1] == 4 * held[2]


@pytest.mark.parametrize("name", ["ulysses", "usp:ulysses=64:ring=32", "multi-ring", "head-chunks"])
def test_schedules_of_too_many_blocks_are_refused_before_these_are_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringloom.planner.partitions.Block.__post_init__", pytest.fail)
    with pytest.raises(
        PlanError, match=r"2048 ranks x \d{6,} blocks exceed the limit of 268435456"
    ):
        rl.plan(name, rl.Workload(seq=2**20, heads=128), 2048)


@pytest.mark.parametrize("ranks", [2**14 + 1, 10**9])
def test_more_ranks_than_tables_have_room_for_are_refused_before_anything_is_built(
    ranks: int,
) -> None:
    told = f"{ranks} ranks need tables of more than {2**28} entries .* at most 16384 ranks"
    with pytest.raises(PlanError, match=told):
        rl.plan("ring", rl.Workload(seq=2**20), ranks)


def test_a_plan_is_told_where_its_workload_stands() -> None:
    with pytest.raises(PlanError, match=r"work must be an rl\.Workload, not 'ring'"):
        rl.plan(rl.Workload(seq=64), "ring", 4)  # type: ignore[call-overload]
