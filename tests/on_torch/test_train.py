"""The torch example: a sharded training run has the losses of the run on one device."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from repository import ROOT

pytest.importorskip("torch")

from rank_threads import in_threads, load

EXAMPLE = ROOT / "docs" / "examples" / "train_torch.py"


def test_a_sharded_run_has_the_losses_of_one_device() -> None:
    command = [sys.executable, str(EXAMPLE), "--steps", "3"]
    shell = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=shell)
    assert done.returncode == 0, done.stdout + done.stderr
    *steps, last = done.stdout.splitlines()
    assert [line.split()[1] for line in steps] == ["0", "1", "2"]
    first, then = (float(last.split()[n].rstrip(";")) for n in (1, 3))
    assert then < first - 0.5, "it learns"


def test_tokens_in_another_order_than_the_layout_s_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example itself, its ranks as threads, its text changed."""
    old = "torch.as_tensor(program.positions(group.rank()))"
    source = EXAMPLE.read_text()
    assert old in source
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), "--steps", "1"])
    example = ModuleType("train_torch")
    example.__file__ = str(EXAMPLE)
    exec(compile(source.replace(old, f"{old}.flip(0)"), str(EXAMPLE), "exec"), vars(example))
    program = load(example.write_program(tmp_path).read_text())
    vars(example)["dist"] = vars(program)["dist"]

    def both_runs(steps: int) -> tuple[list[float], list[float]]:
        sharded = in_threads(4, lambda group: example.train(program, steps, group))
        return sharded[0], example.train(program, steps)

    monkeypatch.setattr(example, "both_runs", both_runs)
    assert example.main() == 1
    assert "the runs are at most" in capsys.readouterr().out
