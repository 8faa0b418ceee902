"""The example of a training loop in JAX: sharded and on one device the losses are the same."""

import os
import subprocess
import sys
from pathlib import Path

from jax_devices import QUICK
from repository import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "train_jax.py"


def trained(path: Path, steps: int = 3) -> subprocess.CompletedProcess[str]:
    """A few steps of a copy of the example, in a process of its own."""
    environment = os.environ | QUICK | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path), "--steps", str(steps)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_sharded_model_learns_as_one_device_does() -> None:
    done = trained(EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert [sharded for _, sharded, _ in rows] == [single for *_, single in rows]
    first, *_, last = (float(loss) for *_, loss in rows)
    assert last < first - 0.5


def test_targets_in_another_order_than_the_tokens_are_noticed(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    wrong = text.replace("map(placed, batch_of(text, step))", "batch_of(text, step)")
    wrong = wrong.replace("loss, slopes =", "tokens = placed(tokens)\n        loss, slopes =")
    old, new = "SEQ, BATCH, LAYERS = 258, 2, 2", "SEQ, BATCH, LAYERS = 256, 2, 1"  # no padding
    assert old in wrong
    wrong = wrong.replace(old, new)
    wrong = wrong.replace("parents[2]", f"joinpath({str(ROOT)!r})")
    assert wrong != text
    path = tmp_path / "train_jax.py"
    path.write_text(wrong)
    done = trained(path, 1)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "largest difference" in done.stdout
