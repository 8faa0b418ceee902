"""Ranks that are killed, stopped, fail or return NaN: named in time, and no process is left."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from process_trees import Begun, begun, wait_for
from ringloom.cli import main
from ringloom.codegen import emit
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw
from ringloom.runtimes.machine import RankError

pytest.importorskip("torch")

from ringloom.runtimes.torch import launch
from ringloom.runtimes.torch.faults import FRAME, location_of
from ringloom.runtimes.torch.launch import in_processes
from ringloom.runtimes.torch.rank import run_attention

SMALL = Workload(seq=12, heads=2, head_dim=4, dtype="float64")
LIMIT = 8.0  # seconds
FAULTY = 1  # the rank


def on_faulty(do: Callable[[], Any], program: ModuleType, group: Any, arrays: Any) -> list[Array]:
    """Attention in which one rank is in a fault before its first message."""
    plain = program.dist.batch_isend_irecv

    def faulty(*args: Any) -> Any:
        do()
        return plain(*args)

    if group.rank() == FAULTY:
        program.dist.batch_isend_irecv = faulty
    return run_attention(program, group, arrays)


def is_killed(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    return on_faulty(lambda: os.kill(os.getpid(), signal.SIGKILL), program, group, arrays)


def is_stopped(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    return on_faulty(lambda: os.kill(os.getpid(), signal.SIGSTOP), program, group, arrays)


def is_lost(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    return on_faulty(lambda: time.sleep(600), program, group, arrays)


def fails(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    return on_faulty(lambda: {}["no such batch"], program, group, arrays)


def dtype_differs(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    if group.rank() == FAULTY:
        arrays = [x.astype(np.float32) for x in arrays]
    return run_attention(program, group, arrays)


def returns_nan(program: ModuleType, group: Any, arrays: Sequence[Array]) -> list[Array]:
    parts = run_attention(program, group, arrays)
    return [x * np.nan for x in parts] if group.rank() == FAULTY else parts


WAITS = r"\nrank 0 was in forward, line \d+ of \w+\.py: "
FAULTS = {
    is_killed: r"rank 1 failed \(signal 9: Killed\) and left no traceback" + WAITS,
    is_stopped: r"(?s)ranks \[0, 1.*\] are not done after 8 s.*\nrank 1 is stopped by a signal",
    is_lost: r"(?s)are not done after 8 s.*\nrank 1 was in forward, ",
    fails: r"(?s)rank 1 failed:\nTraceback .*KeyError: 'no such batch'" + WAITS,
    dtype_differs: r"(?s)rank \d failed:.*ValueError: ranks disagree on a call: .*float32",
    returns_nan: "rank 1 returned NaN in result 0 of 1",
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("how", FAULTS, ids=lambda how: how.__name__)
def test_a_faulty_rank_ends_the_run_and_is_named(how: Any, ranks: int) -> None:
    if ranks == 3 and how in (is_stopped, is_lost):
        pytest.skip("they wait for their time limit: once is enough")

    def faulty(source: str, n: int, arrays: Any, body: Any, timeout: float) -> Any:
        return in_processes(source, n, arrays, how, LIMIT)

    began = time.monotonic()
    with pytest.raises(RankError, match=FAULTS[how]):
        launch.execute(
            Plans.of(plan("ring", SMALL, ranks)), "attention", *draw(SMALL, 0)[:3], launch=faulty
        )
    assert time.monotonic() - began < LIMIT + 20
    assert not multiprocessing.active_children()


def test_a_place_is_the_line_of_the_pass_and_else_that_of_the_innermost_call() -> None:
    source = emit(plan("ring", SMALL, 2), "torch")
    path = launch.load(source).__file__
    number = source.splitlines().index("    group = group_named(name)") + 1
    inner = f'  File "{__file__}", line 1 in wait\n'
    stack = f'Current thread:\n{inner}  File "{path}", line {number} in forward\n'
    assert location_of(stack).endswith("py: group = group_named(name)")
    assert location_of(stack).startswith(f"forward, line {number} of emitted_")
    assert location_of(inner).startswith("wait, line 1 of test_faults.py: ")
    turned = reversed([f'  File "{a}", line {b}, in {c}\n' for a, b, c in FRAME.findall(stack)])
    assert location_of(f"Traceback (most recent call last):\n{''.join(turned)}") == location_of(
        stack
    )
    assert location_of("") == ""


# ---- on the terminal

UNGUARDED = """
import numpy as np
import ringloom as rl

q = np.ones((1, 2, 12, 4))
rl.run(rl.plan("ring", rl.Workload(seq=12, heads=2, head_dim=4, dtype="float64"), 2), q, q, q,
       backend="torch")
"""
SIZES = ["--ranks", "2", "--seq", "12", "--heads", "2", "--head-dim", "4"]
RUN = ["run", "ring", *SIZES, "--time-limit", "6"]


def ranks_of(program: Begun) -> list[int]:
    """The processes that the server forked."""
    parents = dict[int, int]()
    for pid in program.tree():
        with suppress(OSError):
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == program.process.pid]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (signal.SIGKILL, "failed (signal 9: Killed) and left no traceback"),
        (signal.SIGSTOP, "is stopped by a signal"),
    ],
    ids=["killed", "stopped"],
)
def test_the_command_names_a_rank_that_somebody_ends(sent: signal.Signals, said: str) -> None:
    with begun([sys.executable, "-m", "ringloom", *RUN, "--backend", "torch"]) as program:
        wait_for(lambda: len(ranks_of(program)) == 2)
        os.kill(ranks_of(program)[-1], sent)
        _, errors = program.process.communicate(timeout=120)
        assert program.process.returncode == 1
        assert "ringloom: rank" in errors
        assert said in errors
        assert "Traceback" not in errors
        wait_for(lambda: not program.tree())


def test_a_script_that_starts_ranks_as_it_is_imported_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    with begun([sys.executable, str(tmp_path / "script.py")]) as program:
        _, errors = program.process.communicate(timeout=120)
        assert program.process.returncode == 1
        assert 'move the code that starts them under `if __name__ == "__main__":`' in errors
        assert "bootstrapping" not in errors
        assert errors.count("Traceback") == 1
        wait_for(lambda: not program.tree())


def test_a_time_limit_is_for_ranks_that_can_be_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUN) == 2
    assert "--time-limit requires --backend torch, not numpy" in capsys.readouterr().err
