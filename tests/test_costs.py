"""Costs: kernel calls counted as programs make them, and priced as kernels are measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import codegen.calls
import simulator.calls.kernel_calls
from planner.ir import Plan
from planner.masks import Causal, Documents, Full, Mask, Window, region_of
from planner.partitions import Ranges, merge
from planner.planning import plan
from planner.workload import Workload
from simulator.calls.kernel_calls import Call, causal_calls, joined, mask_calls
from simulator.calls.kernels import Kernels, causal_pairs
from simulator.calls.rectangles import Rectangles
from simulator.costs import Costs
from simulator.hardware import Hardware, hardware
from simulator.prediction import simulate
from strategies import masks, range_sets
from test_simulator_reference import plans

H100 = hardware("h100")
BARE = {"attention.launch": 0, "attention.tile_q": 1, "attention.tile_kv": 1, "attention.merge": 1}
IDEAL = H100.changed(
    {**BARE, "attention.forward_rows": 0, "attention.backward_columns": 0, "attention.causal": 1}
)


def sizes(calls: list[Call]) -> list[tuple[int, int, str]]:
    return [(call.height, call.width, call.kind) for call in calls]


def written(calls: list[codegen.calls.Call]) -> list[tuple[int, int, str]]:
    """The same of the calls that emitted programs make."""
    kinds, count = {"spans": "masked"}, codegen.calls.count
    return [(count(c.rows), count(c.columns), kinds.get(c.kind, c.kind)) for c in calls]


@given(st.data(), st.integers(1, 60), st.integers(1, 60), st.sampled_from([4, 8, 512]))
def test_calls_are_those_that_programs_make(
    data: st.DataObject, seq: int, kv_seq: int, tile: int
) -> None:
    mask = data.draw(masks(seq, kv_seq))
    q, kv = (merge(data.draw(range_sets(n))) for n in (seq, kv_seq))
    offset, pieces = kv_seq - seq, region_of(mask).pieces
    with pytest.MonkeyPatch.context() as patched:
        for module in (codegen.calls, simulator.calls.kernel_calls):
            patched.setattr(module, "TILE", tile)
        expected = codegen.calls.mask_calls(q, kv, offset, pieces)
        assert sizes(mask_calls(q + offset, kv, pieces)) == written(expected)
    straight = codegen.calls.causal_calls(q, kv, offset)
    found = causal_calls(singles(q + offset), singles(kv))
    assert (found is None) == (straight is None)
    assert found is None or sizes(found) == written(straight or [])


def singles(positions: NDArray[np.int64]) -> Ranges:
    """Positions as ranges of one each, which are of whatever step."""
    return tuple(range(p, p + 1) for p in positions.tolist())


@st.composite
def in_turn(draw: st.DrawFn, step: int) -> Ranges:
    """Up to four ascending ranges of one step, here and there without a gap in between."""
    found, at = [], draw(st.integers(0, 12))
    for count in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)):
        found.append(range(at, at + step * count, step))
        at = found[-1][-1] + draw(st.one_of(st.just(step), st.integers(1, 30)))
    return tuple(found)


@given(st.data(), st.integers(1, 5))
def test_causal_ranges_are_cut_as_the_same_positions_one_by_one(
    data: st.DataObject, step: int
) -> None:
    q, kv = data.draw(in_turn(step)), data.draw(in_turn(step))
    expected = codegen.calls.causal_calls(merge(q), merge(kv), 0)
    found = causal_calls(q, kv)
    assert (found is None) == (expected is None)
    assert found is None or sizes(found) == written(expected or [])
    assert found == causal_calls(singles(merge(q)), singles(merge(kv)))
    gap = range(3), range(9, 10)  # straight to look at from both of its ends
    assert causal_calls((range(10),), gap) is None


@given(st.data(), st.integers(1, 5))
def test_ranges_that_go_on_are_cut_as_one(data: st.DataObject, step: int) -> None:
    q, kv = data.draw(in_turn(step)), data.draw(in_turn(step))
    alone = [tuple(r if len(r) > 1 else range(r[0], r[0] + 1) for r in side) for side in (q, kv)]
    found = [simulator.calls.kernel_calls.in_turn([side]) for side in alone]
    for one, other in zip(found, (q, kv), strict=True):
        np.testing.assert_array_equal(merge(one), merge(other))
    assert causal_calls(found[0], found[1]) == causal_calls(q, kv)
    assert simulator.calls.kernel_calls.in_turn([(range(0, 8, 4),), (range(8, 16, 4),)]) == (
        range(0, 16, 4),
    )
    assert len(simulator.calls.kernel_calls.in_turn([(range(5, 6), range(6, 7))])) == 2


@given(st.data(), st.integers(-9, 60), st.integers(0, 60), st.integers(1, 40), st.integers(1, 5))
def test_a_range_of_keys_is_cut_as_the_same_keys_one_by_one(
    data: st.DataObject, first: int, begin: int, count: int, step: int
) -> None:
    keys = range(begin, begin + step * count, step)
    queries = range(first, first + 30, data.draw(st.integers(1, 3)))
    q, plainly = np.array(queries), np.array(keys)
    pieces = region_of(data.draw(masks(90, 300))).pieces
    assert mask_calls(q, keys, pieces) == mask_calls(q, plainly, pieces)


@given(st.lists(range_sets(40).filter(any), min_size=1, max_size=4))
def test_blocks_are_joined_in_turn(blocks: list[tuple[range, ...]]) -> None:
    expected = np.concatenate([merge(block) for block in blocks])
    np.testing.assert_array_equal(np.array(joined(blocks)), expected)
    cut = [(range(7),), (range(7, 8), range(8, 20))]
    assert joined(cut) == range(20)


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


def test_a_window_leaves_full_middles_and_masked_sides() -> None:
    one = plan("ring", Workload(seq=2**14, heads=2, mask=Window(1024)), 4)
    node = one.steps[0].attends[0]
    found = sizes(rectangles(one).calls(node.q[1], node.kv[1]))
    assert {kind for _, _, kind in found} >= {"full", "masked"}
    assert 4096 * 1024 < sum(rows * columns for rows, columns, _ in found) < 4096 * 4096 / 2


@given(plans())
def test_without_overheads_unmasked_calls_cost_their_pairs(one: Plan) -> None:
    """What a mask allows is computed, and hardly more where calls are full or causal."""
    if isinstance(one.workload.mask, Causal | Full):
        costs = Costs(one, IDEAL.changed({"memory.bandwidth": 1e30}))
        seconds = sum(costs.attend(node).sum() for _, node in one.attends())
        pairs = costs.tiles.total_pairs() * costs.seconds_per_pair
        assert seconds == pytest.approx(pairs)


@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("size", [512, 2048, 8192])
def test_a_square_full_call_follows_the_curve(size: int, pass_: str) -> None:
    """TF(S) = Tmax S / (S + S_half)."""
    work = Workload(seq=size, heads=16, mask=Full())
    kernels = Kernels(H100, work, pass_)  # type: ignore[arg-type]
    half = sum(H100.overheads(pass_))  # type: ignore[arg-type]
    seconds = kernels.seconds(Call((0, size), (0, size), size, "full"), 16) - kernels.launch
    flop = (4 if pass_ == "forward" else 10) * size**2 * 128 * 16
    top = H100.peak("bfloat16") * H100[f"attention.{pass_}"]
    assert flop / seconds == pytest.approx(top * size / (size + half))


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
    np.testing.assert_allclose(more.add["OUT"], 4 * once.add["OUT"])
    back = [Costs(plan("ring", work, 8, pass_="backward"), c.hardware) for c in (once, more)]
    np.testing.assert_array_equal(back[0].add["DQ"], back[1].add["DQ"])


@pytest.mark.parametrize("heads", [2, 64])
@pytest.mark.parametrize("name", ["zigzag", "usp:ulysses=2:ring=2"])
def test_rectangles_too_many_to_cut_cost_as_kernels_that_skip(
    name: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = Documents((10_000, 2800, 30_000, 8400)) & Window(5000)
    one = plan(name, Workload(seq=51_200, heads=heads, mask=mask), 4)
    exact = simulate(one, H100).makespan
    monkeypatch.setattr("simulator.calls.rectangles.WORK", -1)
    rough = simulate(one, H100).makespan
    assert 0.15 < rough / exact < 1.5


@pytest.mark.parametrize("mask", [Causal(), Window(3000), Documents((50_000, 15_536))], ids=str)
def test_a_wider_head_dimension_or_more_heads_or_batches_never_cost_less(mask: Mask) -> None:
    def seconds(**more: int) -> float:
        return simulate(plan("zigzag", Workload(seq=2**16, mask=mask, **more), 8), H100).makespan

    least = seconds(heads=8, head_dim=64)
    assert least < seconds(heads=8, head_dim=128) < 2 * least
    assert least < seconds(heads=16, head_dim=64) < 2.01 * least
    assert least < seconds(heads=8, head_dim=64, batch=2) < 2.01 * least


def test_a_transfer_that_takes_half_of_the_chip_slows_compute() -> None:
    one = plan("zigzag", Workload(seq=2**16, heads=64, kv_heads=8), 8)
    found = [simulate(one, H100.changed({"intra.sm_share": share})) for share in (0.0, 0.1, 0.5)]
    assert [f.engine for f in found] == ["recurrence", "events", "events"]
    assert found[0].makespan < found[1].makespan < found[2].makespan


def test_a_node_aware_gather_sends_each_block_into_a_node_once() -> None:
    work = Workload(seq=2**15, heads=8, mask=Full())
    flat, aware = (plan(name, work, 32) for name in ("allgather", "allgather:node=8"))
    crossing = [
        sum(int((m.src // 8 != m.dst // 8).sum()) for _, m in one.moves()) for one in (flat, aware)
    ]
    assert crossing == [32 * 24, 32 * 3]
    assert simulate(aware, H100).makespan < simulate(flat, H100).makespan
