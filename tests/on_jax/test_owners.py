"""JAX programs of plans by hand whose sums begin elsewhere than named schedules have them."""

from dataclasses import replace

import numpy as np

from dense_attention import assert_dense
from jax_in_numpy import replay, replayed
from ringloom.codegen import emit
from ringloom.planner.ir import Attend, Move, Step
from ringloom.planner.masks import Causal, Window
from ringloom.planner.planning import plan
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw


def test_what_came_with_sums_that_owners_keep_is_not_sent_again() -> None:
    """Rank 1 sends what it has for rank 0 home, then its own sums there, and each goes back."""
    mask, r = Causal() & Window(1), np.arange(3)
    work = Workload(6, heads=1, head_dim=2, mask=mask, dtype="float64")
    forward, ring = plan("ring", work, 3, pass_="both")
    own = forward.partition.q.owned(3)
    keys = Move(("KV",), own, r, (r + 1) % 3), Move(("KV",), own, r, (r - 1) % 3)
    home = Move(("DKV",), own[:2], [1, 2], [0, 1])
    away = Move(("DKV",), own[[1]], [1], [0]), Move(("DKV",), own[[0]], [0], [1])
    back = Move(("DKV",), own[[0]], [1], [0]), Move(("DKV",), own[[1]], [0], [1])
    first, later = Attend(r, own, own), Attend([1, 2], own[1:], own[:2])
    sums = (Step((), moves) for moves in ((home,), away, back))
    steps = Step((first,), keys), Step((later,)), *sums
    pair = verify_pair(forward, verify(replace(ring, buffers=(), steps=steps)))
    inputs = draw(work, 3)
    assert_dense(work, inputs, replayed(emit(pair, "jax"), 3, *inputs))


def test_gradients_begin_in_the_shape_of_keys_that_a_backward_pass_holds() -> None:
    """Half of the ranks attend their heads a step later."""
    work = Workload(16, heads=4, head_dim=2, mask=Causal(), dtype="float64")
    forward, backward = plan("ulysses", work, 4, pass_="both")
    steps = [*backward.steps]
    at = next(n for n, step in enumerate(steps) if step.attends)
    (attend,) = steps[at].attends
    halves = [attend.select(attend.rank // 2 == n) for n in (0, 1)]
    steps[at : at + 1] = Step((halves[0],)), Step((halves[1],), steps[at].moves)
    pair = verify_pair(forward, verify(replace(backward, buffers=(), steps=tuple(steps))))
    assert "as tables" not in emit(pair, "jax")
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(pair, *inputs))
