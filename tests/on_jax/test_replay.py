"""The replay in numpy: it computes what XLA computes, and notices what would go wrong there."""

import numpy as np
import pytest

from dense_attention import assert_dense
from jax_in_numpy import array, replay, replayed
from ringloom.codegen import emit
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes import backends
from ringloom.runtimes.arrays import draw
from stand_ins.ranks import Stuck

WORK = Workload(32, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64")


@pytest.mark.parametrize("schedule", ["zigzag", "usp:ulysses=2"])
def test_results_are_those_of_the_compiled_program(schedule: str) -> None:
    pair, inputs = plan(schedule, WORK, 4, pass_="both"), draw(WORK, 1)
    compiled = backends.run(pair, *inputs, backend="jax")
    for ours, theirs in zip(replay(pair, *inputs), compiled, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_ranks_may_run_a_kernel_that_has_branches_in_different_orders() -> None:
    """Rectangles under a window are of other shapes on the helpers of `balanced`."""
    sizes = {"heads": 4, "kv_heads": 1, "head_dim": 4, "v_head_dim": 6}
    work = Workload(24, mask="window:20", dtype="float64", **sizes)
    inputs = draw(work, 0)
    assert_dense(work, inputs, replay(plan("balanced", work, 3, pass_="both"), *inputs))


def test_a_message_to_another_rank_gives_other_numbers() -> None:
    pair, inputs = plan("zigzag", WORK, 4, pass_="both"), draw(WORK, 1)
    source = emit(pair, "jax")
    wrong = replayed(source.replace("(r + 1) % RANKS", "(r + 2) % RANKS"), 4, *inputs)
    assert np.abs(wrong[0] - replay(pair, *inputs)[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("(r, (r + 1) % RANKS)", "(r, 0)", "a rank has two messages"),
        (
            "kv = exchange(kv, axis, NEXT)",
            "kv = lax.cond(rank > 0, lambda: exchange(kv, axis, NEXT), lambda: kv)",
            "waits for",
        ),
        ("return output, kv", "return narrow(output, jnp.zeros(0, 'f4')), kv", "a loop turns"),
    ],
)
def test_what_xla_refuses_is_refused(right: str, wrong: str, error: str) -> None:
    source = emit(plan("zigzag", WORK, 4, pass_="both"), "jax")
    assert right in source
    with pytest.raises(Stuck, match=error):
        replayed(source.replace(right, wrong), 4, *draw(WORK, 1))


def test_an_index_beyond_the_end_is_nowhere() -> None:

    x, at = array(np.arange(6.0).reshape(2, 3)), np.array([1, 7, -1])
    for result, right in (
        (x.at[:, at].get(mode="fill", fill_value=9), [[1, 9, 2], [4, 9, 5]]),
        (x.at[:, at].set(0, mode="drop"), [[0, 0, 0], [3, 0, 0]]),
        (x.at[0, at].add(1), [[0, 2, 3], [3, 4, 5]]),
    ):
        assert result.tolist() == right
