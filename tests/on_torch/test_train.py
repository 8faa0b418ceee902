"""The torch example: a sharded training run has the losses of the run on one device.

Its ranks are threads here; the processes that it starts itself run in `test_docs_blocks`.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from repository import ROOT

pytest.importorskip("torch")

from rank_threads import in_threads, load

EXAMPLE = ROOT / "docs" / "examples" / "train_torch.py"
PLACES = "positions = program.positions(group.rank())"
Run = Callable[[str, int], int]  # of a text of the example, and of steps: its exit status


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def main(source: str, steps: int) -> int:
        monkeypatch.setattr("sys.argv", [str(EXAMPLE), "--steps", str(steps)])
        example = ModuleType("train_torch")
        example.__file__ = str(EXAMPLE)
        exec(compile(source, str(EXAMPLE), "exec"), vars(example))
        program = load(example.write_program(tmp_path).read_text())
        vars(example)["dist"] = vars(program)["dist"]

        def run_both(steps: int) -> tuple[list[float], list[float]]:
            sharded = in_threads(4, lambda group: example.train(program, steps, group))
            return sharded[0], example.train(program, steps)

        monkeypatch.setattr(example, "run_both", run_both)
        return int(example.main())

    return main


def test_a_sharded_run_has_the_losses_of_one_device(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(EXAMPLE.read_text(), 3) == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in steps] == ["0", "1", "2"]
    first, then = (float(last.split()[n].rstrip(";")) for n in (1, 3))
    assert then < first - 0.5, "it learns"


def test_tokens_in_another_order_than_the_layout_s_are_noticed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EXAMPLE.read_text()
    assert PLACES in source
    assert run(source.replace(PLACES, f"{PLACES}.flip(0)"), 1) == 1
    assert "the runs differ by at most" in capsys.readouterr().out
