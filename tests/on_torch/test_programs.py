"""Emitted torch programs against dense attention: exact, whatever the schedule and the mask."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dense_attention import assert_dense
from loop_schedules import FOREIGN, foreign_pair
from ringloom.codegen import emit, mask_tables
from ringloom.planner.ir import InitialCopy, Move, Step
from ringloom.planner.masks import Blocks, Causal, Documents, Full, Global, Mask, Prefix, Window
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify_pair
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw, draw_sinks
from ringloom.runtimes.backends import forward
from ringloom.runtimes.emitted import source_of
from ringloom.runtimes.reference import dense
from ringloom.runtimes.validation import backward_leaks, check, distance, forward_leaks
from sampling import square
from strategies import CLASSIC, OTHERS, any_workloads, divided_workloads, schedules, workloads

torch = pytest.importorskip("torch")

from in_memory.network import MemoryGroup  # noqa: E402
from rank_threads import execute, in_threads, load, run  # noqa: E402  only where torch is
from ringloom.runtimes.torch.rank import to_numpy, to_torch  # noqa: E402

FEW = settings(max_examples=max(10, settings.default.max_examples // 4))
MASKS: list[Mask] = [
    Causal(),
    Full(),
    Window(6),
    Window(3, 4) | Global(2),
    Prefix(9),
    Causal() & Documents((20, 5, 38)),
    Blocks(((True, False), (True, True)), 32),
]


def both(schedule: str, work: Workload, ranks: int) -> Plans:
    return plan(schedule, work, ranks, pass_="both")


def assert_exact(pair: Plans, seed: int = 0) -> None:
    work = pair.forward.workload
    arrays, sinks = draw(work, seed), draw_sinks(work, seed)
    assert_dense(work, arrays, run(pair, *arrays, sinks=sinks), sinks)


@given(st.data(), st.integers(1, 8), workloads(), st.integers(0, 99))
def test_programs_are_exact_in_float64(
    data: st.DataObject, ranks: int, work: Workload, seed: int
) -> None:
    assert_exact(both(data.draw(schedules(ranks)), work, ranks), seed)


@FEW
@given(st.data(), st.integers(1, 6), any_workloads(), st.integers(0, 99))
def test_sinks_and_values_of_another_dimension_are_exact(
    data: st.DataObject, ranks: int, work: Workload, seed: int
) -> None:
    assert_exact(both(data.draw(schedules(ranks)), work, ranks), seed)


def test_an_output_that_nobody_added_to_may_be_kept_beside_sinks() -> None:
    """Rank 1 holds OUT of the empty block of rank 2, which sends nothing and has no key to see."""
    work = Workload(seq=2, heads=2, head_dim=3, mask=Full(), dtype="float64", sinks=True)
    pair = both("group-cast", work, 3)
    kept = replace(pair.backward, start=(InitialCopy(("OUT",), [[2]], [1]),))
    assert_exact(Plans(pair.forward, kept))


@pytest.mark.parametrize("schedule", ["zigzag", "balanced", "burst", "usp:ulysses=2", "mesh2d"])
def test_sinks_and_values_of_another_dimension_are_printed_as_loops(schedule: str) -> None:
    work = Workload(
        seq=32, heads=8, kv_heads=4, head_dim=6, v_head_dim=4, sinks=True, dtype="float64"
    )
    pair = both(schedule, work, 4)
    assert "as tables" not in source_of(pair, "torch")
    assert_exact(pair)


@given(st.data(), st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(0, 99))
def test_programs_of_equal_parts_are_exact(data: st.DataObject, ranks: int, seed: int) -> None:
    work = data.draw(divided_workloads(ranks))
    assert_exact(both(data.draw(schedules(ranks)), work, ranks), seed)


@FEW
@given(st.data(), st.sampled_from([3, 4, 6, 8]), st.integers(0, 99))
def test_programs_of_a_forward_pass_alone_are_exact(
    data: st.DataObject, ranks: int, seed: int
) -> None:
    work = data.draw(divided_workloads(ranks))
    arrays = draw(work, seed)[:3]
    out = run(plan(data.draw(schedules(ranks)), work, ranks), *arrays)
    assert_dense(work, arrays, [out])


@pytest.mark.parametrize("kind", ["bound", "sinks", "dynamic"])
def test_derivatives_in_forward_mode_are_refused(kind: str) -> None:
    """Operators of torch would drop tangents, so that derivatives were zero."""
    sinks, dynamic = kind == "sinks", kind == "dynamic"
    pair = both("ring", Workload(seq=4, head_dim=2, dtype="float64", heads=1, sinks=sinks), 1)
    program = load(emit(pair, "torch", dynamic=dynamic))
    more = [program.Tables(mask_tables(pair, "torch"))] if dynamic else []

    def body(group: MemoryGroup) -> None:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
            named = {"sinks": rest[0]} if sinks else {}
            return program.attention(q, k, v, *more, group=group, **named)

        inputs = [*torch.ones(3, 1, 1, 4, 2), *[torch.ones(1)] * sinks]
        attend(*inputs)
        for place, tangent in enumerate(inputs):
            before, after = inputs[:place], inputs[place + 1 :]
            with pytest.raises(NotImplementedError, match="forward-mode AD is not supported"):
                torch.func.jvp(lambda x: attend(*before, x, *after), (tangent,), (tangent,))  # noqa: B023

    in_threads(1, body)


def test_keys_that_all_ranks_have_are_not_replaced_by_own_ones_where_some_get_others() -> None:
    shape = {"seq": 24, "heads": 9, "kv_heads": 3, "head_dim": 5}
    work = Workload(**shape, mask="varlen:24/24/0,inf", dtype="float64")
    one, arrays = plan("usp:ulysses=3:layout=contiguous:gather=1", work, 6), draw(work, 0)[:3]
    assert "as tables" not in emit(one, "torch")
    assert_dense(work, arrays, [run(one, *arrays)])


def of_pieces(*owners: int, order: Sequence[int] = range(4)) -> Side:
    """Four pieces of two tokens and their owners, listed in an order."""
    return Side(tuple(Block((range(2 * n, 2 * n + 2),), range(2), owners[n]) for n in order))


HERE = of_pieces(0, 0, 1, 1)
LAST_FIRST = of_pieces(1, 1, 0, 0, order=range(3, -1, -1))


@pytest.mark.parametrize(
    ("schedule", "q", "kv"),
    [
        ("ring", LAST_FIRST, LAST_FIRST),  # a rank has later tokens before earlier ones
        ("allgather", HERE, of_pieces(1, 1, 0, 0)),  # keys lie elsewhere than queries
    ],
)
@pytest.mark.parametrize("mask", [Causal(), Window(3, 2)], ids=str)
def test_partitions_by_hand_are_exact(schedule: str, q: Side, kv: Side, mask: Mask) -> None:
    work = Workload(seq=8, heads=2, head_dim=2, mask=mask, dtype="float64")
    assert_exact(plan(schedule, work, 2, pass_="both", layout=Partition(q, kv)))


WRITTEN = [*CLASSIC, "striped:grain=4", "allgather:keep=1"]


@pytest.mark.parametrize(("schedule", "mask"), square(WRITTEN, MASKS, every=4), ids=str)
def test_every_schedule_and_mask_is_exact(schedule: str, mask: Mask) -> None:
    work = Workload(seq=63, heads=4, kv_heads=2, head_dim=8, mask=mask, dtype="float64")
    assert_exact(both(schedule, work, 4))


@pytest.mark.parametrize(("schedule", "mask"), square(OTHERS, [Causal(), *MASKS], every=4), ids=str)
def test_schedules_on_request_are_exact(schedule: str, mask: Mask) -> None:
    seq = 64 if isinstance(mask, Causal) else 63
    work = Workload(seq=seq, heads=8, kv_heads=4, head_dim=4, mask=mask, dtype="float64")
    assert_exact(both(schedule, work, 4))


LOOPED = ["double-ring", "bidirectional", "tokenring", "mesh2d", "decode-a2a", "broadcast"]
LOOPED += ["llama3", "ulysses-stages", "head-chunks", "ulysses-stages:stages=4"]  # some heads
LOOPED += ["llama3:stride=1"]
LOOPED += ["ulysses-gather", "ulysses-gather:ulysses=2"]  # of what an exchange brought


@pytest.mark.parametrize(
    ("schedule", "mask", "ranks"), square(LOOPED, [Causal(), Full()], [4, 6, 8], every=4), ids=str
)
def test_regular_schedules_on_request_are_printed_as_loops(
    schedule: str, mask: Mask, ranks: int
) -> None:
    sizes = {"heads": 4 * ranks, "kv_heads": 2 * ranks, "head_dim": 4, "dtype": "float64"}
    pair = both(schedule, Workload(seq=4 * ranks, mask=mask, **sizes), ranks)
    assert "as tables" not in source_of(pair, "torch")
    assert_exact(pair)


@pytest.mark.parametrize(
    ("first", "last"),
    [("double-ring:node=2", "double-ring:node=4"), ("zigzag", "double-ring:node=2")],
)
def test_passes_over_different_meshes_are_exact(first: str, last: str) -> None:
    """Both would name their sizes OUTER and INNER, or the first one would have no names."""
    work = Workload(seq=64, heads=4, head_dim=2, mask=Full(), dtype="float64")
    backward = plan(last, work, 8, pass_="backward")
    assert_exact(verify_pair(plan(first, work, 8), backward))


def test_sums_that_go_on_in_steps_without_attends_are_exact() -> None:
    """DKV go from rank to rank to their owners: a program sends them before it begins new sums."""
    work, r = Workload(32, heads=2, head_dim=4, dtype="float64", mask=Full()), np.arange(4)
    ring = plan("ring", work, 4, pass_="backward")
    kv, steps = ring.partition.kv.owned(4), list(ring.steps[:4])
    for hop in range(3):
        steps.append(Step((), (Move(("DKV",), kv[(r + 1 + hop) % 4], r, (r - 1) % 4),)))
    pair = verify_pair(plan("ring", work, 4), replace(ring, steps=tuple(steps)))
    assert "as tables" not in source_of(pair, "torch")
    assert_exact(pair)


@pytest.mark.parametrize("name", FOREIGN)
def test_schedules_that_nobody_wrote_this_for_are_exact(name: str) -> None:
    work = Workload(32, heads=4, kv_heads=2, head_dim=4, dtype="float64", mask=Full())
    assert_exact(foreign_pair(name, work, 4))


@pytest.mark.parametrize(("ranks", "heads"), [(2, 3), (4, 5), (4, 6)])
@pytest.mark.parametrize("schedule", ["ulysses", "usp:ulysses=2", "ulysses-stages"])
def test_heads_that_ranks_do_not_divide_are_exact(schedule: str, ranks: int, heads: int) -> None:
    """Some ranks get more heads than others, which no exchange in equal parts can do."""
    work = Workload(seq=16, heads=heads, head_dim=4, mask=Full(), dtype="float64")
    assert_exact(both(schedule, work, ranks))


@pytest.mark.parametrize("node", [2, 3])
def test_nested_rings_are_exact_without_a_backward_pass(node: int) -> None:
    """Conditions on a clock that begins later, and a message that some ranks wait for late."""
    work = Workload(seq=48, heads=2, head_dim=2, mask=Causal(), dtype="float64")
    alone = plan(f"double-ring:node={node}:layout=contiguous", work, 6)
    arrays = draw(work, 0)[:3]
    assert_dense(work, arrays, [run(alone, *arrays)])


@pytest.mark.parametrize("schedule", ["mesh2d", "mesh2d:columns=4", "decode-a2a"])
def test_queries_of_several_ranks_meet_what_the_mask_leaves(schedule: str) -> None:
    work = Workload(seq=64, heads=2, head_dim=4, mask=Causal(), dtype="float64")
    plans = both(schedule, work, 8)
    assert "    merge_tiles(" in source_of(plans, "torch")
    assert_exact(plans)


def test_no_order_is_made_under_a_full_mask() -> None:
    """And what does not change in a loop is before it."""
    work = Workload(seq=64, heads=2, head_dim=4, mask=Full(), dtype="float64")
    plans = both("mesh2d", work, 8)
    before, _, loop = source_of(plans, "torch").partition("def backward")[2].partition("for step")
    assert "argsort" not in before
    assert "with_output(" in before
    assert "with_output(" not in loop.partition("def wait")[0]
    assert_exact(plans)


@pytest.mark.parametrize("schedule", ["llama3", "head-chunks"])
def test_heads_come_while_others_are_attended(schedule: str) -> None:
    work = Workload(seq=32, heads=16, kv_heads=8, head_dim=4, mask=Full(), dtype="float64")
    lines = source_of(both(schedule, work, 4), "torch").partition("def forward")[2].splitlines()
    started, attended, waited = (
        next(n for n, line in enumerate(lines) if text in line)
        for text in ("arriving_kv", "merge_attention(", "wait(arriving_kv")
    )
    assert started < attended < waited


@FEW
@given(st.data(), st.integers(1, 4), workloads(dtype="float32"), st.integers(0, 99))
def test_programs_are_exact_in_float32(
    data: st.DataObject, ranks: int, work: Workload, seed: int
) -> None:
    assert_exact(both(data.draw(schedules(ranks)), work, ranks), seed)


SHORT = ["bfloat16", "float16"]
NARROW = square(["ring", "zigzag", "burst", "ulysses", "balanced"], SHORT, [2, 8], every=2)


@pytest.mark.parametrize(("schedule", "dtype", "ranks"), NARROW)
def test_16_bit_errors_do_not_grow_with_the_ranks(schedule: str, dtype: str, ranks: int) -> None:
    work = Workload(seq=256, heads=4, kv_heads=2, head_dim=32, mask=Causal(), dtype=dtype)
    arrays = draw(work, 1)
    results, own = run(both(schedule, work, ranks), *arrays), dense_in_torch(work, arrays)
    truth = (dense.forward(work, *arrays[:3])[0], *dense.backward(work, *arrays))
    for ours, one_device, right in zip(results, own, truth, strict=True):
        assert distance(ours, right) <= 1.1 * distance(one_device, right)


@FEW
@given(st.data(), st.integers(1, 4), st.sampled_from(SHORT), st.integers(0, 99))
def test_programs_are_exact_in_16_bit(
    data: st.DataObject, ranks: int, dtype: str, seed: int
) -> None:
    work = replace(data.draw(any_workloads(dtype)), sinks=False)
    assert check(both(data.draw(schedules(ranks)), work, ranks), execute, seed).exact


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_16_bit_results_with_sinks_are_rounded_once(dtype: str, unit: float) -> None:
    work = Workload(40, heads=2, head_dim=2, mask=Full(), dtype=dtype, sinks=True)
    arrays, sinks = draw(work, 0), draw_sinks(work, 0)
    results = run(both("ring", work, 4), *arrays, sinks=sinks)
    truth = dense.forward(work, *arrays[:3], sinks=sinks)[0]
    np.testing.assert_allclose(results[0].astype(float), truth, rtol=unit * 1.001)
    # Ranks' shares of the sinks' gradient are not rounded, their sum is.
    cancelling = replace(work, kv_heads=1, mask=Window(3, 6))
    assert check(both("zigzag:layout=even-work:grain=2", cancelling, 4), execute).exact


@pytest.mark.parametrize("schedule", ["zigzag", "burst"])
@pytest.mark.parametrize(("dtype", "powers"), [("float16", (-9, 9)), ("float32", (-90, 90))])
def test_gradients_grow_and_shrink_with_those_of_the_output(
    schedule: str, dtype: str, powers: tuple[int, int]
) -> None:
    work = Workload(seq=32, heads=2, head_dim=8, mask=Causal(), dtype=dtype)
    pair, (q, k, v, dout) = both(schedule, work, 2), draw(work, 3)
    plain = run(pair, q, k, v, dout)[1:]
    for power in powers:
        scaled = run(pair, q, k, v, np.ldexp(dout, power))[1:]
        for a, b in zip(scaled, plain, strict=True):
            assert distance(np.ldexp(a, -power), b) <= (2e-5 if dtype == "float32" else 1e-2)


def dense_in_torch(work: Workload, arrays: tuple[Array, ...]) -> list[Array]:
    """Output and gradients of PyTorch's own attention in the workload's dtype."""
    q, k, v, dout = map(to_torch, arrays)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    sees = torch.from_numpy(work.allowed(range(work.seq), range(work.kv_seq)))
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(*inputs, attn_mask=sees, scale=work.softmax_scale, enable_gqa=True)
    out.backward(dout)
    return [to_numpy(x) for x in (out, *(x.grad for x in inputs))]


LEAKS = square(
    ["zigzag", "burst", "usp:ulysses=2", "allgather", "balanced"],
    [Causal(), Window(5)],
    [32, 37],
    every=2,
)


@pytest.mark.parametrize(("schedule", "mask", "seq"), LEAKS, ids=str)
def test_nothing_leaks_through_the_mask(schedule: str, mask: Mask, seq: int) -> None:
    work = Workload(seq=seq, heads=2, kv_heads=1, head_dim=4, mask=mask, dtype="float64")
    pair = both(schedule, work, 4)
    assert forward_leaks(work, partial(run, pair.forward)) == []
    assert backward_leaks(work, partial(run, pair)) == []


def test_a_backward_plan_alone_takes_the_output_of_dense_attention() -> None:
    work = Workload(seq=24, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64")
    arrays = draw(work, 4)
    for schedule in ("zigzag", "allgather:keep=1", "ulysses", "usp:ulysses=2"):
        backward = plan(schedule, work, 4, pass_="backward")
        assert_dense(work, arrays, run(backward, *arrays))


def test_the_forward_pass_gives_its_log_sum_exp() -> None:
    mask = Blocks(((True, False), (False, True)), 20)
    for work in (
        Workload(seq=24, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64"),
        Workload(seq=37, heads=4, kv_heads=2, head_dim=4, mask=mask, dtype="float64"),
    ):
        q, k, v, _ = draw(work, 4)
        results = forward(plan("zigzag", work, 4), q, k, v, backend=execute)
        for a, b in zip(results, dense.forward(work, q, k, v), strict=True):
            assert distance(a, b) <= 1e-12


def test_a_condition_that_holds_on_all_ranks_is_not_asked() -> None:
    """Backward, dkv goes on from every rank in the last step but one: no guard is left to print."""
    work = Workload(seq=3, heads=1, head_dim=1, mask=Window(None, 1), dtype="float64")
    assert_exact(both("group-cast", work, 3))


@pytest.mark.parametrize(
    ("schedule", "ranks", "seq", "mask"),
    [
        ("zigzag", 2, 4, Causal()),  # owners send sums of cut tiles, and others come in their place
        ("burst", 2, 4, Causal()),
        ("striped", 2, 4, Prefix(1)),  # some ranks cut the first rectangle, others do not
        ("ulysses", 2, 2, Causal()),  # queries are gathered as keys are
        ("usp:ulysses=2", 2, 4, Causal()),
        ("startrail", 2, 4, Causal()),
    ],
)
def test_pieces_of_one_token_are_exact(schedule: str, ranks: int, seq: int, mask: Mask) -> None:
    """Under one token a causal tile is a full one, so rectangles are cut that are not elsewhere."""
    assert_exact(
        both(schedule, Workload(seq=seq, heads=2, head_dim=3, mask=mask, dtype="float64"), ranks)
    )
