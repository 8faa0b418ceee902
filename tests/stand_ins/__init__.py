"""Runs a printed program without its framework.

    check(program, text)    Different unless the text computes what its plans say

Every rank runs the printed passes (`ranks`), with numpy in place of torch or JAX
(`torch_in_numpy`, `jax_in_numpy`) and with an attention that takes no time (`attention`) in place
of the kernels. Output and gradients are compared with that attention of the whole sequence, whose
pairs come from the mask. Programs that take any length run at a short one.
"""

from typing import Any

from ringloom.codegen.programs import Program
from stand_ins.case import Case, case_of
from stand_ins.definitions import definitions
from stand_ins.passes import jax_names, run_jax, run_torch, torch_names
from stand_ins.ranks import Ranks

TARGETS = {"torch": (torch_names, run_torch), "jax": (jax_names, run_jax)}


class Different(AssertionError):
    """A program does not run, or computes something else than its plans."""


def check(program: Program, text: str) -> None:
    """Raises Different, which says what differs, unless a program is exact."""
    case, (names, _) = case_of(program), TARGETS[program.target]
    try:
        scope = definitions(text, names(case, text))
    except Exception as error:
        raise Different(f"its passes cannot be defined: {error!r}") from error
    compare(program, case, scope)


def compare(program: Program, case: Case, scope: dict[str, Any]) -> None:
    """Raises Different unless passes that are defined have the results of a case."""
    _, run = TARGETS[program.target]
    try:
        results = Ranks(program.ranks).run(lambda rank: run(scope, case, rank))
    except Exception as error:
        raise Different(f"its passes do not run: {error!r}") from error
    for rank, got in enumerate(results):
        if len(got) != len(case.results):
            raise Different(f"its passes give {len(got)} results on rank {rank}")
        for name, x in zip(case.results, got, strict=True):
            if not case.right(name, rank, x):
                raise Different(f"its passes give another {name} on rank {rank}")
