"""The torch runtime: its launchers agree, and a rank that fails or stalls ends the run."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ringloom.codegen import emit
from ringloom.planner.errors import RingloomError
from ringloom.planner.masks import Causal, Documents
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.runtimes import backends
from ringloom.runtimes.arrays import Array, draw
from ringloom.runtimes.machine import RankError

pytest.importorskip("torch")

from process_trees import begun, wait_for
from rank_threads import as_threads, run
from ringloom.runtimes.torch import launch
from ringloom.runtimes.torch.launch import in_processes
from ringloom.runtimes.torch.rank import run_attention

SMALL = Workload(seq=16, heads=2, head_dim=4, dtype="float64")


def both(schedule: str, work: Workload, ranks: int) -> Plans:
    return plan(schedule, work, ranks, pass_="both")


CASES = [
    ("zigzag", Causal(), "float32"),
    ("usp:ulysses=2", Causal(), "float64"),
    ("burst", Causal() & Documents((9, 31)), "bfloat16"),
]


@pytest.mark.parametrize(("schedule", "mask", "dtype"), CASES, ids=str)
def test_processes_give_what_threads_give(schedule: str, mask: Any, dtype: str) -> None:
    work = Workload(seq=40, heads=4, kv_heads=2, head_dim=8, mask=mask, dtype=dtype)
    pair, arrays = both(schedule, work, 4), draw(work, 3)
    processes = backends.run(pair, *arrays, backend=partial(launch.execute, timeout=60.0))
    for a, b in zip(processes, run(pair, *arrays), strict=True):
        np.testing.assert_allclose(
            a.astype(float), b.astype(float), rtol=0, atol=1e-6 if dtype == "float32" else 1e-14
        )


def fails(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    if group.rank() == 1:
        raise RuntimeError("rank 1 has had enough")
    return run_attention(program, group, arrays)


def dies(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    if group.rank() == 1:
        os._exit(7)
    return run_attention(program, group, arrays)


def leaves(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    if group.rank() == 1:
        os._exit(0)
    return [np.zeros(1)]


def is_killed(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    if group.rank() == 1:
        os.kill(os.getpid(), 9)
    return run_attention(program, group, arrays)


def is_interrupted(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    os.kill(os.getpid(), signal.SIGINT)
    return run_attention(program, group, arrays)


def sleeps(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    time.sleep(600)
    return run_attention(program, group, arrays)


FAILURES = {
    fails: "rank 1 has had enough",
    dies: r"rank 1 failed \(exit code 7\) and left no traceback",
    leaves: r"rank 1 failed \(exit code 0\) and left no traceback",
    is_killed: r"rank 1 failed \(signal 9: Killed\)",
}


@pytest.mark.parametrize("how", FAILURES, ids=lambda how: how.__name__)
def test_a_rank_that_fails_ends_the_run(how: Any) -> None:
    source = emit(plan("ring", SMALL, 2), "torch")
    with pytest.raises(RankError, match=FAILURES[how]):
        in_processes(source, 2, draw(SMALL, 0)[:3], how, 60.0)
    nobody_is_left()


def nobody_is_left() -> None:
    left = multiprocessing.active_children()
    assert not [child.pid for child in left if child.is_alive()]


def test_ctrl_c_is_for_the_process_that_began_the_ranks_and_shows_no_traceback_of_theirs() -> None:
    source = emit(plan("ring", SMALL, 2), "torch")
    assert len(in_processes(source, 2, draw(SMALL, 0)[:3], is_interrupted, 60.0)) == 2
    nobody_is_left()


def test_a_rank_that_stalls_ends_the_run_in_time() -> None:
    source = emit(plan("ring", SMALL, 2), "torch")
    with pytest.raises(RankError) as told:
        in_processes(source, 2, draw(SMALL, 0)[:3], sleeps, 5.0)
    assert str(told.value).startswith("ranks [0, 1] are not done after 5 s")
    assert "rank 1 was in sleeps, line " in str(told.value)
    nobody_is_left()


STALLING = """
import os, signal, sys, time
from ringloom.runtimes.torch.launch import in_processes

def stalls(program, group, arrays):
    open(f"{sys.argv[1]}/{group.rank()}", "w").close()
    if group.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)

if __name__ == "__main__":
    in_processes("", 2, (), stalls, 600.0)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_the_process_that_began_them(sent: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "stalls.py").write_text(STALLING)
    with begun([sys.executable, str(tmp_path / "stalls.py"), str(tmp_path)]) as process:
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        assert len(process.tree()) >= 3
        process.send(sent)
        wait_for(lambda: not process.tree())


def test_more_ranks_than_there_is_memory_for_are_refused_before_any_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringloom.runtimes.torch.launch.memory_bytes", lambda: 2.0**28)
    source = emit(plan("ring", SMALL, 2), "torch")
    with pytest.raises(
        RingloomError, match=r"2 torch processes need 0\.5 GiB, but this machine has"
    ):
        in_processes(source, 2, draw(SMALL, 0)[:3], run_attention, 60.0)


def test_threads_that_stall_tell_where_they_are() -> None:
    source, over = emit(plan("ring", SMALL, 2), "torch"), threading.Event()

    def waits(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
        over.wait()
        return []

    with pytest.raises(RankError, match=r"(?s)not done after 0.5 s.*rank 1:.*waits"):
        as_threads(source, 2, draw(SMALL, 0)[:3], waits, 0.5)
    over.set()
