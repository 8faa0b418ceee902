"""Audits of processes whose function ends a call, prints, or takes long to be imported."""

from pathlib import Path

import numpy as np
import pytest

from ringloom.planner.workload import Workload
from ringloom.runtimes.audit import Case, launch

pytest.importorskip("torch")
FUNCTIONS = """
import sys
import torch, torch.distributed as dist

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad := grad.clone())
        return grad

def short(q, k, v):
    print("a line that is no part of the report")
    return Sum.apply(v)[:, :, dist.get_rank():]

def leaves(q, k, v):
    if dist.get_rank() == 1:
        sys.exit(0)
    return Sum.apply(v)
"""
CASE = Case(Workload(8, heads=1, head_dim=8, dtype="float32"), 2, tuple(np.split(np.arange(8), 2)))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("short", "wrong shape", "rank 1 returned a result of shape [1, 1, 3, 8]"),
        ("leaves", "crash", "rank 1 raised SystemExit: 0"),
    ],
)
def test_a_rank_that_ends_a_call_lets_no_other_wait(
    name: str,
    kind: str,
    said: str,
    tmp_path: Path,
    forked: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "ends.py").write_text(FUNCTIONS)
    (fault,) = launch(f"{tmp_path}/ends.py:{name}", CASE, timeout=15).faults
    assert fault.kind == kind
    assert said in fault.sentence
    assert not capfd.readouterr().out


def test_a_slow_import_is_no_hang(tmp_path: Path, forked: None) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)")
    report = launch(f"{tmp_path}/slow.py:attend", CASE, timeout=2)
    assert "took longer than the timeout of 2 s" in (report.could_not_run or "")
