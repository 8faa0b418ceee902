"""The operators of torch programs: their names, and what imports and edits change."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ringloom.codegen import emit
from ringloom.planner.files.digest import digest
from ringloom.planner.masks import Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

torch = pytest.importorskip("torch")

from in_memory.distributed import installed  # noqa: E402  only where torch is
from rank_threads import in_threads, load  # noqa: E402

WORK = Workload(seq=8, heads=2, head_dim=4, mask=Window(5), dtype="float64")


def results_of(program: ModuleType) -> Any:
    """Attention of some arrays on one rank."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 1, 2, 8, 4)))
    return in_threads(1, lambda group: program.attention(*x, group=group))[0]


@pytest.mark.parametrize("schedule", ["ring", "tree"])
def test_an_operator_is_named_after_its_plan_and_runs_edited_code_under_another_name(
    schedule: str,
) -> None:
    pair = plan(schedule, WORK, 1, pass_="both")
    source = emit(pair, "torch")
    program, same = load(source), load(f"{source}\n\n# formatted")
    assert hasattr(torch.ops.ringloom, f"attention_{program.OPERATOR}")
    assert digest(pair) in program.OPERATOR
    assert same.forward is program.forward
    assert same.backward is program.backward
    edited = load(source.replace("SCALE = 4**-0.5", "SCALE = 4**-0.25"))
    assert edited.OPERATOR == program.OPERATOR
    assert hasattr(torch.ops.ringloom, f"attention_{edited.OPERATOR}_1")
    plain, other = results_of(program), results_of(edited)
    assert not torch.allclose(plain, other)
    torch.testing.assert_close(results_of(same), plain, rtol=0, atol=0)
    torch.testing.assert_close(results_of(program), plain, rtol=0, atol=0)


def test_a_program_runs_in_a_cell_of_a_notebook() -> None:
    """Where nothing is imported from a file, and every cell is __main__."""
    cell = ModuleType("__main__")
    exec(compile(emit(plan("ring", WORK, 1, pass_="both"), "torch"), "<cell>", "exec"), vars(cell))
    assert results_of(installed(cell)).shape == (1, 2, 8, 4)
