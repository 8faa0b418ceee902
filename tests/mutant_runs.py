"""Mutants that take the place of a program's pass: refused by the check, or printed and run."""

import ast
from dataclasses import dataclass, replace
from typing import Any

import stand_ins
from lowered_programs import workload
from repository import ROOT
from ringloom.codegen import emit, ir
from ringloom.codegen.check import ProgramError, check
from ringloom.codegen.jax.schedule import schedule as jax_schedule
from ringloom.codegen.programs import Program, Target, program_of
from ringloom.codegen.torch.schedule import schedule as torch_schedule
from ringloom.planner.errors import PlanError
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from stand_ins.case import Case, case_of
from stand_ins.definitions import defined, definitions

VOCABULARY = "vocabulary/accumulation", "vocabulary/messages"
PARTS: dict[Target, tuple[str, ...]] = {
    "torch": ("merge", "visitors", *VOCABULARY),
    "jax": ("masked", "tiles", *VOCABULARY),
}


@dataclass(frozen=True)
class Printed:
    """A program of a forward and a backward pass, and all that its passes can call."""

    program: Program
    names: dict[str, Any]
    case: Case

    def refusal(self, n: int, mutant: ir.Program) -> str:
        """The reason for which a mutant of pass n is refused, "" for none."""
        program = self._with(n, mutant)
        assert program.lowered
        assert program.passes
        held = dict[ir.Register, Any]()
        try:
            for one, rows in zip(program.lowered, program.passes, strict=True):
                held = check(one, rows, held)
        except ProgramError as error:
            return str(error)
        return ""

    def difference(self, n: int, mutant: ir.Program) -> str:
        """Returns a difference that the text of a mutant makes, "" for none or for no text."""
        try:
            text = self._text(self._with(n, mutant))
        except PlanError:  # the target cannot spell it
            return ""
        own = {name for node in ast.parse(text).body for name in defined(node)}
        names = {name: x for name, x in self.names.items() if name not in own}
        try:
            stand_ins.compare(self.program, self.case, definitions(text, names))
        except Exception as error:
            return f"{error!r} in\n{text}"
        return ""

    def _text(self, program: Program) -> str:
        if program.target == "torch":
            return torch_schedule(program)
        return jax_schedule(program).text

    def _with(self, n: int, mutant: ir.Program) -> Program:
        passes = [*(self.program.lowered or ())]
        passes[n] = mutant
        return replace(self.program, lowered=tuple(passes))


def printed(name: str, ranks: int, mask: str, target: Target = "torch") -> Printed:
    """The program of a schedule."""
    work = workload(ranks, mask)
    plans = Plans.of(tuple(plan(name, work, ranks, pass_=p) for p in ("forward", "backward")))
    program = program_of(plans, target)
    text, case = emit(plans, target), case_of(program)
    folder = ROOT / "codegen" / target / "parts"
    parts = "\n".join((folder / f"{part}.py").read_text() for part in PARTS[target])
    called = {name for node in ast.parse(parts).body for name in defined(node)}
    names = definitions(f"{parts}\n{text}", stand_ins.TARGETS[target][0](case, text), called)
    return Printed(program, names, case)
