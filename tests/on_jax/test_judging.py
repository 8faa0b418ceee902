"""JAX programs are judged by what they compute, on virtual devices of another process."""

import signal
import sys
import time
from pathlib import Path

import pytest

import ringloom as rl

pytest.importorskip("jax")

from process_trees import begun, wait_for
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.claims import parse_claims
from ringloom.runtimes.judging.process import run_and_compare
from ringloom.runtimes.judging.verdict import Verdict

WORK = rl.Workload(seq=37, heads=4, kv_heads=2, head_dim=8, v_head_dim=4, sinks=True)
FULL = rl.Workload(seq=32, heads=4, kv_heads=2, head_dim=8, mask=rl.Full())
PADDED = rl.emit(rl.plan("zigzag", WORK, 2, pass_="both"), "jax")
DYNAMIC = rl.emit(rl.plan("zigzag", FULL, 2, pass_="both"), "jax", dynamic=True)
FORWARD = rl.emit(rl.plan("ring", FULL, 2), "jax")


def judge(source: str, folder: Path, mask: str | None = None) -> Verdict:
    said = parse_claims(source.encode())
    work = said.workload(None, mask)
    case = Case(
        source, said.target, said.ranks, work, said.backward, said.dynamic,
        seed=7, memory=2**34, deadline=time.monotonic() + 120,
    )  # fmt: skip
    return run_and_compare(case, folder, lambda *_: None)


def test_padding_values_of_another_width_and_sinks_are_exact(tmp_path: Path) -> None:
    verdict = judge(PADDED, tmp_path)
    assert verdict.exact, verdict
    assert [*verdict.errors] == ["forward", "dq", "dk", "dv", "dsink"]


def test_a_dynamic_program_gets_tables_of_the_mask(tmp_path: Path) -> None:
    assert judge(DYNAMIC, tmp_path, "causal & window:5").exact


def test_a_forward_program_is_judged_by_its_output_alone_and_another_mask_is_seen(
    tmp_path: Path,
) -> None:
    verdict = judge(FORWARD.replace('"mask": "full"', '"mask": "causal"'), tmp_path)
    assert not verdict.exact
    assert verdict.errors["forward"] > 1e-3
    assert [*verdict.errors] == ["forward"]


@pytest.mark.parametrize(
    ("first", "said"),
    [("import os; os._exit(0)", "exit code 0"), ("raise KeyError(5)", "KeyError: 5")],
)
def test_a_program_that_leaves_no_results_is_not_exact(
    first: str, said: str, tmp_path: Path
) -> None:
    verdict = judge(FORWARD.replace("RANKS = 2", f"{first}\nRANKS = 2"), tmp_path)
    assert (verdict.exact, said in verdict.reason) == (False, True)


RUNNING = """
import sys
from ringloom.runtimes.jax import mesh
mesh.CHILD = "import sys, time; open(sys.argv[1] + '.began', 'w').close(); time.sleep(600)"
mesh.tempfile.tempdir = sys.argv[1]
mesh.in_child((2, "", "", (), None))
"""


def test_the_child_of_a_run_ends_with_the_process_that_began_it(tmp_path: Path) -> None:
    with begun([sys.executable, "-c", RUNNING, str(tmp_path)]) as program:
        wait_for(lambda: [*tmp_path.glob("*/*.began")])
        assert len(program.tree()) == 3
        program.send(signal.SIGKILL)
        wait_for(lambda: not program.tree())
