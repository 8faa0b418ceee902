"""The example of a training loop in JAX: sharded and on one device the losses are the same."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jax_devices import QUICK, jax
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


def test_targets_in_another_order_than_the_tokens_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example itself, on the devices of this process: the loss of one step, no padding."""
    changes = {
        "map(placed, batch_of(text, step))": "batch_of(text, step)",
        "loss, slopes =": "tokens = placed(tokens)\n        loss, slopes =",
        "SEQ, BATCH, LAYERS = 258, 2, 2": "SEQ, BATCH, LAYERS = 256, 2, 1",
        'jax.config.update("jax_num_cpu_devices", RANKS)\n': "",
        "jax.value_and_grad(loss_here)": "lambda *given: (loss_here(*given), 0)",
        "step_of = partial(adam, step=step + 1)": "return [float(loss)]",
    }
    wrong = EXAMPLE.read_text()
    for old, new in changes.items():
        assert wrong.count(old) == 1, old
        wrong = wrong.replace(old, new)
    example = ModuleType("train_jax")
    example.__file__ = str(EXAMPLE)
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), "--steps", "1"])
    with jax.enable_x64(True):
        exec(compile(wrong, str(EXAMPLE), "exec"), vars(example))
        assert example.main() == 1
    jax.config.update("jax_enable_x64", False)
    assert "largest difference" in capsys.readouterr().out
