"""JAX programs of plans by hand in which owners send sums away, and get them back."""

from dataclasses import replace

import numpy as np

from codegen import emit
from dense_attention import assert_dense
from jax_in_numpy import replayed
from planner.ir import Attend, Move, Step
from planner.masks import Causal, Window
from planner.planning import plan
from planner.verify import verify, verify_pair
from planner.workload import Workload
from runtimes.arrays import draw


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
