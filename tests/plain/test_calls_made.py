"""Torch programs make the kernel calls that are priced, whether they are loops or tables.

Keys that come in several messages are attended one by one in loops, whose rectangles say so.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ringloom.codegen import emit
from ringloom.codegen.programs import Program, program_of
from ringloom.codegen.torch.by_tables import tables_of
from ringloom.planner.ir import Plan
from ringloom.planner.loops import recover_expansion
from ringloom.planner.masks import Causal, Chunks, Documents, Full, Mask, Prefix, Window
from ringloom.planner.planning import plan
from ringloom.planner.schedules import SCHEDULES
from ringloom.planner.workload import Workload
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.hardware import hardware
from sampling import square
from stand_ins.case import case_of
from stand_ins.definitions import definitions
from stand_ins.passes import run_torch, torch_names
from stand_ins.ranks import HERE, Ranks

RANKS = 4
MOST = 4  # calls of a rank beyond those of its plan, as docs/hardware.md says
DIFFERENT = {  # by one or two calls on some ranks
    # Two pieces on a diagonal are priced as one causal call; a program makes one of each.
    ("mesh2d", "causal"),
    # The diagonal call of a piece shows the one key of the prefix that is priced as a call.
    ("balanced", "prefix:33"),
    # Flash attention takes a window as an argument and is priced; tables cut it into strips.
    *(("tree", "window:8,8"), ("multi-ring", "window:8,8"), ("multi-ring", "window:12")),
    *(("pass-q", "window:12"), ("broadcast", "window:12")),
}
MASKS: list[Mask] = [
    *(Full(), Causal(), Window(12), Window(8, 8), Prefix(33), Prefix(16), Chunks(10).up_to(64)),
    *(Documents((16, 35, 13)), Documents((50, 14)) & Causal()),
]


def priced(one: Plan, apart: bool) -> list[int]:
    """The kernel calls of each rank; `apart`: of the rectangles of its loops."""
    counts, rectangles = np.zeros(one.ranks, int), Costs(one, hardware("h100")).rectangles
    nodes = [node for _, node in one.attends()]
    if apart:
        each = recover_expansion(one).rectangles.values()
        nodes = [node for steps in each for node in steps.values()]
    for node in nodes:
        np.add.at(counts, node.rank, rectangles.of(node)[0].astype(int))
    return [int(count) for count in counts]


def run(program: Program, text: str) -> list[list[int]]:
    """The kernel calls of each rank in each pass, as a program of loops makes them."""
    case, made = case_of(program), Counter[tuple[str, int]]()
    names = torch_names(case, text) | {"counts_from_end": lambda *_: False}  # as cuDNN

    def counted(name: str) -> Any:
        def kernel(*arguments: Any) -> Any:
            made[name, HERE.rank] += 1
            return attend(*arguments)

        attend = names[name]
        return kernel

    passes = "attend", "attend_backward"
    scope = definitions(text, names | {name: counted(name) for name in passes})
    Ranks(program.ranks).run(lambda rank: run_torch(scope, case, rank))
    return [[made[name, rank] for rank in range(program.ranks)] for name in passes]


def tabled(program: Program) -> list[list[int]]:
    """The same of a program by tables."""
    tables = tables_of(program)
    return [
        [sum(len(calls) for step in rank for *_, calls in step[2]) for rank in tables[name]]
        for name in ("FORWARD", "BACKWARD")
    ]


@pytest.mark.parametrize(("schedule", "mask"), square([*SCHEDULES], MASKS, every=3), ids=str)
def test_torch_programs_make_the_kernel_calls_that_are_priced(schedule: str, mask: Mask) -> None:
    work = Workload(64, heads=4, kv_heads=4, head_dim=4, mask=mask)
    plans = plan(schedule, work, RANKS, pass_="both")
    program, text = program_of(plans, "torch"), emit(plans, "torch")
    by_tables = "(as tables" in " ".join(text.split())
    made = tabled(program) if by_tables else run(program, text)
    expected = [priced(one, not by_tables) for one in plans]
    if (schedule, str(mask)) in DIFFERENT:
        apart = np.abs(np.array(made) - expected)
        assert 0 < apart.max() <= 2
        return
    assert made == expected
    more = np.array(made) - [priced(one, False) for one in plans]
    assert (more >= 0).all()
    assert (more <= MOST).all()
