"""The example of packed documents: ranks that plan every batch have the losses of one device.

Its ranks are threads here; the processes that it starts itself run in `test_docs_blocks`.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from repository import ROOT

pytest.importorskip("torch")

from rank_threads import in_threads, load

EXAMPLE = ROOT / "docs" / "examples" / "train_packed_torch.py"
NEXT = "background.submit(planner, documents_of(step + 1))"
Run = Callable[[str], int]  # of a text of the example: its exit status


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def main(source: str) -> int:
        monkeypatch.setattr("sys.argv", [str(EXAMPLE), "--steps", "3"])
        monkeypatch.syspath_prepend(EXAMPLE.parent)
        example = ModuleType("train_packed_torch")
        example.__file__ = str(EXAMPLE)
        exec(compile(source, str(EXAMPLE), "exec"), vars(example))
        program = load(example.write_program(tmp_path).read_text())
        vars(example)["dist"] = vars(program)["dist"]

        def run_both(steps: int) -> tuple[list[float], list[float]]:
            sharded = in_threads(2, lambda group: example.train(steps, program, group))
            return sharded[0], example.train(steps)

        monkeypatch.setattr(example, "run_both", run_both)
        return int(example.main())

    return main


def test_ranks_that_plan_every_batch_have_the_losses_of_one_device(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(EXAMPLE.read_text()) == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in steps] == ["0", "1", "2"]
    assert "on 2 ranks and on one device" in last


def test_documents_of_another_batch_are_noticed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EXAMPLE.read_text()
    assert NEXT in source
    assert run(source.replace(NEXT, NEXT.replace("step + 1", "step"))) == 1
    assert "differ" in capsys.readouterr().out
