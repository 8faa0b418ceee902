"""Runs a printed program without its framework, before anyone else does.

    check(program, text)    PlanError unless the text computes what its plans say

Every rank runs the printed passes (`ranks`), with numpy in place of torch or JAX
(`torch_in_numpy`, `jax_in_numpy`) and with an attention that takes no time (`attention`) in place
of the kernels. Output and gradients are compared with that attention of the whole sequence, whose
pairs come from the mask. So a printer that loses a message, or reads a name too late, ends in a
program by tables instead of a wrong one.

Programs that take any length run at a short one. Larger ones than `LARGEST` are not run: they
would take many seconds.
"""

from codegen.dry_run.case import case_of, sizes
from codegen.dry_run.definitions import definitions
from codegen.dry_run.passes import jax_names, run_jax, run_torch, torch_names
from codegen.dry_run.ranks import Ranks
from codegen.programs import Program
from planner.errors import PlanError

LARGEST = 10_000, 2**20  # rectangles of both passes, and elements of all tokens and heads
TARGETS = {"torch": (torch_names, run_torch), "jax": (jax_names, run_jax)}


def check(program: Program, text: str) -> None:
    """Raises PlanError, which says what differs, unless the loops of a program are exact."""
    rectangles = sum(len(a) for plan in program.plans for _, a in plan.attends())
    rectangles = max(rectangles, program.ranks**2)  # as one may take a kernel call a rank
    heads, seq, kv_heads, kv_seq = sizes(program)
    if rectangles > LARGEST[0] or heads * seq + kv_heads * kv_seq > LARGEST[1]:
        return
    case, (names, run) = case_of(program), TARGETS[program.target]
    try:
        scope = definitions(text, names(case, text))
        results = Ranks(program.ranks).run(lambda rank: run(scope, case, rank))
    except Exception as error:
        raise PlanError(f"in a test its loops do not run: {error!r}") from error
    for rank, got in enumerate(results):
        if len(got) != len(case.results):
            raise PlanError(f"in a test its loops give {len(got)} results on rank {rank}")
        for name, x in zip(case.results, got, strict=True):
            if not case.right(name, rank, x):
                raise PlanError(f"in a test its loops give another {name} on rank {rank}")
