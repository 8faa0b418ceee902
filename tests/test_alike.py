"""What was derived and proved for one length holds for another, where nothing tells them apart."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from planner import planning
from planner.alike import alike
from planner.ir import Attend, Held, Move, Plan, Step
from planner.partitions import Block, Partition, Side
from planner.planning import PASSES, derive
from planner.schedules import SCHEDULES
from strategies import masks, schedules

WORK = rl.Workload(seq=24, heads=2, head_dim=8, mask=rl.Causal())
SIMPLE = rl.Full(), rl.Causal(), rl.Window(7, 3)  # masks of any length
passes = st.sampled_from(["forward", "backward"])


@given(st.data(), st.integers(1, 8), passes)
def test_plans_are_what_they_are_whatever_was_planned_before(
    data: st.DataObject, ranks: int, pass_: str
) -> None:
    name, kv_heads = data.draw(schedules(ranks)), data.draw(st.sampled_from([1, 2, 4]))
    mask = data.draw(st.sampled_from(SIMPLE) | masks(24, 24))
    lengths = data.draw(st.lists(st.integers(8, 40) if mask in SIMPLE else st.just(24), min_size=2))
    works = [rl.Workload(seq=n, heads=4, kv_heads=kv_heads, head_dim=8, mask=mask) for n in lengths]
    after_others = [rl.plan(name, work, ranks, pass_=pass_) for work in works]
    for work, found in zip(works, after_others, strict=True):
        planning._last.cache_clear()
        assert found == rl.plan(name, work, ranks, pass_=pass_)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), passes, st.sampled_from(SIMPLE),
       st.integers(6, 60), st.integers(6, 60))  # fmt: skip
def test_plans_that_are_alike_are_derived_alike(
    name: str, ranks: int, pass_: str, mask: rl.Mask, short: int, long: int
) -> None:
    works = [replace(WORK, seq=n, kv_seq=n, mask=mask) for n in (short, long)]
    a, b = (SCHEDULES[name].build(work, ranks, pass_) for work in works)
    if alike(a, b):
        one, other = (planning._derived(plan, PASSES) for plan in (a, b))
        assert (one.steps, one.start, one.buffers) == (other.steps, other.start, other.buffers)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_another_length_is_not_derived_again(schedule: str) -> None:
    short, long = (rl.plan(schedule, replace(WORK, seq=n, kv_seq=n), 4) for n in (64, 128))
    assert short.steps is long.steps
    assert (short.workload.seq, long.workload.seq) == (64, 128)
    assert 2 * short.partition.q.sizes.sum() == long.partition.q.sizes.sum()


def test_rewrites_of_others_may_look_at_lengths() -> None:
    built = [SCHEDULES["ring"].build(replace(WORK, seq=n, kv_seq=n), 4, "forward") for n in (8, 16)]

    def roomy(plan: Plan) -> Plan:
        return replace(plan, buffers=(("KV", plan.workload.seq),))

    assert [dict(derive(one, (*PASSES, roomy)).buffers)["KV"] for one in built] == [8, 16]


def test_what_is_wrong_is_refused_each_time() -> None:
    built = SCHEDULES["ring"].build(replace(WORK, mask=rl.Full()), 3, "forward")
    wrong = replace(built, steps=built.steps[:-1])
    for _ in range(2):
        with pytest.raises(rl.PlanError, match="never attends"):
            derive(wrong, ())


# ---- whatever passes and the verifier look at tells plans apart

RING = SCHEDULES["ring"].build(WORK, 3, "forward")
HEADS = SCHEDULES["ulysses"].build(WORK, 2, "forward")  # blocks: piece 0, 0, 1, 1; heads 0, 1, 0, 1


def with_blocks(plan: Plan, change: Callable[[int, Block], Block], side: str) -> Plan:
    """The plan with each block of a side changed by its number."""
    blocks = enumerate(plan.partition.side(side).blocks)
    made = Side(tuple(change(number, block) for number, block in blocks))
    return replace(plan, partition=replace(plan.partition, **{side: made}))


def homes(number: int, block: Block) -> Block:
    return replace(block, home=(1, 0, 2)[number])


def slices(number: int, block: Block) -> Block:
    first = block.heads.start
    return replace(block, heads=range(1 - first, 2 - first)) if number > 1 else block


def pieces(number: int, block: Block) -> Block:
    other = HEADS.partition.q.blocks[(number + 2) % 4]
    return replace(block, positions=other.positions) if number % 2 else block


def shared(cut: int) -> Plan:
    """Four query heads on two KV heads, cut in two after the first `cut`."""
    ends = (0, cut, 4)
    work = replace(WORK, heads=4, kv_heads=2)
    blocks = HEADS.partition.q.blocks
    q = [replace(b, heads=range(ends[b.heads.start], ends[b.heads.stop])) for b in blocks]
    return replace(HEADS, workload=work, partition=Partition(Side(tuple(q)), HEADS.partition.kv))


LAST = RING.steps[-1]
OTHERS = {
    "mask": (RING, replace(RING, workload=replace(WORK, mask=rl.Full()))),
    "pass": (replace(RING, steps=()), replace(RING, steps=(), pass_="backward")),
    "ranks": (RING, replace(RING, ranks=4)),
    "buffers": (RING, replace(RING, buffers=(("KV", 1),))),
    "start": (RING, replace(RING, start=(Held(("KV",), [1], [0]),))),
    "attends": (RING, replace(RING, steps=(*RING.steps[:-1], Step((), LAST.moves)))),
    "moves": (RING, replace(RING, steps=(*RING.steps, Step((), (Move(("Q",), [0], [0], [1]),))))),
    "rectangles": (RING, replace(RING, steps=(*RING.steps, Step((Attend([0], [0], [0]),))))),
    "query homes": (RING, with_blocks(RING, homes, "q")),
    "key homes": (RING, with_blocks(RING, homes, "kv")),
    "query slices": (HEADS, with_blocks(HEADS, slices, "q")),
    "key slices": (HEADS, with_blocks(HEADS, slices, "kv")),
    "query pieces": (HEADS, with_blocks(HEADS, pieces, "q")),
    "key pieces": (HEADS, with_blocks(HEADS, pieces, "kv")),
    "heads in common": (shared(2), shared(1)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other(what: str) -> None:
    one, other = OTHERS[what]
    assert alike(one, replace(one))
    assert alike(other, replace(other))
    assert not alike(one, other)
    assert not alike(other, one)
