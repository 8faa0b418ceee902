"""Mutants of programs are refused by the check, or print a program that means the same."""

from dataclasses import fields, is_dataclass
from itertools import islice

import pytest

from mutant_runs import printed
from program_mutants import everything, mutants
from ringloom.codegen import conditions, ir
from ringloom.codegen.programs import TARGETS, Target
from ringloom.planner.loops.form import Expr, Root
from sampling import NIGHTLY

SOME = [
    ("zigzag", 4, "causal"),
    ("usp", 4, "causal"),
    ("burst", 4, "causal & window:16"),
]
MORE = [
    *(("balanced", 4, "causal"), ("ring", 5, "causal"), ("striped", 3, "causal")),
    *(("allgather", 4, "causal"), ("ulysses", 4, "causal"), ("broadcast", 4, "causal")),
    *(("llama3", 4, "causal"), ("tokenring", 4, "causal"), ("double-ring", 4, "causal")),
    *(("bidirectional", 5, "full"), ("mesh2d", 4, "causal"), ("decode-a2a", 4, "causal")),
    *(("usp", 4, "prefix:16"), ("zigzag", 4, "causal & documents:12,21,31")),
]
EVERY = 1 if NIGHTLY else 37  # one mutant of so many is tried


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "ranks", "mask"), SOME + MORE * NIGHTLY)
def test_a_mutant_is_refused_or_means_the_same(
    name: str, ranks: int, mask: str, target: Target
) -> None:
    program, tried, refused = printed(name, ranks, mask, target), 0, 0
    for n, one in enumerate(program.program.lowered or ()):
        assert program.refusal(n, one) == program.difference(n, one) == ""
        for how, mutant in islice(mutants(one), n, None, EVERY):
            tried += 1
            if program.refusal(n, mutant):
                refused += 1
            elif difference := program.difference(n, mutant):
                pytest.fail(f"{how}: {difference}")
    assert refused > tried / 2 > 5


@pytest.mark.parametrize("target", TARGETS)
def test_the_run_of_a_mutant_would_show_that_it_differs(target: Target) -> None:
    program = printed("zigzag", 4, "causal", target)
    backward = (program.program.lowered or ())[1]
    kinds = [
        mutant for how, mutant in mutants(backward) if "Attend.kind:" in how and "tiles" not in how
    ]
    assert all(program.refusal(1, mutant) for mutant in kinds)
    assert sum(program.difference(1, mutant) != "" for mutant in kinds) > 2


def test_every_field_of_what_a_program_is_made_of_is_changed() -> None:
    made = [x for module in (ir, conditions) for x in vars(module).values() if is_dataclass(x)]
    kinds = {x for x in made if x.__module__ in (ir.__name__, conditions.__name__)} | {Expr, Root}
    assert len(kinds) > 20, "a check that finds nothing must not pass"
    asked = {(kind.__name__, field.name) for kind in kinds for field in fields(kind)}
    paths = [how.split(":")[0].split(".") for how, _ in mutants(everything())]
    changed = {pair for path in paths for pair in zip(path[::2], path[1::2], strict=True)}
    assert asked - changed == set()
