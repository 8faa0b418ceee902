"""Names of plans put no code into programs: they are in the docstring and in PLAN alone."""

import ast
from dataclasses import replace

import pytest

import ringloom as rl
from ringloom.planner.plans import Plans

WORK = rl.Workload(seq=16, heads=2, head_dim=4)
NAMES = [
    *('"""\nimport os\n"""', "'''\nimport os\n'''", '"; import os; "', "\\", '"', "'", "\\'''"),
    *("#\nimport os", "\r\nimport os", "\x0cimport os", "\u2028import os", "{SEQ}", "%s", "$x"),
    *("\N{RIGHT-TO-LEFT OVERRIDE}", "\0", "\ud800", "a" * 5000, ""),
]


def code(plans: Plans, target: str) -> tuple[str, str]:
    """Returns a program without its docstring and the name in PLAN, and that name."""
    tree = ast.parse(rl.emit(plans, target))
    first, *rest = tree.body
    assert isinstance(first, ast.Expr)
    assert isinstance(first.value, ast.Constant)
    name = ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "name":
                    assert isinstance(value, ast.Constant)
                    name, value.value = value.value, "name"
    return "\n".join(map(ast.dump, rest)), name


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_the_name_of_a_plan_changes_no_statement_of_a_program(target: str) -> None:
    pair = rl.plan("ring", WORK, 2, pass_="both")
    plain, _ = code(pair, target)
    refused = 0
    for name in NAMES:
        try:
            program, called = code(Plans(*(replace(plan, name=name) for plan in pair)), target)
        except (rl.RingloomError, UnicodeEncodeError):
            refused += 1
            continue
        assert program == plain
        assert {*called} <= {*name}
    assert refused < len(NAMES) / 2
