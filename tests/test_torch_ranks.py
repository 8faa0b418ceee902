"""The torch runtime: its vehicles agree, and a rank that fails or stalls ends the run."""

import multiprocessing
import threading
from functools import partial
from types import ModuleType

import numpy as np
import pytest

from codegen import emit
from planner.errors import PlanError
from planner.passes.adjoint import adjoint
from planner.planning import Pair, plan
from planner.workload import Workload
from runtimes.arrays import draw
from runtimes.backends import RankError

torch_ranks = pytest.importorskip("runtimes.torch_ranks")

in_threads = partial(torch_ranks.run, vehicle="threads", timeout=30.0)


def both(schedule: str, work: Workload, ranks: int) -> Pair:
    return plan(schedule, work, ranks, pass_="both")


def test_processes_give_what_threads_give() -> None:
    work = Workload(seq=40, heads=4, kv_heads=2, head_dim=8, dtype="float32")
    pair, arrays = both("zigzag", work, 2), draw(work, 3)
    found = torch_ranks.run(pair, *arrays, vehicle="processes", timeout=60.0)
    for a, b in zip(found, in_threads(pair, *arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_forward_plan_with_dout_is_followed_by_its_adjoint() -> None:
    work = Workload(seq=24, heads=2, head_dim=4, dtype="float64")
    forward, arrays = plan("balanced", work, 3), draw(work, 3)
    found, wanted = (in_threads(p, *arrays) for p in (forward, (forward, adjoint(forward))))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


FAILURES = {
    "fails": "raise RuntimeError('rank 1 has had enough')",
    "dies": "os._exit(7)",
    "is killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_rank_that_fails_ends_the_run(how: str) -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    source = emit(plan("ring", work, 2), "torch").replace(
        "def attend(store, q_blocks, kv_blocks):\n",
        "def attend(store, q_blocks, kv_blocks):\n"
        f"    if store.setup.rank == 1:\n        {FAILURES[how]}\n",
    )
    said = {
        "fails": "rank 1 has had enough",
        "dies": r"rank 1 failed \(exit code 7\) and left no traceback",
        "is killed": r"rank 1 failed \(signal 9: Killed\)",
    }[how]
    with pytest.raises(RankError, match=said):
        torch_ranks.in_processes(source, 2, list(draw(work, 0)[:3]), 60.0)
    nobody_is_left()


def nobody_is_left() -> None:
    left = multiprocessing.active_children()
    assert not [child.pid for child in left if child.is_alive()]


def test_a_rank_that_stalls_ends_the_run_in_time() -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    source = emit(plan("ring", work, 2), "torch").replace(
        "def attend(store, q_blocks, kv_blocks):\n",
        "def attend(store, q_blocks, kv_blocks):\n    import time\n\n    time.sleep(600)\n",
    )
    with pytest.raises(RankError) as told:
        torch_ranks.in_processes(source, 2, list(draw(work, 0)[:3]), 6.0)
    assert str(told.value).startswith("ranks [0, 1] are not done after 6 s")
    assert "rank 1, innermost call first" in str(told.value)
    assert "in _worker" in str(told.value)
    nobody_is_left()


def test_threads_that_stall_tell_where_they_are() -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    source, over = emit(plan("ring", work, 2), "torch"), threading.Event()

    def prepare(program: ModuleType) -> None:
        program.attend = lambda *_: over.wait()  # type: ignore[attr-defined]

    with pytest.raises(RankError, match=r"(?s)not done after 0.5 s.*rank 1:.*attend"):
        torch_ranks.in_threads(source, 2, list(draw(work, 0)[:3]), 0.5, prepare)
    over.set()


@pytest.mark.parametrize(("lost", "tries"), [(1, 2), (2, 3)])
def test_threads_that_lose_a_connection_connect_again(
    lost: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()

    def connect(_: object, rank: int, **__: object) -> int:
        tried.append(rank)
        if rank == 1 and tried.count(1) <= lost:
            raise RuntimeError("Connection closed by peer")
        return rank

    monkeypatch.setattr(torch_ranks.dist, "ProcessGroupGloo", connect)
    assert torch_ranks.connected(3, 1.0) == [0, 1, 2]
    assert len(tried) == 3 * tries
    lost = 99
    with pytest.raises(RankError, match=r"rank 1 failed to connect, 3 times:\nConnection closed"):
        torch_ranks.connected(3, 1.0)


def test_what_cannot_be_run_is_refused_by_name() -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    pair, (q, k, v, dout) = both("ring", work, 2), draw(work, 0)
    with pytest.raises(PlanError, match="runs a forward plan"):
        torch_ranks.run(pair[1], q, k, v, dout)
    with pytest.raises(PlanError, match="unknown vehicle 'bus'"):
        torch_ranks.run(pair, q, k, v, vehicle="bus")
    with pytest.raises(PlanError, match="but the workload takes"):
        torch_ranks.run(pair, q[:, :1], k, v)
