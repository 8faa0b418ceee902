"""Runs of printed programs at emission: exact ones pass, and all that goes wrong is noticed."""

import re
import threading
from functools import cache

import numpy as np
import pytest

import codegen.torch
from codegen import dry_run, emit
from codegen.dry_run import jax_in_numpy, torch_in_numpy
from codegen.dry_run.attention import Pairs, attend, attend_backward
from codegen.dry_run.ranks import HERE, Ranks, Stuck
from codegen.programs import TARGETS, Program, Target, program_of
from planner.errors import PlanError
from planner.masks import Causal, Documents, Full, Mask, Window
from planner.planning import plan
from planner.schedules import SCHEDULES
from planner.workload import Workload

MASKS = Full(), Causal(), Window(9), Documents((20, 30, 14))


def program(schedule: str, target: Target = "torch", ranks: int = 4, **work: object) -> Program:
    """A program of a short causal workload, unless `work` says another."""
    about = {"seq": 64, "heads": 4, "kv_heads": 4, "head_dim": 4, "mask": Causal(), **work}
    return program_of(plan(schedule, Workload(**about), ranks, pass_="both"), target)  # type: ignore[arg-type]


@cache
def zigzag(target: Target) -> tuple[Program, str]:
    """The program that most tests change, and its text."""
    made = program("zigzag", target)
    return made, emit(made.plans, target)


def assert_passes(text: str) -> None:
    """Fails for a program that is one by tables because of its run."""
    assert not re.search(r"its\s+loops\s+(do|give)", text[:2000]), text[:2000]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_schedule_is_refused_by_it(schedule: str) -> None:
    for mask in (Causal(), Window(9)):
        plans = plan(
            schedule, Workload(64, heads=4, kv_heads=2, head_dim=4, mask=mask), 4, pass_="both"
        )
        for target in TARGETS:
            assert_passes(emit(plans, target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("more", [{"sinks": True}, {"v_head_dim": 8}, {"kv_heads": 1}])
def test_sinks_unequal_widths_and_groups_pass(target: Target, more: dict[str, object]) -> None:
    for schedule in ("zigzag", "ulysses", "balanced"):
        if schedule != "ulysses" or "kv_heads" not in more:
            assert_passes(emit(program(schedule, target, **more).plans, target))


WAITED = "kv = wait(arriving_kv) or kv"
WRONG: list[tuple[Target, str, str, str]] = [  # the first such line of zigzag
    ("torch", "(rank + 1) % RANKS", "(rank + 2) % RANKS", "waits for"),
    ("torch", WAITED, "wait(arriving_kv)", "give another out"),
    ("torch", WAITED, "pass", "does not wait"),
    ("torch", WAITED, f"kv[0] += step; {WAITED}", "changes while it is sent"),
    ("torch", WAITED, "kv = arriving_kv.result() if arriving_kv else kv", "does not wait"),
    ("torch", "merge(*results, *attend", "merge(*zeros(results), *attend", "give another dk"),
    ("torch", "add(dkv, wait", "add(dq, wait", "give another dq"),
    ("torch", "dkv = zeros([k, v])\n        if", "if", "changes while it is sent"),
    ("torch", "in dkv], after, before", "in dkv], before, after", "waits for|give another dk"),
    ("torch", "in (*dq, *dkv)]", "in (*dq, *dkv[::-1])]", "give another dk"),
    ("torch", "in (*dq, *dkv)]", "in dq]", "give 2 results on rank 0"),
    ("torch", "2 * RANKS - 1 - rank]", "RANKS + rank]", "other tokens"),
    ("jax", "(r + 1) % RANKS", "(r + 2) % RANKS", "give another out"),
    ("jax", "rank >= step", "rank > step", "give another dk"),
    ("jax", "causal=True", "causal=False", "give another out"),
    ("jax", "rows=back", "cols=back", "give another out"),
    ("jax", "return out, lse, kv\n", "return out.astype(q.dtype), lse, kv\n", "a loop turns"),
    ("jax", "queries = q, dout, out, lse", "queries = q, dout, lse, out", "do not run"),
    ("jax", "dkv = lax.ppermute(dkv, axis, NEXT)\n    return", "return", "give another dk"),
    ("jax", "kv = lax.ppermute(kv", "kv = (k, v) if rank else lax.ppermute(kv", "needs a number"),
    ("torch", "(rank - 1) % RANKS", "rank - 1", "rank -1 of a group of 4"),
    ("torch", "group_named(name)", "group_named(OPERATOR)", "no group"),
    ("torch", "exchange(kv, after, before", "exchange(kv, rank, rank", "sends to itself"),
    ("torch", "[t.contiguous() for t in x]", "[*x]", "not contiguous"),
    ("torch", "part.to(out.dtype)", "part", "lerp_ of"),
    ("torch", "[results[0].to(q.dtype), ", "[results[0], ", "give another out"),
    ("torch", "    kv = [k, v]\n", "    kv = [k, v]; v += 1\n", "changes what it was given"),
    ("torch", ", results[1]]", ", results[1], v]", "share memory"),
    ("torch", "x.to(q.dtype) for x in (*dq", "x for x in (*dq", "give another dq"),
    ("jax", "return out.astype(q.dtype), (", "return 1, (", "give another out"),
    ("jax", "return dq.astype(dout.dtype)", "return dq", "give another dq"),
    ("jax", "out, lse, kv = state", "out, lse, kv = state; out[...] = out", "or changes it"),
    ("jax", "kv, axis, NEXT", "kv, rank, NEXT", "no axis"),
    ("jax", "jnp.add, dkv, arr", "jnp.add, [*dkv], arr", "meets another tree"),
    ("jax", "meet_part(out, lse, q, kv, rows=back)", "[out, lse]", "on another"),
    ("jax", "dq[:, :, rows] + dq_part", "dq[:, :, rows]", "give another dq"),
    ("jax", "rows.indices(x.shape[2])[0]", "0", "give another out"),
]


@pytest.mark.parametrize(("target", "right", "wrong", "error"), WRONG)
def test_a_changed_line_is_noticed(target: Target, right: str, wrong: str, error: str) -> None:
    made, text = zigzag(target)
    assert right in text
    with pytest.raises(PlanError, match=error):
        dry_run.check(made, text.replace(right, wrong, 1))


def test_a_kernel_call_of_queries_without_keys_is_noticed() -> None:
    made = program("balanced", mask=Window(9))
    text, line = emit(made.plans, "torch"), "b, c = min(b, d - first), max(c, a + first)"
    assert line in text
    with pytest.raises(PlanError, match="see no keys"):
        dry_run.check(made, text.replace(line, "pass"))


@pytest.mark.parametrize("tokens", [50, 97])
def test_padding_inside_a_shard_is_right(tokens: int) -> None:
    pair = plan("zigzag", Workload(tokens, heads=4, kv_heads=2, mask=Causal()), 6, pass_="both")
    assert "as tables" not in emit(pair, "jax")


def test_an_exchange_that_is_not_tiled_is_noticed() -> None:
    made = program("ulysses", "jax")
    text = emit(made.plans, "jax")
    assert "tiled=True" in text
    with pytest.raises(PlanError, match="not tiled"):
        dry_run.check(made, text.replace("tiled=True", "tiled=False"))


def test_slices_begin_where_xla_begins_them() -> None:
    x = jax_in_numpy.array(np.arange(5))
    for start, first in ((0, 0), (4, 3), (9, 3), (-1, 3), (-4, 1), (-9, 0)):
        part = jax_in_numpy.dynamic_slice_in_dim(x, start, 2, 0)
        np.testing.assert_array_equal(np.asarray(part), [first, first + 1])
    with pytest.raises(Stuck, match="a slice of 6 of 5"):
        jax_in_numpy.dynamic_slice_in_dim(x, 0, 6, 0)
    with pytest.raises(Stuck, match="float32 in int64"):
        jax_in_numpy.dynamic_update_slice_in_dim(x, x[:2].astype(np.float32), 0, 0)


def test_groups_are_sorted_as_torch_sorts_them() -> None:
    groups = Ranks(1).run(lambda rank: torch_in_numpy.new_group([2, 0], True))
    assert groups[0].members == (0, 2)


def test_an_interrupt_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    def forever(rank: int) -> None:
        while True:
            HERE.ranks.share("numbers", rank, range(3))()

    before = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Ranks(3).run(forever)
    ranks = set(threading.enumerate()) - before
    for thread in ranks:
        thread.join(30)
    assert not any(thread.is_alive() for thread in ranks)


def test_a_program_that_is_not_exact_becomes_one_by_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    right = codegen.torch.print_loops

    def wrong(*args: object) -> str:
        return right(*args).replace("rank >= step", "rank > step")  # type: ignore[arg-type]

    pair = plan("zigzag", Workload(64, heads=4, mask=Causal()), 4, pass_="both")
    monkeypatch.setattr(codegen.torch, "print_loops", wrong)
    text = " ".join(emit(pair, "torch").split())
    assert "(as tables, not loops: in a test its loops give another dk on rank " in text


def test_a_plan_of_too_many_rectangles_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = zigzag("torch")
    monkeypatch.setattr(dry_run, "LARGEST", (31, 2**22))
    dry_run.check(made, "no program")
    monkeypatch.setattr(dry_run, "LARGEST", (32, 2**22))
    with pytest.raises(PlanError, match="do not run"):
        dry_run.check(made, "no program")


def test_a_program_of_many_ranks_is_not_run() -> None:
    dry_run.check(program("allgather", ranks=128, seq=2048), "no program")


@pytest.mark.parametrize("mask", MASKS)
def test_its_attention_sums_over_the_pairs_of_the_mask(mask: Mask) -> None:
    seed, seen = np.random.default_rng(0), mask.allowed(range(64), range(64))
    q, dout, delta = (seed.uniform(-1, 1, (1, 4, 64, n)) for n in (2, 3, 1))
    k, v = (seed.uniform(-1, 1, (1, 2, 64, n)) for n in (2, 3))
    pairs = Pairs(mask.region(), np.arange(64), np.arange(64))
    out, lse = attend(q, k, v, pairs)
    scores = q[..., :1] + k[..., 0].repeat(2, 1)[:, :, None]
    weights = np.where(seen, np.exp(scores), 0)
    np.testing.assert_allclose(lse[..., 0], np.log(weights.sum(3)))
    wide_k, wide_v = k.repeat(2, 1), v.repeat(2, 1)
    shares = weights / weights.sum(3, keepdims=True)
    np.testing.assert_allclose(out, shares @ wide_v * (2 + q[..., :1]))
    dq, dk, dv = attend_backward(q, dout, delta, lse, k, v, pairs)
    inner = shares * (dout @ wide_v.swapaxes(2, 3) + delta)
    np.testing.assert_allclose(dq, inner @ wide_k)
    for got, whole in (
        (dk, inner.swapaxes(2, 3) @ q),
        (dv, shares.swapaxes(2, 3) @ (dout * (2 + q[..., :1]))),
    ):
        np.testing.assert_allclose(got, whole.reshape(1, 2, 2, 64, -1).sum(2))
