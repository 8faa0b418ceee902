"""The example of a training loop in JAX: sharded and on one device the losses are the same.

On the devices of this process; on those that it asks for itself in `test_docs_blocks`.
"""

from types import ModuleType

import pytest

from jax_devices import jax
from repository import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "train_jax.py"
DEVICES = 'jax.config.update("jax_num_cpu_devices", RANKS)\n'


def run(steps: int, changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the example with its text changed."""
    text = EXAMPLE.read_text()
    for old, new in {DEVICES: "", **changes}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    example = ModuleType("train_jax")
    example.__file__ = str(EXAMPLE)
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), "--steps", str(steps)])
    with jax.enable_x64(True):
        exec(compile(text, str(EXAMPLE), "exec"), vars(example))
        status = int(example.main())
    jax.config.update("jax_enable_x64", False)
    return status


def test_a_sharded_model_learns_as_one_device_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(3, {}, monkeypatch) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:4]]
    assert [sharded for _, sharded, _ in rows] == [single for *_, single in rows]
    first, *_, last = (float(loss) for *_, loss in rows)
    assert last < first - 0.5


def test_targets_in_another_order_than_the_tokens_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss of one step, no padding."""
    changes = {
        "map(place, batch_of(text, step))": "batch_of(text, step)",
        "loss, gradients =": "tokens = place(tokens)\n        loss, gradients =",
        "SEQ, BATCH, LAYERS = 258, 2, 2": "SEQ, BATCH, LAYERS = 256, 2, 1",
        "jax.value_and_grad(loss_function)": "lambda *given: (loss_function(*given), 0)",
        "update = partial(adam, step=step + 1)": "return [float(loss)]",
    }
    assert run(1, changes, monkeypatch) == 1
    assert "largest difference" in capsys.readouterr().out
