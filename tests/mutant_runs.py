"""Runs of mutants: the check refuses one, or what its text computes is compared."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.check import ProgramError, check
from codegen.dry_run.case import Case, case_of
from codegen.dry_run.definitions import definitions, run
from codegen.dry_run.passes import run_torch, torch_names
from codegen.dry_run.ranks import Ranks
from codegen.ir import Program
from codegen.lower import lower
from codegen.lowering.keeping import kept
from codegen.passes import optimized
from codegen.programs import program_of
from codegen.torch.emission import written
from codegen.torch.operands import Form
from codegen.torch.printer import print_pass
from lowered_programs import workload
from planner.loops.expand import Expansion
from planner.loops.pieces import recovered_by_piece
from planner.planning import plan
from planner.plans import Plans
from repository import ROOT

PARTS = "merge", "sums", "visitors", "vocabulary/accumulation", "vocabulary/messages"


@dataclass(frozen=True)
class Printed:
    """A torch program of a forward and a backward pass, whose passes mutants take the place of."""

    passes: tuple[Program, ...]
    rows: tuple[Expansion, ...]
    form: Form
    names: dict[str, Any]
    case: Case

    def refusal(self, n: int, mutant: Program) -> str:
        """The reason for which a mutant of pass n is refused, "" for none."""
        try:
            held = check(mutant if n == 0 else self.passes[0], self.rows[0])
            check(mutant if n == 1 else self.passes[1], self.rows[1], held)
        except ProgramError as error:
            return str(error)
        return ""

    def difference(self, n: int, mutant: Program) -> str:
        """What else the text of a pass that a mutant prints computes, "" for nothing."""
        form = Form(self.form.free, self.form.apart, self.form.slices, dict(self.form.data))
        text = "\n".join(print_pass(mutant, form))
        text += "".join(f"\n{name} = {data}" for name, data in form.data.items())
        scope = run(ast.parse(text).body, self.names)
        try:
            results = Ranks(len(self.rows[0].coordinates)).run(
                lambda rank: run_torch(scope, self.case, rank)
            )
        except Exception as error:
            return f"does not run: {error!r}\n{text}"
        wrong = [
            f"{name} on rank {rank}"
            for rank, got in enumerate(results)
            for name, x in zip(self.case.results, got, strict=True)
            if not self.case.right(name, rank, x)
        ]
        return f"another {wrong[0]}\n{text}" if wrong else ""


def printed(name: str, ranks: int, mask: str) -> Printed:
    """The program of a schedule; PlanError where it is none of loops."""
    work = workload(ranks, mask)
    plans = Plans.of(tuple(plan(name, work, ranks, pass_=p) for p in ("forward", "backward")))
    program = program_of(plans, "torch")
    rows = tuple(recovered_by_piece(plan) for plan in program.plans)
    passes = tuple(optimized(lower(each, kept(rows))) for each in rows)
    text, case = written(program), case_of(program)
    sides = program.forward.partition
    form = Form(program.free, "def kv_positions" in text, len(sides.q.slices))
    for each in passes:
        print_pass(each, form)
    parts = [(Path(ROOT) / f"codegen/torch/parts/{part}.py").read_text() for part in PARTS]
    names = definitions("\n".join([*parts, text]), torch_names(case, text))
    return Printed(passes, rows, form, names | {"no_type_check": lambda x: x}, case)
