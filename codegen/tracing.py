"""prepare_for_tracing(program, ...)   for targets that trace a program once for all ranks."""

from contextlib import suppress

from ringloom.codegen.check import ProgramError, check
from ringloom.codegen.ir import Program, Register
from ringloom.codegen.liveness import drop_unread
from ringloom.codegen.passes import Pass, drop_true_tests, merge_equal_sums, optimize, start_late
from ringloom.codegen.rolling import count_unrolled, send_from_all_ranks, split_loops
from ringloom.codegen.static import fix_slices
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Ints

PASSES: tuple[Pass, ...] = (
    merge_equal_sums,
    drop_true_tests,
    fix_slices,
    split_loops,
    start_late,
    drop_unread,
)


def prepare_for_tracing(program: Program, rows: Expansion, held: dict[Register, Ints]) -> Program:
    """Runs all passes; lets all ranks send if that rolls more loops and passes the check.

    `held` are the blocks that a backward pass starts with.
    """
    optimized = optimize(program, PASSES)
    for sums in (True, False):
        candidate = optimize(send_from_all_ranks(program, sums), PASSES)
        if count_unrolled(candidate) < count_unrolled(optimized):
            with suppress(ProgramError):
                check(candidate, rows, held)
                return candidate
    return optimized
