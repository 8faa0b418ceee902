"""The torch example: a sharded training run has the losses of the run on one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

pytest.importorskip("torch")

EXAMPLE = ROOT / "docs" / "examples" / "train_torch.py"


def trained(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(path), *options]
    shell = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=shell)


def test_a_sharded_run_has_the_losses_of_one_device() -> None:
    done = trained(EXAMPLE, "--steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    *steps, last = done.stdout.splitlines()
    assert [line.split()[1] for line in steps] == ["0", "1", "2"]
    first, then = (float(last.split()[n].rstrip(";")) for n in (1, 3))
    assert then < first - 0.5, "it learns"


def test_tokens_in_another_order_than_the_layout_s_are_noticed(tmp_path: Path) -> None:
    old = "torch.as_tensor(program.positions(group.rank()))"
    source = EXAMPLE.read_text()
    assert old in source
    path = tmp_path / "train_torch.py"
    path.write_text(
        source.replace(old, f"{old}.flip(0)").replace(".parents[2]", f".parents[2] / {str(ROOT)!r}")
    )
    done = trained(path, "--steps", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the runs are at most" in done.stdout
