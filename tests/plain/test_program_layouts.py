"""Layouts of programs: a formula where there is one, data where not, and text that computes it."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from array_libraries import library_of
from ringloom.codegen.frame.assemble import PACKED, assemble, parts_of
from ringloom.codegen.frame.layout import Joined, Layout, Ranges, layout_of
from ringloom.codegen.frame.layout_text import describe_side, layout_text
from ringloom.planner.ir import Plan
from ringloom.planner.layouts import by_tokens, chunks_of, whole_heads
from ringloom.planner.masks import Causal, Full, Mask, Window
from ringloom.planner.partitions import Block, Partition, Side, shift_ranges
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ruff_check import assert_as_ruff_has_it

CASES = [
    ("ring", 8, 4096),
    ("ring", 5, 1003),
    ("zigzag", 8, 4096),
    ("zigzag", 7, 1003),
    ("striped", 8, 4096),
    ("striped", 3, 1003),
    ("striped:grain=16", 8, 4096),
    ("striped:grain=16", 8, 4103),
    ("usp:ulysses=2", 8, 4096),
    ("usp:ulysses=4", 12, 1003),
    ("usp:ulysses=4:order=context", 12, 1003),
    ("usp:ulysses=2:layout=striped", 8, 4103),
    ("usp:ulysses=2:order=context:layout=striped", 8, 4103),
    ("ulysses", 8, 4096),
    ("zigzag", 1, 64),
]


def empty(partition: Partition, work: Workload, ranks: int) -> Plan:
    return Plan("none", work, ranks, partition, "forward", (), (), ())


def shuffled(ranks: int, seq: int, kv_seq: int) -> Plan:
    """Blocks on ranks that no formula tells."""
    work, random = Workload(seq=seq, kv_seq=kv_seq, heads=2), np.random.default_rng(3)
    one, owners = by_tokens(work, ranks, "zigzag"), random.permutation(2 * ranks) // 2
    sides = (
        Side(tuple(replace(b, home=int(h)) for b, h in zip(side.blocks, owners, strict=True)))
        for side in (one.q, one.kv)
    )
    return empty(Partition(*sides), work, ranks)


def across(ranks: int) -> Plan:
    """Queries in zigzag order, keys in stripes, and not as many."""
    work = Workload(seq=96, kv_seq=120, heads=2)
    q, kv = by_tokens(work, ranks, "zigzag").q, by_tokens(work, ranks, "striped").kv
    return empty(Partition(q, kv), work, ranks)


def in_two(ranks: int, seq: int, kv_seq: int, first: str, rest: str) -> Plan:
    """Either half of both sides has a layout of its own, with stripes of two tokens."""

    def side(tokens: int) -> Side:
        end, grains = tokens // 2, {"striped": 2}
        before = chunks_of(first, end, ranks, grains.get(first, 0))
        behind = chunks_of(rest, tokens - end, ranks, grains.get(rest, 0))
        return whole_heads([*before, *((shift_ranges(p, end), r) for p, r in behind)], 2)

    work = Workload(seq=seq, kv_seq=kv_seq, heads=2)
    return empty(Partition(side(seq), side(kv_seq)), work, ranks)


PLANS = [plan(name, Workload(seq=seq, heads=8, head_dim=8), ranks) for name, ranks, seq in CASES]
PLANS += [shuffled(64, 300, 300), shuffled(6, 100, 100), shuffled(6, 100, 70)]
PLANS += [across(4), across(7)]
PLANS += [plan("zigzag", Workload(seq=s, kv_seq=t, heads=2), 4) for s, t in ((64, 96), (61, 93))]
TWO = [
    *(  # pages of a cache, and new tokens behind them: equal ones, unequal ones, very few
        plan(f"cache-ring:page={page}", Workload(seq=seq, kv_seq=kv_seq, heads=2), ranks)
        for page, seq, kv_seq, ranks in ((16, 64, 320, 4), (16, 61, 264, 4), (4, 3, 14, 8))
    ),
    *(
        in_two(4, seq, kv_seq, first, rest)
        for first, rest in (("zigzag", "contiguous"), ("contiguous", "striped"))
        for seq, kv_seq in ((64, 64), (64, 128), (37, 50))
    ),
]
PLANS += TWO


def program(layout: Layout, target: str) -> ModuleType:
    built = ModuleType("layout")
    exec(text_of(layout, target), vars(built))
    return built


def text_of(layout: Layout, target: str) -> str:
    sizes = f"RANKS = {layout.ranks}\nSEQ, KV_SEQ = {layout.q.tokens}, {layout.kv.tokens}\n"
    sizes += f"MULTIPLE = {layout.multiple}\n"
    keep = ["positions", "shard", "unshard", *["kv_positions"] * layout.separate_kv]
    text = layout_text(layout, target, layout.multiple > 0)
    choices = {"APART": layout.separate_kv, "PADDED": not layout.equal}
    texts = [sizes, PACKED, text, *parts_of(target, "layout")]
    return assemble('"""A layout."""', texts, keep, choices)


@pytest.mark.parametrize("one", PLANS, ids=lambda p: f"{p.name}-{p.ranks}-{p.workload.seq}")
@pytest.mark.parametrize("target", ["torch", "jax"])
def test_the_text_of_a_layout_says_what_the_partition_does(one: Plan, target: str) -> None:
    library = library_of(target)
    layout = layout_of(one)
    built: Any = program(layout, target)
    for side, tokens in (("q", one.workload.seq), ("kv", one.workload.kv_seq)):
        tell = getattr(built, "kv_positions", built.positions) if side == "kv" else built.positions
        result = [np.asarray(tell(rank)) for rank in range(one.ranks)]
        for rank in one.ranks, 2 * one.ranks - 1:  # of all devices, not of the group
            with pytest.raises(IndexError):
                tell(rank)
        for rank, own in enumerate(result):
            right = one.partition.side(side).positions(rank)
            np.testing.assert_array_equal(own[own >= 0], right)
        if target == "jax":
            assert len({len(own) for own in result}) == 1
        whole = library.arange(tokens * 3).reshape(1, tokens, 3) + 1
        parts = [built.shard(whole, rank, 1, side) for rank in range(one.ranks)]
        for part, own in zip(parts, result, strict=True):
            cut = np.where(own < 0, 0, np.asarray(whole)[0, own, 1])
            np.testing.assert_array_equal(np.asarray(part)[0, :, 1], cut)
        np.testing.assert_array_equal(np.asarray(built.unshard(parts, 1, side)), whole)


@pytest.mark.parametrize("one", PLANS, ids=lambda p: f"{p.name}-{p.ranks}-{p.workload.seq}")
def test_torch_compiles_shards_of_ranks_that_are_no_constants(one: Plan) -> None:
    torch, built = library_of("torch"), program(layout_of(one), "torch")
    torch.compiler.reset()
    shard = torch.compile(built.shard, backend="eager", dynamic=True, fullgraph=True)
    whole = torch.arange(one.workload.seq)
    for rank in (one.ranks - 1, 0):
        assert shard(whole, rank, 0).tolist() == built.positions(rank).tolist()


@pytest.mark.parametrize("one", PLANS, ids=lambda p: f"{p.name}-{p.ranks}-{p.workload.seq}")
@pytest.mark.parametrize("target", ["torch", "jax"])
def test_lengths_whose_shards_do_not_fit_are_refused(one: Plan, target: str) -> None:
    """By `shard` where theirs may be as long as the plan's; others are refused by `attention`."""
    library = library_of(target)
    layout, built = layout_of(one), program(layout_of(one), target)
    for side, form in (("q", layout.q), ("kv", layout.kv)):
        padded = target == "jax" and not layout.equal
        if not (layout.multiple or isinstance(form, Ranges) or padded):
            continue
        for length in (1, form.tokens - 1, form.tokens + 1, 2 * form.tokens):
            if layout.multiple == 0 or length % layout.multiple:
                said = rf"^{length} tokens are not divisible by \d+$|tokens, not {length}$"
                with pytest.raises(ValueError, match=said):
                    built.shard(library.zeros((1, length, 3)), one.ranks - 1, 1, side)


def test_the_text_is_as_ruff_would_have_it(tmp_path: Path) -> None:
    for number, one in enumerate(PLANS):
        for target in ("torch", "jax"):
            text = text_of(layout_of(one), target)
            (tmp_path / f"{target}_{number}.py").write_text(text)
    assert_as_ruff_has_it(tmp_path)


def test_named_layouts_are_formulas_and_shuffled_ones_are_data() -> None:
    names = [layout_of(one).q.name for one in PLANS]
    assert names.count("") == 3
    assert {"contiguous", "striped", "zigzag"} < {*names}
    assert describe_side(layout_of(PLANS[2]).q) == [
        "of 16 equal pieces, rank r holds piece r and piece 15 - r"
    ]


def test_a_cache_and_what_is_behind_it_are_one_formula_each() -> None:
    assert all(isinstance(layout_of(one).kv, Joined) for one in TWO)
    assert describe_side(layout_of(TWO[0]).kv) == [
        "in two parts",
        "the first 256 tokens: stripes of 16 tokens assigned to the 4 ranks in turn",
        "the next 64 tokens: of 8 equal pieces, rank r holds piece r and piece 7 - r",
    ]
    assert [layout_of(one).equal for one in TWO[:3]] == [True, False, False]
    assert not any(layout_of(one).multiple for one in TWO)


def test_data_that_tells_both_sides_is_written_once() -> None:
    texts = [layout_text(layout_of(shuffled(6, 100, n)), "torch", False) for n in (100, 70)]
    assert ["KV_RANGES" in text for text in texts] == [False, True]


def test_ranges_of_many_ranks_are_compressed() -> None:
    texts = [layout_text(layout_of(shuffled(n, 300, 300)), "torch", False) for n in (64, 6)]
    assert ["RANGES = unpack(" in text for text in texts] == [True, False]


def test_a_layout_is_called_what_the_planner_calls_it() -> None:
    names = [layout_of(one).q.name for one in PLANS[:5]]
    assert names == ["contiguous", "contiguous", "zigzag", "zigzag", "striped"]
    assert layout_of(shuffled(6, 100, 100)).q.name == ""


@pytest.mark.parametrize(
    ("name", "ranks", "seq", "mask", "multiple"),
    [
        ("zigzag", 8, 4096, Causal(), 16),
        ("zigzag", 8, 4096, Full(), 16),
        ("zigzag", 8, 4096, Window(100), 0),
        ("zigzag", 8, 4097, Causal(), 0),
        ("usp:ulysses=2", 8, 4096, Causal(), 16),
        ("usp:ulysses=2:order=context", 8, 4096, Causal(), 16),
        ("striped:grain=16", 8, 4096, Causal(), 128),
    ],
)
def test_any_length_goes_where_mask_and_pieces_allow_it(
    name: str, ranks: int, seq: int, mask: Mask, multiple: int
) -> None:
    work = Workload(seq=seq, heads=8, mask=mask)
    assert layout_of(plan(name, work, ranks)).multiple == multiple
    longer = replace(work, seq=2 * seq, kv_seq=4 * seq)
    assert layout_of(plan(name, longer, ranks)).multiple == 0


def test_a_block_between_others_is_no_formula() -> None:
    """One wrong owner among many makes a layout data."""
    one = plan("ring", Workload(seq=64, heads=2), 8)
    blocks = [*one.partition.q.blocks]
    blocks[5], blocks[6] = (
        Block(blocks[i].positions, blocks[i].heads, blocks[j].home) for i, j in ((5, 6), (6, 5))
    )
    side = Side(tuple(blocks))
    moved = layout_of(empty(Partition(side, side), one.workload, 8)).q
    assert isinstance(moved, Ranges)
    assert moved.held[5] == [range(48, 56)]
