"""Printed programs with numpy in place of their frameworks: all that goes wrong is noticed."""

import threading
from functools import cache

import numpy as np
import pytest

from ringloom.codegen import emit
from ringloom.codegen.programs import TARGETS, Program, Target, program_of
from ringloom.planner.masks import Causal, Documents, Full, Mask, Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from stand_ins import Different, check, jax_in_numpy, torch_in_numpy
from stand_ins.attention import Pairs, attend, attend_backward
from stand_ins.ranks import HERE, Ranks, Stuck

MASKS = Full(), Causal(), Window(9), Documents((20, 30, 14))


def exact(program: Program) -> bool:
    """True for loops, which have to be exact, False for tables."""
    text = emit(program.plans, program.target)
    if "(as tables" in " ".join(text.split()):
        return False
    check(program, text)
    return True


def program(schedule: str, target: Target = "torch", ranks: int = 4, **work: object) -> Program:
    """A program of a short causal workload, unless `work` says another."""
    about = {"seq": 64, "heads": 4, "kv_heads": 4, "head_dim": 4, "mask": Causal(), **work}
    return program_of(plan(schedule, Workload(**about), ranks, pass_="both"), target)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("more", [{"sinks": True}, {"v_head_dim": 8}, {"kv_heads": 1}])
def test_sinks_unequal_widths_and_groups_pass(target: Target, more: dict[str, object]) -> None:
    for schedule in ("zigzag", "ulysses", "balanced"):
        shared = schedule == "ulysses" and "kv_heads" in more
        if not shared:
            assert exact(program(schedule, target, **more))


@cache
def zigzag(target: Target) -> tuple[Program, str]:
    """The program that tests change, and its text."""
    made = program("zigzag", target)
    return made, emit(made.plans, target)


WAITED = "kv = wait(arriving_kv) or kv"
WRONG: list[tuple[Target, str, str, str]] = [  # the first such line of zigzag
    ("torch", "(rank + 1) % RANKS", "(rank + 2) % RANKS", "waits for"),
    ("torch", WAITED, "wait(arriving_kv)", "another out"),
    ("torch", WAITED, "pass", "does not wait"),
    ("torch", WAITED, f"kv[0] += step; {WAITED}", "changes while it is sent"),
    ("torch", "add(visiting_dkv, wait", "list(wait", "another dk"),
    ("torch", "visiting_dkv = zeros([k, v])\n        if", "if", "changes while it is sent"),
    ("torch", "narrow([*dq, *dkv], q)", "narrow([*dq, *dkv[::-1]], q)", "another dk"),
    ("torch", "narrow([*dq, *dkv], q)", "narrow(dq, q)", "2 results on rank 0"),
    ("torch", "narrow([*dq, *dkv], q)", "[*dq, *dkv]", "another dq"),
    ("torch", "(rank - 1) % RANKS", "rank - 1", "rank -1 of a group of 4"),
    ("torch", "group_named(name)", "group_named(OPERATOR)", "no group|OPERATOR"),
    ("torch", "(t.contiguous(), to)", "(t, to)", "not contiguous"),
    ("torch", "[output[0].to(q.dtype), ", "[output[0], ", "another out"),
    ("torch", "    kv = [k, v]\n", "    kv = [k, v]; v += 1\n", "changes what it was given"),
    ("torch", ", output[1]]", ", output[1], v]", "share memory"),
    ("torch", "rank >= step", "rank > step", "another"),
    ("jax", "(r + 1) % RANKS", "(r + 2) % RANKS", "another out"),
    ("jax", "rank >= step", "rank > step", "another"),
    ("jax", "[q], kv, True", "[q], kv, False", "another out"),
    ("jax", "return out.astype(q.dtype), [", "return 1, [", "another out"),
    ("jax", "tuple(narrow([*dq, *dkv], dout))", "tuple([*dq, *dkv])", "another dq"),
    ("jax", "kv = exchange(kv, axis, NEXT)", "kv = exchange(kv, rank, NEXT)", "no axis"),
    ("jax", "exchange(narrow(visiting_dkv, dout), axis, NEXT)", "visiting_dkv", "another dk"),
    ("jax", "visiting_dkv = add(visiting_dkv, returning_dkv)", "pass", "another dk"),
    ("jax", "    kv = [k, v]\n", "    kv = [k, v] if rank else q\n", "needs a number"),
]


@pytest.mark.parametrize(("target", "right", "wrong", "error"), WRONG)
def test_a_changed_line_is_noticed(target: Target, right: str, wrong: str, error: str) -> None:
    made, text = zigzag(target)
    assert right in text
    with pytest.raises(Different, match=error):
        check(made, text.replace(right, wrong, 1))


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
