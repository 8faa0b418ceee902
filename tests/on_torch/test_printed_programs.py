"""Torch programs printed from the program IR, exact in torch itself."""

import pytest

from loop_schedules import foreign_pair
from lowered_programs import masks, workload
from ringloom.codegen.programs import program_of
from ringloom.codegen.torch import write
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans

pytest.importorskip("torch")

from rank_threads import assert_exact, load, self_check

CASES = [
    ("zigzag", 0),
    ("striped", 0),
    ("balanced", 0),
    ("usp", 0),
    ("ulysses", 1),
    ("allgather", 0),
    ("llama3", 0),
    ("broadcast", 1),
    ("double-ring", 0),
    ("zigzag", 2),
    ("burst", 4),
    ("usp", 5),
    ("tokenring", 3),
]


def plans(name: str, mask: str) -> Plans:
    work = workload(4, mask)
    return Plans.of(tuple(plan(name, work, 4, pass_=p) for p in ("forward", "backward")))


@pytest.mark.parametrize(("name", "mask"), [(name, masks(4)[n]) for name, n in CASES])
def test_printed_programs_are_exact(name: str, mask: str) -> None:
    both = plans(name, mask)
    text = write(program_of(both, "torch"))
    assert "as tables" not in text
    assert_exact(load(text), both)


@pytest.mark.parametrize("ranks", [5, 8])
@pytest.mark.parametrize("name", ["stride", "halves"])
def test_rings_that_nobody_wrote_this_for_are_exact_loops(name: str, ranks: int) -> None:
    both = foreign_pair(name, workload(ranks, "causal"), ranks)
    made = program_of(both, "torch")
    assert made.lowered
    assert_exact(load(write(made)), both)


def test_a_printed_program_checks_itself() -> None:
    self_check(write(program_of(plans("zigzag", masks(4)[0]), "torch")))
