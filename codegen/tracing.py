"""traced(program, ...)   a program as targets want it that trace it once for all ranks."""

from contextlib import suppress

from ringloom.codegen.check import ProgramError, check
from ringloom.codegen.ir import Program, Register
from ringloom.codegen.liveness import unread
from ringloom.codegen.passes import Pass, alike, asked, late, optimized
from ringloom.codegen.rolling import everyone, rolled, unrolled
from ringloom.codegen.static import static
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Ints

PASSES: tuple[Pass, ...] = (alike, asked, static, rolled, late, unread)


def traced(program: Program, rows: Expansion, held: dict[Register, Ints]) -> Program:
    """The program after all passes; loops are rolled where all ranks may send, as the check says.

    `held` are the blocks that a backward pass begins with.
    """
    best = optimized(program, PASSES)
    for sums in (True, False):
        other = optimized(everyone(program, sums), PASSES)
        if unrolled(other) < unrolled(best):
            with suppress(ProgramError):
                check(other, rows, held)
                return other
    return best
