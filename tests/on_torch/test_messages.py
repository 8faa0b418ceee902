"""The messages of emitted torch programs: those of the plan, by the collectives made for them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringloom.codegen import emit
from ringloom.codegen.programs import program_of
from ringloom.planner.ir import Attend, Move, Plan, Step
from ringloom.planner.masks import Causal, Full, Mask, Window
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw
from strategies import CLASSIC, schedules, workloads

pytest.importorskip("torch")

from in_memory.network import Network
from rank_threads import assert_exact, load, trained

FEW = settings(max_examples=max(12, settings.default.max_examples // 2))
Traffic = Counter[tuple[int, int]]  # bytes by (source, destination)


def network_of(plans: Plan | Plans) -> Network:
    """The network after a run of the emitted program."""
    given = Plans.of(plans)
    return trained(load(emit(given, "torch")), draw(given.workload, 0)[: 2 + len([*given])])


def sent(network: Network) -> Traffic:
    traffic = Traffic()
    for message in network.log:
        traffic[message.src, message.dst] += message.bytes
    return +traffic


def planned(plans: Iterable[Plan], with_statistics: bool = False) -> Traffic:
    """Counts the bytes of the messages, with 8 more per row and head beside DOUT if asked."""
    traffic = Traffic()
    for one in plans:
        for _, move in one.moves():
            tensors = [*move.tensors]
            if with_statistics and "DOUT" in tensors and "STATS" not in tensors:
                tensors.append("STATS")
            sizes = (np.append(one.block_bytes(t), 0)[move.blocks].sum(axis=1) for t in tensors)
            for src, dst, size in zip(move.src, move.dst, sum(sizes), strict=True):
                traffic[int(src), int(dst)] += int(size)
    return +traffic


@FEW
@given(st.data(), st.integers(2, 6), workloads(dtype="float32", longest=24))
def test_bytes_are_the_plan_s(data: st.DataObject, ranks: int, work: Workload) -> None:
    """Loops send fewer where a gradient would go on to its own keys, as tested below."""
    plans = plan(data.draw(schedules(ranks)), work, ranks, pass_="both")
    network, is_regular = network_of(plans), program_of(plans, "torch").loops is not None
    by_heads = any(name in plans.forward.name for name in ("ulysses", "usp"))
    if {message.kind for message in network.log} <= {"send"}:
        ours, theirs = sent(network), planned(plans, with_statistics=by_heads)
        assert not ours - theirs
        assert is_regular or ours == theirs


@pytest.mark.parametrize(("keys", "ranks"), [(1, 2), (3, 4)])
def test_ranks_without_keys_receive_what_is_sent(keys: int, ranks: int) -> None:
    """The partition of groups has no empty blocks, so equal blocks do not mean equal shards."""
    work = Workload(
        seq=8, kv_seq=keys, heads=1, kv_heads=1, head_dim=4, dtype="float32", mask=Full()
    )
    plans = plan("groups", work, ranks, pass_="both")
    assert_exact(load(emit(plans, "torch")), plans)


@pytest.mark.parametrize("mask", [Causal(), Full(), Window(5)], ids=str)
@pytest.mark.parametrize("schedule", CLASSIC)
def test_regular_plans_send_what_they_say(schedule: str, mask: Mask) -> None:
    """But for zeros in a reduce-scatter, and for gradients that a rank adds to its own keys.

    Where not all ranks send those on, they stay where they belong.
    """
    work = Workload(seq=64, heads=8, kv_heads=4, head_dim=4, mask=mask, dtype="float32")
    plans = plan(schedule, work, 4, pass_="both")
    ours, theirs = sent(network_of(plans)), planned(plans)
    extra, kept = ours - theirs, theirs - ours
    gradients = 2 * 16 * work.kv_heads * work.head_dim * 4
    assert not kept or {*kept.values()} == {gradients}
    assert not kept or schedule == "ring"
    if schedule != "allgather":
        assert not extra


def test_a_ring_sends_one_message_fewer_than_ranks() -> None:
    """Keys and values are two tensors of each message."""
    work = Workload(seq=64, heads=2, head_dim=4, mask=Full(), dtype="float64")
    network = network_of(plan("ring", work, 4))
    assert Counter(message.kind for message in network.log) == {"send": 4 * 3 * 2}


COLLECTIVES = {
    "ring": {"send"},
    "zigzag": {"send"},
    "ulysses": {"all_to_all"},
    "usp:ulysses=2": {"all_to_all", "send"},
    "allgather": {"all_gather", "reduce_scatter"},
}


@pytest.mark.parametrize("schedule", COLLECTIVES)
def test_exchanges_are_the_collectives_made_for_them(schedule: str) -> None:
    work = Workload(seq=64, heads=8, kv_heads=4, head_dim=4, mask=Causal(), dtype="float32")
    network = network_of(plan(schedule, work, 4, pass_="both"))
    assert {message.kind for message in network.log} == COLLECTIVES[schedule]


def test_finished_results_travel_in_the_model_s_dtype() -> None:
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        work = Workload(seq=64, heads=8, kv_heads=4, head_dim=4, mask=Full(), dtype=dtype)
        sizes[dtype] = sent(network_of(plan("ulysses", work, 4, pass_="both"))).total()
    lse = 2 * 64 * 8 * 4 * 3 // 4  # log-sum-exp stays in 32 bit where it travels
    assert sizes["bfloat16"] <= sizes["float32"] / 2 + lse


def exchanged(ranks: int) -> tuple[Plans, np.ndarray, np.ndarray, np.ndarray]:
    """A ring to change, its ranks, and the blocks that they own."""
    work = Workload(seq=4 * ranks, heads=1, head_dim=2, mask=Full(), dtype="float64")
    ring = plan("ring", work, ranks, pass_="both")
    sides = ring.first.partition
    return ring, np.arange(ranks), sides.q.owned(ranks), sides.kv.owned(ranks)


def assert_printed(plans: Plans) -> None:
    source = emit(plans, "torch")
    assert "as tables" not in source
    assert_exact(load(source), plans)


def test_what_is_gathered_while_the_next_of_its_name_come_is_what_was_there() -> None:
    """Keys go around three rows, and in each step those that came are gathered in the row."""
    ring, r, q, kv = exchanged(6)
    here = [kv[(r - 2 * t) % 6] for t in range(3)]
    gathers, sends = (
        [Move(("KV",), blocks, r, to) for blocks in here] for to in (r ^ 1, (r + 2) % 6)
    )
    steps = [Step((), (gathers[t], *sends[t : min(t + 1, 2)])) for t in range(3)]
    steps += [Step((Attend(r, q, np.hstack([blocks, blocks[r ^ 1]])),)) for blocks in here]
    forward = replace(ring.forward, buffers=(), steps=tuple(steps))
    assert_printed(verify_pair(forward, ring.backward))


def test_sums_that_go_back_while_others_come_for_the_same_keys_are_those_before() -> None:
    ring, r, q, kv = exchanged(4)
    row = np.hstack([kv[r // 2 * 2], kv[r // 2 * 2 + 1]])
    back = Move(("DKV",), kv[r ^ 1], r, r ^ 1)
    steps = (
        Step((), (Move(("KV",), kv, r, r ^ 1),)),
        Step((Attend(r, q, row),), (Move(("KV",), row, r, r ^ 2),)),
        Step((Attend(r, q, row[r ^ 2]),)),
        Step((), (back, Move(("DKV",), row[r ^ 2], r, r ^ 2))),
        Step((), (back,)),
    )
    backward = replace(ring.backward, buffers=(), steps=steps)
    plans = verify_pair(ring.forward, backward)
    assert_exact(load(emit(plans, "torch")), plans)


def test_sums_that_go_back_twice_begin_anew_after_the_first_have_gone() -> None:
    """Keys that came are attended again after the first sums for them have gone back."""
    ring, r, q, kv = exchanged(4)
    back = (Move(("DKV",), kv[r ^ 1], r, r ^ 1),)
    across = Move(("Q", "DOUT", "STATS"), q, r, r ^ 2)
    steps = (
        Step((Attend(r, q, kv),), (across, Move(("KV",), kv, r, r ^ 1))),
        Step((Attend(r, q[r ^ 2], np.hstack([kv, kv[r ^ 1]])),)),
        Step((), back),
        Step((), (Move(("DQ",), q[r ^ 2], r, r ^ 2),)),
        Step((Attend(r, q, kv[r ^ 1]),)),
        Step((), back),
    )
    backward = replace(ring.backward, buffers=(), steps=steps)
    assert_printed(verify_pair(ring.forward, backward))


def test_what_comes_once_in_a_loop_has_the_shape_of_what_is_sent() -> None:
    """Keys that an all-to-all brought go to the other group; a part of queries waits for them."""
    work = Workload(seq=16, heads=2, head_dim=2, mask=Full(), dtype="float64")
    forward = plan("usp:ulysses=2", work, 4)
    first, own, visiting, *last = adjoint(forward).steps
    (whole,) = own.attends
    early, late = (Attend(whole.rank, whole.q[:, part], whole.kv) for part in np.s_[3:, :3])
    then = Step((late, *visiting.attends), visiting.moves)
    steps = first, replace(own, attends=(early,)), then, *last
    backward = replace(adjoint(forward), buffers=(), steps=steps)
    assert_printed(verify_pair(forward, backward))


def test_results_that_go_back_over_two_exchanges_have_the_shapes_of_both() -> None:
    """Queries come by heads in a row, then from both rows; their results go back the same way."""
    work = Workload(seq=8, heads=2, head_dim=2, mask=Full(), dtype="float64")
    partition = plan("usp:ulysses=2", work, 4).partition
    r = np.arange(4)
    q, kv = partition.q.owned(4), partition.kv.owned(4)
    heads = [np.stack([x[i][x[i] % 2 == h] for i, h in enumerate((r ^ 1) % 2)]) for x in (q, kv)]
    own = [np.stack([x[i][x[i] % 2 == h] for i, h in enumerate(r % 2)]) for x in (q, kv)]
    here, keys = (np.hstack([a, b[r ^ 1]]) for a, b in zip(own, heads, strict=True))
    steps = (
        Step((), tuple(Move((t,), b, r, r ^ 1) for t, b in zip(("Q", "KV"), heads, strict=True))),
        Step((), (Move(("Q",), here, r, r ^ 2),)),
        Step((Attend(r, np.hstack([here, here[r ^ 2]]), keys),)),
        Step((), (Move(("OUT",), here[r ^ 2], r, r ^ 2),)),
        Step((), (Move(("OUT",), heads[0][r ^ 1], r, r ^ 1),)),
    )
    forward = verify(Plan("by hand", work, 4, partition, "forward", (), (), steps))
    assert_exact(load(emit(forward, "torch")), Plans(forward))


def test_a_value_that_comes_in_two_messages_at_once_is_exact() -> None:
    """Ranks pass on what they own, and what they have from their neighbour, to the other row."""
    ring, r, q, kv = exchanged(4)
    to_row = [Move(("KV",), kv[x], r, r ^ 2) for x in (r, r ^ 1)]
    attends = [Attend(r, q, kv[r ^ n]) for n in range(4)]
    steps = (
        Step((attends[0],), (Move(("KV",), kv, r, r ^ 1),)),
        Step((attends[1],), (*to_row,)),
        Step((attends[2],)),
        Step((attends[3],)),
    )
    plans = verify_pair(replace(ring.forward, buffers=(), steps=steps), ring.backward)
    assert_exact(load(emit(plans, "torch")), plans)
