"""Each schedule's plans send the volumes that its file states, tensor by tensor."""

import ast
import inspect
import re
from collections import defaultdict
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ringloom as rl
from ringloom.planner.ir import TENSORS, Plan
from ringloom.planner.schedules import SCHEDULES

LAYOUTS = ("striped", "zigzag")
CASES: dict[str, list[tuple[str, int, dict[str, Any]]]] = {
    name: [(name, ranks, {}) for ranks in (1, 5, 8)] for name in SCHEDULES
}
CASES["allgather"] += [("allgather:keep=1:node=2", 8, {"keep": 1})]
CASES["broadcast"] += [("broadcast:side=q", ranks, {"side": "q"}) for ranks in (5, 8)]
CASES["mesh2d"] = [
    (f"mesh2d:columns={b}", a * b, {"a": a, "b": b}) for a, b in ((1, 5), (2, 4), (4, 2), (3, 3))
]
CASES["decode-a2a"] = [("decode-a2a", ranks, {"a": ranks, "b": 1}) for ranks in (5, 8)]
CASES["startrail"] = [
    (f"startrail:team={team}", ranks, {"C": team})
    for team, ranks in ((1, 5), (2, 4), (2, 8), (2, 12), (3, 9))
]
DEGREES = ((4, 2, 1), (2, 4, 1), (2, 1, 4), (2, 2, 2), (1, 2, 4), (8, 1, 1))
CASES["usp"] = [
    (f"usp:ulysses={u}:ring={r}:gather={g}:order={order}", 8, {"U": u, "R": r, "G": g, "keep": 1})
    for u, r, g in DEGREES
    for order in ("heads", "context")
]
CASES["ulysses"] = [("ulysses", ranks, {"U": ranks, "R": 1, "G": 1, "keep": 1}) for ranks in (5, 8)]
CASES["ulysses-gather"] = [
    (f"ulysses-gather:ulysses={u}:keep={keep}", 8, {"U": u, "R": 1, "G": 8 // u, "keep": keep})
    for u in (2, 4)
    for keep in (0, 1)
]
CASES["cache-ring"] += [("cache-ring", 5, {"kv_seq": 3})]


def stated(name: str) -> dict[str, dict[str, str]]:
    """Pass -> tensor -> the formula that the schedule's file states."""
    build = SCHEDULES[name].build
    path = Path(inspect.getfile(build.func if isinstance(build, partial) else build))
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    formulas = dict[str, dict[str, str]]()
    for pass_, said in re.findall(r"^(forward|backward) sends +(.*(?:\n {16}.*)*)", text, re.M):
        terms = " ".join(re.split(r" {3,}", line)[0] for line in said.split("\n" + " " * 16))
        formulas[pass_] = dict(term.strip().split(" ", 1) for term in terms.split(","))
    return formulas


def sent(plan: Plan) -> dict[str, float]:
    """Elements of each tensor that a rank sends on average, in those of its own queries."""
    work, total = plan.workload, defaultdict[str, int](int)
    for _, move in plan.moves():
        side = plan.partition.side(move.side)
        elements = int((side.sizes * side.head_counts)[move.flat()[0]].sum())
        for tensor in move.tensors:
            total[tensor] += elements * len(TENSORS[tensor].vectors)
    own = work.seq * work.heads
    return {t: float(Fraction(n, own)) for t, n in total.items() if n}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rank_sends_what_the_file_of_its_schedule_states(name: str) -> None:
    formulas = stated(name)
    assert formulas.keys() == {"forward", "backward"}
    for written, ranks, parameters in CASES[name]:
        tokens = 2 * ranks * max(1, ranks - 1) * max(1, ranks - 2)  # what every piece divides
        seq = ranks * tokens
        kv_seq = seq * parameters.get("kv_seq", 1)
        work = rl.Workload(seq, kv_seq, 4 * ranks, 2 * ranks, head_dim=1, mask=rl.Full())
        names = {"P": ranks, "f": 0.5, "h": (ranks - 1) // 2, "keep": 0, "side": "kv"}
        names |= {"seq": seq} | parameters | {"kv_seq": kv_seq}
        for pass_, terms in formulas.items():
            expected = {tensor: eval(formula, names.copy()) for tensor, formula in terms.items()}
            plan = rl.plan(written, work, ranks, pass_=pass_)
            assert sent(plan) == pytest.approx({t: x for t, x in expected.items() if x}), written
