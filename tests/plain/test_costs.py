"""Costs: kernel calls counted as programs make them, and priced as kernels are measured."""

from dataclasses import replace
from itertools import combinations, islice, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from plain.test_simulator_reference import plans
from ringloom.planner.analysis.balance import loads
from ringloom.planner.analysis.messages import travelling_sums
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import Attend, Pass, Plan
from ringloom.planner.kernel_calls import Call
from ringloom.planner.masks import Causal, Documents, Full, Mask, Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.costs.kernels import Kernels, causal_pairs
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.costs.rectangles import Rectangles
from ringloom.simulator.costs.terms import Event
from ringloom.simulator.hardware import Hardware, hardware, presets
from ringloom.simulator.prediction import simulate

H100 = hardware("h100")
SMOOTH = {"attention.host": 0, "attention.blocks": 0}  # neither waves nor a least time
TILES = "attention.tile_q", "attention.narrow_tile_q", "attention.tile_kv"
BARE = {"attention.launch": 0, "attention.merge": 1, **dict.fromkeys(TILES, 1)}
IDEAL = H100.changed(
    {**SMOOTH, **BARE, "attention.traffic": 0, "attention.backward_launch": 0}
    | {"attention.causal": 1, "intra.sm_share": 0}
)


def sizes(calls: list[Call]) -> list[tuple[int, int, str]]:
    return [(len(call.rows), len(call.columns), call.kind) for call in calls]


def rectangles(one: Plan, machine: Hardware = H100) -> Rectangles:
    return Costs(one, machine).rectangles


def calls(name: str, rank: int, step: int, mask: Mask = Causal()) -> list[tuple[int, int, str]]:  # noqa: B008
    """The calls of one rank of four, 4096 tokens."""
    one = plan(name, Workload(seq=4096, heads=2, mask=mask), 4)
    (node,) = one.steps[step].attends
    (row,) = np.flatnonzero(node.rank == rank)
    return sizes(rectangles(one).calls(node.q[row], node.kv[row]))


def test_a_zigzag_rank_makes_one_call_per_round() -> None:
    assert calls("zigzag", 1, 0) == [(1024, 1024, "causal")]
    assert calls("zigzag", 1, 1) == [(1024, 512, "full")]
    assert calls("zigzag", 1, 2) == [(512, 1024, "full")]


def test_a_strictly_causal_stripe_loses_a_row_and_a_column() -> None:
    assert calls("striped", 1, 0) == [(1024, 1024, "causal")]
    assert calls("striped", 1, 1) == [(1024, 1024, "causal")]
    assert calls("striped", 1, 2) == [(1023, 1023, "causal")]


def test_the_parts_of_a_gathered_rectangle_are_full_and_causal() -> None:
    """Rank 1 of 4 holds the second and the seventh of eight pieces of 512 tokens."""
    assert calls("allgather", 1, 1) == [
        *((512, 512, "full"), (512, 512, "causal")),
        *((512, 3072, "full"), (512, 512, "causal")),
    ]


def test_rectangles_are_cut_once_for_kernels_that_cut_alike() -> None:
    one = plan("zigzag", Workload(seq=2**12, heads=2), 4)
    usual, dearer, other = (
        Costs(one, H100.changed(changes)).rectangles
        for changes in ({}, {"memory.bandwidth": 1e9}, {"attention.tile_q": 64})
    )
    assert usual is dearer
    assert usual is not other


def test_late_queries_are_one_call_where_kernels_count_from_the_last_row() -> None:
    """Only tiles on the diagonal are dearer, and the results of two calls are not merged."""
    one = plan("allgather:layout=contiguous", Workload(seq=4096, heads=2), 4)
    (node,) = one.steps[-1].attends
    (row,), cuts = np.flatnonzero(node.rank == 3), dict[str, Any]()
    for name in ("a100-nvlink", "h100", "h100:fa2"):
        cuts[name] = rectangles(one, hardware(name)).calls(node.q[row], node.kv[row])
    assert sizes(cuts["a100-nvlink"]) == sizes(cuts["h100:fa2"]) == [(1024, 4096, "causal")]
    full, causal = cuts["h100"]
    assert sizes([full, causal]) == [(1024, 3072, "full"), (1024, 1024, "causal")]
    kernels = Kernels(hardware("a100-nvlink"), one.workload, "forward")
    pairs = [kernels.pairs(call, 2) for call in (*cuts["a100-nvlink"], full, causal)]
    assert pairs[0] == pytest.approx(sum(pairs[1:]))
    wide = replace(one.workload, dtype="float32")
    cut = rectangles(plan(one.name, wide, 4), hardware("a100-nvlink"))
    assert len(cut.calls(node.q[row], node.kv[row])) == 2


def test_a_window_is_one_call_or_strips_as_high_as_it_is_wide() -> None:
    """Strips, where a kernel takes the window as a bias: on CPUs, and in 32 bit."""
    one = plan("ring", Workload(seq=2**14, heads=2, mask=Window(1024)), 4)
    node = one.steps[0].attends[0]
    assert sizes(rectangles(one).calls(node.q[1], node.kv[1])) == [(4096, 4096, "window")]
    for wide, machine in (
        (replace(one.workload, dtype="float32"), H100),
        (one.workload, H100.changed({"attention.mask": 1e-12})),
    ):
        cut = rectangles(plan("ring", wide, 4), machine).calls(node.q[1], node.kv[1])
        assert sizes(cut) == [
            (1025, 1025, "window"),
            *[(1025, 2049, "window")] * 2,
            (1021, 2045, "window"),
        ]
    kernels, (call,) = Costs(one, H100).kernels, rectangles(one).calls(node.q[1], node.kv[1])
    assert 4096 * 1024 < kernels.pairs(call, 1) < 4096 * 4096 / 2


def test_a_window_is_a_masked_call_for_kernels_that_are_given_a_mask() -> None:
    """The mask is made once, whichever heads and batch rows."""
    window, masked = (Call(range(600), range(900), band) for band in ((0, 300), None))
    for heads, batch in ((1, 1), (8, 1), (8, 3)):
        work = Workload(seq=900, heads=heads, batch=batch)
        plain, given = (
            Kernels(H100.changed(SMOOTH | {"attention.mask": price}), work, "forward")
            for price in (0, 1e-6)
        )
        assert plain.seconds(window, heads) < plain.seconds(masked, heads)
        more = given.seconds(window, heads) - plain.seconds(masked, heads)
        assert given.seconds(masked, heads) == given.seconds(window, heads)
        assert more == pytest.approx(1e-6 * 640 * 1024, rel=1e-6)


def test_stripes_of_several_tokens_are_full_middles_and_masked_sides() -> None:
    one = plan("striped:grain=64", Workload(seq=2**14, heads=2), 4)
    node = one.steps[1].attends[0]
    result = sizes(rectangles(one).calls(node.q[1], node.kv[1]))
    assert {kind for _, _, kind in result} == {"full", "masked"}
    assert 4096 * 2048 < sum(rows * columns for rows, columns, _ in result) < 4096 * 4096 * 0.6


@given(plans())
def test_without_overheads_unmasked_calls_cost_their_pairs(one: Plan) -> None:
    """Every allowed pair is computed, and hardly more where calls are full or causal."""
    if isinstance(one.workload.mask, Causal | Full):
        costs = Costs(one, IDEAL.changed({"memory.bandwidth": 1e30}))
        seconds = sum(costs.attend(node).sum() for _, node in one.attends())
        pairs = tiles(one).total_pairs() * costs.kernels.seconds_per_pair
        assert seconds == pytest.approx(pairs)


@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("size", [512, 2048, 8192])
def test_a_square_full_call_follows_the_curve(size: int, pass_: str) -> None:
    """TF(S) = Tmax S / (S + S_half): S_half pairs take as long as what a token moves."""
    work = Workload(seq=size, heads=16, mask=Full())
    kernels = Kernels(H100.changed(SMOOTH), work, pass_)  # type: ignore[arg-type]
    moved = 4 * 256 + 4 if pass_ == "forward" else 7 * 256 + 8
    half = H100["attention.traffic"] * moved / H100["memory.bandwidth"] / kernels.seconds_per_pair
    seconds = kernels.seconds(Call(range(size), range(size), False), 16) - kernels.launch
    flop = (4 if pass_ == "forward" else 10) * size**2 * 128 * 16
    top = H100.peak("bfloat16") * H100[f"attention.{pass_}"]
    assert flop / seconds == pytest.approx(top * size / (size + half))


def test_keys_that_query_heads_share_are_read_once() -> None:
    alone, shared = (
        Kernels(H100, Workload(seq=4096, heads=64, kv_heads=heads), "forward") for heads in (64, 8)
    )
    assert alone.traffic(100, 10)[0] == shared.traffic(100, 10)[0]
    assert alone.traffic(100, 10)[1] - shared.traffic(100, 10)[1] == 10 * 2 * 256 * 7 / 8
    call = Call(range(4096), range(4096), True)
    assert shared.seconds(call, 64) < alone.seconds(call, 64)


def test_few_heads_of_a_group_read_its_kv_head_whole() -> None:
    work = Workload(seq=1, kv_seq=2**17, heads=64, kv_heads=8)
    call, read = Call(range(1), range(2**17), False), 2**17 * 2 * 128 * 2 / H100["memory.bandwidth"]
    kernels = Kernels(H100.changed({"attention.host": 0}), work, "forward")
    assert kernels.seconds(call, 1) > kernels.launch + read
    assert kernels.seconds(call, 9) > kernels.launch + 2 * read


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("columns", [100, 4096, 2**17])
def test_fewer_heads_of_a_group_and_fewer_queries_take_no_longer(name: str, columns: int) -> None:
    work = Workload(seq=2, kv_seq=columns, heads=64, kv_heads=1, head_dim=576, v_head_dim=512)
    kernels = Kernels(hardware(name), work, "forward")
    one, two = (Call(range(rows), range(columns), False) for rows in (1, 2))
    times = [kernels.seconds(one, heads) for heads in range(1, 65)]
    assert times == sorted(times)
    assert kernels.seconds(two, 1) >= times[0]


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("band", [True, (-64, 0), (-8, 8)])
def test_a_call_of_few_rows_has_one_tile_whatever_it_hides(name: str, band: Any) -> None:
    machine = hardware(name)
    kernels = Kernels(machine, Workload(seq=4096), "forward")
    for rows in (1, 8, 64, 100):
        call = Call(range(rows), range(rows), band)
        assert kernels.pairs(call, 1) <= kernels.full(rows, rows, 1) * machine.option(
            "attention.causal"
        )


def test_blocks_run_in_waves_and_no_call_is_shorter_than_its_preparation() -> None:
    """132 blocks at once: 11 heads of 12 tiles are one wave, and one head more makes it two.

    Of less than a wave, forward kernels of 16 bit split keys; others leave a part of the chip idle.
    """
    bare = {"attention.launch": 0, "attention.backward_launch": 0, "attention.host": 0}
    machine, call = H100.changed(bare), Call(range(12 * 128), range(12 * 128), False)

    def seconds(heads: int, pass_: Pass = "forward", batch: int = 1, **more: Any) -> float:
        work = Workload(seq=4096, heads=heads, batch=batch, **more)
        return Kernels(machine, work, pass_).seconds(call, heads)

    assert seconds(1) == pytest.approx(seconds(11) / 11)
    assert seconds(1, "backward") == pytest.approx(seconds(11, "backward"))
    assert seconds(1, dtype="float32") == pytest.approx(seconds(11, dtype="float32"))
    assert seconds(12) == pytest.approx(2 * seconds(11))
    assert seconds(11, batch=3) == pytest.approx(3 * seconds(11))
    prepared = machine.changed({"attention.host": 1.0})
    assert Kernels(prepared, Workload(seq=4096), "forward").seconds(call, 1) == 1.0


def test_heads_of_one_query_fill_as_many_tiles_as_they_need() -> None:
    kernels = Kernels(H100, Workload(seq=1, kv_seq=4096, heads=300, kv_heads=1), "forward")
    blocks = {heads: heads * kernels.blocks(1, 4096, heads) for heads in (1, 128, 129, 300)}
    assert blocks == pytest.approx({1: 1, 128: 1, 129: 2, 300: 3})


def test_each_rank_is_priced_by_its_own_heads() -> None:
    work = Workload(seq=1, kv_seq=2**17, heads=65, kv_heads=1, mask="window:100000")
    one = plan("ulysses", work, 3)  # 22, 22 and 21 heads
    costs, seen = Costs(one, hardware("a100-nvlink")), set[int]()
    for node in (node for step in one.steps for node in step.attends):
        for row, heads in enumerate(costs.rectangles.tiles.heads(node).tolist()):
            (call,) = costs.rectangles.calls(node.q[row], node.kv[row])
            assert costs.attend(node)[row] == pytest.approx(costs.kernels.seconds(call, heads))
            seen.add(heads)
    assert seen == {21, 22}


def test_blocks_that_are_one_wave_are_no_second_one_where_shares_are_not_exact() -> None:
    """18 x 6 blocks of heads in pairs, one of them alone, are 108.00000000000001 in doubles."""
    work = Workload(seq=1, kv_seq=2**15, heads=70, kv_heads=35, batch=6)
    kernels = Kernels(hardware("a100-nvlink"), work, "forward")
    call = Call(range(1), range(2**15), False)
    assert kernels.seconds(call, 35) == pytest.approx(kernels.seconds(call, 36), rel=1e-3)


FLASH_DECODING = {  # us of a call on A100, by batch rows and keys (Dao et al. 2023)
    (256, 256): 63.4,
    (128, 512): 67.7,
    (64, 1024): 77.7,
    (32, 2048): 58.5,
    (16, 4096): 57.0,
    (8, 8192): 56.4,
    (4, 16384): 58.2,
    (2, 32768): 60.3,
    (1, 65536): 64.4,
    (1, 131072): 106.6,
}


@pytest.mark.parametrize(("batch", "keys"), FLASH_DECODING)
def test_a_query_takes_as_long_as_flash_decoding_was_measured_to(batch: int, keys: int) -> None:
    """One query of 16 heads, 2 KV heads, 16 bit: no constant was fitted to these rows."""
    work = Workload(seq=1, kv_seq=keys, heads=16, kv_heads=2, batch=batch, dtype="float16")
    kernels = Kernels(hardware("a100-nvlink"), work, "forward")
    seconds = kernels.seconds(Call(range(1), range(keys), False), 16)
    assert seconds * 1e6 == pytest.approx(FLASH_DECODING[batch, keys], rel=0.2)


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("rows", [1, 2, 8, 64, 100, 300])
def test_few_queries_take_their_traffic_at_least_and_a_whole_tile_at_most(
    rows: int, name: str
) -> None:
    machine, call = hardware(name), Call(range(rows), range(2**17), False)
    work = Workload(seq=rows, kv_seq=2**17, heads=32, kv_heads=8)
    short, whole = (
        Kernels(one, work, "forward")
        for one in (machine, machine.changed({"attention.short_tile_q": machine.tile[0]}))
    )
    moved = 8 * 2**17 * 2 * 128 * 2 / machine["memory.bandwidth"]
    assert moved < short.seconds(call, 32) <= whole.seconds(call, 32)
    assert short.seconds(call, 32) <= short.seconds(Call(range(rows + 1), call.columns, False), 32)


def test_causal_calls_compute_the_tiles_that_are_not_skipped() -> None:
    assert causal_pairs(1536, (128, 128), (512, 512)) == 6 * 512**2
    assert causal_pairs(1000, (1, 1), (1, 1)) == 1000 * 1001 // 2
    assert causal_pairs(300, (128, 128), (128, 128)) == (1 + 2 + 3) * 128**2
    assert causal_pairs(4096, (128, 128), (2048, 4096)) == 4096**2
    assert causal_pairs(8192, (128, 128), (2048, 4096)) == (2 * 2048 * 4096 + 2 * 2048 * 8192)


def test_the_same_skipping_by_a_smaller_memory_costs_more_per_row() -> None:
    work = Workload(seq=2**16, heads=8)
    fine, coarse = (
        H100.changed({"attention.skip_q": n, "attention.skip_kv": n}) for n in (128, 4096)
    )
    times = [simulate(plan("zigzag", work, 8), machine).makespan for machine in (fine, coarse)]
    assert times[0] < times[1]


def test_merging_by_several_kernels_takes_as_many_times_the_traffic() -> None:
    work = Workload(seq=2**16, heads=8, mask=Full())
    once, more = (
        Costs(plan("ring", work, 8), H100.changed({"attention.merge": m})) for m in (1, 4)
    )
    np.testing.assert_allclose(more.per_block("add")["OUT"], 4 * once.per_block("add")["OUT"])


@pytest.mark.parametrize("event", ["add", "merge"])
@pytest.mark.parametrize("tensor", ["DQ", "DKV"])
def test_gradients_are_added_by_several_kernels_too(tensor: str, event: Event) -> None:
    """A part is read, 16 bit from a kernel and 32 from a message, and a sum read and written."""
    one = plan("ring", Workload(seq=2**16, heads=8, mask=Full()), 8, pass_="backward")
    token = {"DQ": 128, "DKV": 256}[tensor] * (8 + {"add": 2, "merge": 4}[event])
    seconds = 4.2 * 2**13 * 8 * token / H100["memory.bandwidth"]
    assert Costs(one, H100).per_block(event)[tensor][0] == pytest.approx(seconds)


def test_each_travelling_sum_has_its_width_until_it_is_finished() -> None:
    work = Workload(seq=2**16, heads=8, mask=Full())
    widths = {
        name: travelling_sums(plan(name, work, 8, pass_="backward")) for name in ("ring", "ulysses")
    }
    assert widths["ring"] == {"DKV": {32: 56, 16: 8}}
    assert widths["ulysses"] == {"DQ": {16: 56}, "DKV": {16: 56}}
    double = replace(work, dtype="float64")
    assert travelling_sums(plan("ring", double, 8, pass_="backward")) == {"DKV": {64: 64}}


@pytest.mark.parametrize("heads", [2, 64])
@pytest.mark.parametrize("name", ["zigzag", "usp:ulysses=2:ring=2"])
def test_rectangles_too_many_to_cut_cost_the_pairs_that_their_mask_allows(
    name: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = Documents((10_000, 2800, 30_000, 8400)) & Window(5000)
    one = plan(name, Workload(seq=51_200, heads=heads, mask=mask), 4)
    exact = simulate(one, H100).makespan
    monkeypatch.setattr("ringloom.simulator.costs.rectangles.MOST_WORK", -1)
    rough = simulate(one, H100).makespan
    assert 0.15 < rough / exact < 1.5


@pytest.mark.parametrize("layout", ["zigzag", "striped", "striped:grain=8"])
@pytest.mark.parametrize("mask", [Causal(), Window(300), Documents((700, 324))], ids=str)
def test_a_rectangle_is_cut_the_same_whatever_was_cut_before(mask: Mask, layout: str) -> None:
    name, _, grain = layout.partition(":")
    schedule = f"allgather:layout={name}" if not grain else f"striped:{grain}"
    one = plan(schedule, Workload(seq=1024, heads=1, mask=mask), 4)
    known, blocks = rectangles(one), range(len(one.partition.q))
    for a, b in (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1):
        sides = product(combinations(blocks, a), combinations(blocks, b))
        q, kv = zip(*islice(sides, 40), strict=True)
        node = Attend([0] * len(q), q, kv)
        alone = [rectangles(one).of(Attend([0], [x], [y])) for x, y in zip(q, kv, strict=True)]
        np.testing.assert_array_equal(known.of(node), np.concatenate(alone, axis=1))


def test_a_rectangle_too_large_to_cut_is_one_call_of_the_pairs_that_its_mask_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringloom.simulator.costs.rectangles.MOST_WORK", -1)
    work = Workload(seq=4096, heads=2, mask=Window(1500))
    costs = Costs(plan("allgather:layout=zigzag", work, 4), H100)
    (attend,) = (node for _, node in costs.plan.attends() if node.kv.shape[1] > 2)
    (row,) = np.flatnonzero(attend.rank == 1)
    pairs = loads(costs.plan)[0, 1] // 2  # of a head
    assert ((attend.q[row] >= 0).sum(), (attend.kv[row] >= 0).sum()) == (2, 6)  # of 512 tokens
    traffic = 2 * 512 * (2 * 128 * 2 + 4), 6 * 512 * 2 * 128 * 2
    assert costs.rectangles.of(attend)[:, row].tolist() == [1, pairs, 1024 / 128, *traffic, 0, 0]


@pytest.mark.parametrize("mask", [Causal(), Window(3000), Documents((50_000, 15_536))], ids=str)
def test_a_wider_head_dimension_or_more_heads_or_batches_never_cost_less(mask: Mask) -> None:
    def seconds(**more: int) -> float:
        return simulate(plan("zigzag", Workload(seq=2**16, mask=mask, **more), 8), H100).makespan

    least = seconds(heads=8, head_dim=64)
    assert least < seconds(heads=8, head_dim=128) < 2 * least
    assert least < seconds(heads=16, head_dim=64) < 2.01 * least
    assert least < seconds(heads=8, head_dim=64, batch=2) < 2.01 * least


def test_a_node_aware_gather_sends_each_block_into_a_node_once() -> None:
    work = Workload(seq=2**15, heads=8, mask=Full())
    flat, aware = (plan(name, work, 32) for name in ("allgather", "allgather:node=8"))
    crossing = [
        sum(int((m.src // 8 != m.dst // 8).sum()) for _, m in one.moves()) for one in (flat, aware)
    ]
    assert crossing == [32 * 24, 32 * 3]
    assert simulate(aware, H100).makespan < simulate(flat, H100).makespan
