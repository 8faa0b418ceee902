"""Torch programs of plans by hand whose values come, and whose sums leave, beside others."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ringloom.codegen import emit
from ringloom.planner.ir import Attend, Move, Plan, Step
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload

pytest.importorskip("torch")

from rank_threads import assert_exact, load

RANKS = np.arange(4)


def ring_of(mask: str) -> Plans:
    """Both passes of a ring of four."""
    work = Workload(16, heads=1, head_dim=2, mask=mask, dtype="float64")
    return plan("ring:layout=contiguous", work, 4, pass_="both")


def assert_exact_with(ring: Plans, *steps: Step) -> None:
    """The program of a forward pass and of these steps backward is right."""
    backward: Plan = verify(replace(ring.backward, buffers=(), steps=steps))
    pair = verify_pair(ring.forward, backward)
    assert_exact(load(emit(pair, "torch")), pair)


def test_what_is_not_read_does_not_take_the_name_of_what_comes_with_it() -> None:
    """Keys of the rank two before are not attended, but sums for them come by that rank."""
    ring, r = ring_of("window:1,3"), RANKS
    own = ring.forward.partition.q.owned(4)

    def move(tensor: str, of: Sequence[int], src: Sequence[int], dst: Sequence[int]) -> Move:
        return Move((tensor,), own[np.array(of)], src, dst)

    keys = move("KV", r[:3], r[:3], r[1:]), move("KV", r[:3], r[:3], [2, 3, 0])
    sums = move("DKV", [0, 2], [1, 3], [0, 2]), move("DKV", [1], [2], [3])
    assert_exact_with(
        ring,
        Step((Attend(r, own, own),), keys),
        Step((Attend(r[1:], own[1:], own[:3]),)),
        Step((), (move("KV", r[1:], r[1:], r[:3]),)),
        Step((Attend(r[:3], own[:3], own[1:]),)),
        Step((), (*sums, move("DKV", r[1:], r[:3], r[1:]))),
        Step((), (move("DKV", [1], [3], [1]),)),
    )


def test_sums_that_leave_before_others_of_their_name_begin_are_exact() -> None:
    """Owners send theirs around the ring in the step in which the first others begin."""
    ring, r = ring_of("full"), RANKS
    own = ring.forward.partition.q.owned(4)
    held = [own[(r + n) % 4] for n in range(4)]
    attends = [Attend(r, own, blocks) for blocks in held]
    keys, sums = ([Move((x,), kv, r, (r - 1) % 4) for kv in held] for x in ("KV", "DKV"))
    assert_exact_with(
        ring,
        Step((attends[0],)),
        Step((), (keys[0],)),
        Step((attends[1],), (sums[0],)),
        Step((), (keys[1],)),
        Step((attends[2],), (keys[2], sums[1])),
        Step((attends[3],), (sums[2],)),
        Step((), (sums[3],)),
    )
