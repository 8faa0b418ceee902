"""Partitions: who owns which positions, under every layout and its peers' names."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.planner.analysis.tables import Table
from ringloom.planner.errors import PlanError
from ringloom.planner.layouts import (
    BY_MASK,
    LAYOUTS,
    by_heads,
    by_tokens,
    chunks_of,
    cut,
    names,
)
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.planning import plan
from ringloom.planner.schedules import SCHEDULES
from ringloom.planner.workload import Workload
from shards import in_order

layouts, lengths, ranks = st.sampled_from(sorted(LAYOUTS)), st.integers(1, 70), st.integers(1, 9)


@given(lengths, ranks, st.integers(1, 9))
def test_stripes_give_out_grains_in_turn(tokens: int, P: int, grain: int) -> None:
    work = Workload(seq=tokens, heads=2)
    side = by_tokens(work, P, "striped", grain).q
    for rank in range(P):
        own = [i for i in range(tokens) if i // grain % P == rank]
        assert side.positions(rank).tolist() == own


@given(lengths, ranks)
def test_zigzag_gives_each_rank_a_piece_from_the_front_and_its_mirror(tokens: int, P: int) -> None:
    pieces = cut(tokens, 2 * P)
    side = by_tokens(Workload(seq=tokens, heads=2), P, "zigzag").q
    for rank in range(P):
        own = [*pieces[rank], *pieces[2 * P - 1 - rank]]
        assert side.positions(rank).tolist() == own


@given(lengths, st.integers(1, 20))
def test_a_cut_gives_the_remainder_to_the_first_pieces(tokens: int, parts: int) -> None:
    sizes = [len(piece) for piece in cut(tokens, parts)]
    assert sum(sizes) == tokens
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 50), st.integers(1, 50), ranks)
def test_every_schedule_tiles_both_sides(name: str, seq: int, kv_seq: int, P: int) -> None:
    work = Workload(seq=seq, kv_seq=kv_seq, heads=6, kv_heads=3)
    partition = SCHEDULES[name].build(work, P, "forward").partition
    count = {"q": np.zeros((6, seq), int), "kv": np.zeros((3, kv_seq), int)}
    for side, table in count.items():
        for block in partition.side(side).blocks:
            for head in block.heads:
                table[head, block.tokens()] += 1
        assert (table == 1).all()


def test_a_custom_partition_may_mix_ranges_and_head_slices() -> None:
    work = Workload(seq=10, heads=4, kv_heads=2)
    odd_even = [((range(1, 10, 2),), 0), ((range(0, 10, 2),), 1)]
    partition = Partition(
        q=by_heads(odd_even, [range(3), range(3, 4)]),
        kv=Side((Block((range(5), range(5, 10)), range(2), 1),)),
    )
    partition.check(work, 2)
    assert in_order(partition.q, 2).tolist() == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]
    assert names(work, 2, partition) == "custom, 2 query and 1 KV pieces"


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([Block((range(4),), range(2), 0)], "position 4 belongs to no block"),
        (
            [Block((range(6),), range(2), 0), Block((range(5, 6),), range(2), 1)],
            "position 5 belongs to more than one block",
        ),
        ([Block((range(7),), range(2), 0)], "position 6 lies beyond the 6 tokens"),
        ([Block((range(6),), range(1), 0)], "heads 1..1: position 0 belongs to no block"),
        ([Block((range(6),), range(3), 0)], "a head slice ends at 3 of 2 heads"),
        ([Block((range(6),), range(2), 5)], "rank 5 owns a block, but there are 2 ranks"),
    ],
)
def test_blocks_that_do_not_tile_are_refused_with_the_numbers(
    blocks: list[Block], message: str
) -> None:
    work = Workload(seq=6, heads=2)
    partition = Partition(q=Side(tuple(blocks)), kv=by_tokens(work, 2, "contiguous").kv)
    with pytest.raises(PlanError, match=message):
        partition.check(work, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Block((range(5, 0, -1),), range(1), 0), "positions must ascend"),
        (lambda: Block((range(-3, 2),), range(1), 0), "positions must ascend"),
        (lambda: Block((range(2),), range(0), 0), "heads must be a non-empty range"),
        (lambda: Block((range(2),), range(1), -1), "home must be a rank"),
        (lambda: chunks_of("spiral", 8, 2), "unknown layout 'spiral'.*zigzag"),
        (lambda: chunks_of("striped", 8, 2, -1), "grain -1 is less than 0"),
        (lambda: chunks_of("zigzag", 8, 2, 4), "grain=4 needs one of striped"),
    ],
)
def test_blocks_and_layouts_that_mean_nothing_cannot_be_built(make, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


@pytest.mark.parametrize("layout", [*LAYOUTS, *BY_MASK])
def test_a_layout_prints_under_its_peers_names(layout: str) -> None:
    documents = "causal & documents:9,20,15,20"
    work = Workload(seq=64, heads=2, mask=documents if layout in BY_MASK else "causal")
    said = names(work, 4, by_tokens(work, 4, layout))
    assert said.startswith(f"{layout} = ")
    if layout == "zigzag":
        assert "head-tail (PyTorch)" in said
        assert "dual-chunk swap" in said


@pytest.mark.parametrize("order", ["heads", "context"])
def test_a_layout_whose_places_groups_of_ranks_share_has_its_name(order: str) -> None:
    one = plan(f"usp:ulysses=2:order={order}", Workload(seq=64, heads=4), 8)
    assert names(one.workload, 8, one.partition).startswith("zigzag of groups of 2 ranks = zigzag ")
    by_heads_alone = by_heads(chunks_of("zigzag", 64, 4), [range(2), range(2, 4)])
    owners = [replace(b, home=2 * b.home + b.heads.start // 2) for b in by_heads_alone.blocks]
    parted = Partition(Side(tuple(owners)), one.partition.kv)
    assert names(one.workload, 8, parted).startswith("custom, ")


def test_blocks_are_counted_once_per_set_of_positions_and_per_head_slice() -> None:
    work = Workload(seq=64, heads=8)
    side = by_heads(chunks_of("contiguous", work.seq, 4), [range(4), range(4, 8)])
    assert len(side) == 8
    assert len(side.chunks) == 4
    assert side.chunk.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert side.slice.tolist() == [0, 1] * 4
    assert side.owned(4).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_whole_blocks_and_head_slices_may_share_a_side() -> None:
    front = Block((range(3),), range(4), 0)
    low, high = (Block((range(3, 6),), heads, 0) for heads in (range(2), range(2, 4)))
    mixed, work = Side((front, low, high)), Workload(seq=6, heads=4)
    Partition(mixed, mixed).check(work, 1)
    twice = Side((front, low, high, Block((range(3),), range(2, 4), 0)))
    with pytest.raises(PlanError, match=r"heads 2\.\.3: position 0 belongs to more than one"):
        Partition(twice, mixed).check(work, 1)
    less = Side((front, low))
    with pytest.raises(PlanError, match=r"heads 2\.\.3: position 3 belongs to no block"):
        Partition(less, mixed).check(work, 1)


@given(st.data(), st.sampled_from(["ring", "zigzag", "multi-ring", "llama3"]), st.integers(1, 7))
def test_a_table_has_a_number_per_rank_and_block_and_keeps_that_of_no_block(
    data: st.DataObject, schedule: str, P: int
) -> None:
    of_plan = plan(schedule, Workload(seq=40, heads=4, mask="full"), P)
    table, blocks = Table(of_plan, "KV", np.int32, default=7), len(of_plan.partition.kv)
    rows, known = st.tuples(*[st.integers(-1, blocks - 1)] * 2), dict[tuple[int, int], int]()
    for value in range(1, 5):
        written = data.draw(st.dictionaries(st.integers(0, P - 1), rows, min_size=1))
        table[np.array([*written]), np.array([*written.values()])] = value
        known |= {(rank, block): value for rank, row in written.items() for block in row}
    every = np.tile(np.arange(-1, blocks), (P, 1))
    assert table[np.arange(P), every].tolist() == [
        [7, *(known.get((rank, block), 0) for block in range(blocks))] for rank in range(P)
    ]
    entries = table.of(np.arange(P), every[:, 1:])
    places = [[table.cells.at(entry) for entry in row] for row in entries.tolist()]
    assert places == [[(rank, block) for block in range(blocks)] for rank in range(P)]
    owners = of_plan.partition.kv.owners.tolist()
    assert [*map(table.cells.at, table.cells.owned.tolist())] == [
        *zip(owners, range(blocks), strict=True)
    ]


def test_the_sides_of_a_partition_are_checked_once_for_all_rewrites_of_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, looked = Workload(seq=64, heads=2, mask="window:8"), list[str]()
    partition = plan("zigzag", work, 4).partition
    fresh = Partition(Side(partition.q.blocks), Side(partition.kv.blocks))
    monkeypatch.setattr(
        "ringloom.planner.partitions._check_cover", lambda *given: looked.append(given[2])
    )
    for _ in range(3):
        fresh.check(work, 4)
    assert len(looked) == 2
    fresh.check(replace(work, seq=128, kv_seq=128), 4)
    assert len(looked) == 4
