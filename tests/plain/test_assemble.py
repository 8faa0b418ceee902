"""Assembly: what a program needs of its texts, and nothing else, as ruff would format it."""

from pathlib import Path

import pytest

from ringloom.codegen.frame import assemble as assembly
from ringloom.codegen.frame.assemble import Part, assemble, used_names
from ringloom.codegen.frame.folding import fold_branches
from ringloom.codegen.frame.imports import Import, print_imports
from ruff_check import assert_as_ruff_has_it

PART = '''"""A part, which tests may import."""

import math
import os
from collections.abc import Iterator

import torch

from ringloom.codegen.torch.parts.other import wide

SCALE = 1.0

# ---- Kernels: what the platform has.

aten = torch.ops.aten


def attend(q):
    """Uses what it is given."""
    return aten.attend(wide(q), LIMIT) * SCALE


# Tiles of more rows do not fit.
LIMIT = 512


def unused():
    return os.getcwd()


@attend.register
def _shape(q):
    return math.prod(q.shape)


def later(x) -> Iterator[int]:
    yield x


attend.setup(later)

if __name__ == "__main__":
    attend(1)
'''


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setattr(assembly, "CODEGEN", tmp_path)
    (tmp_path / "kernels.py").write_text(PART)
    return Part("kernels")


CHOICES = '''"""A part with choices, for ×."""

if WINDOWS:  # said of both
    # Of windows.
    from math import inf
else:

    def inf():
        return 1


def attend(q, k=1):
    x = "×" if WINDOWS else (q, k)
    y = (q + k) if WINDOWS and q else k if not WINDOWS else q
    if q:
        x = 1
        # the end of a branch
    elif WINDOWS:
        # Rows at a time.
        x = """
    a"""

    elif FREE and not q:  # free
        x = 3
    else:
        x = 4
    if not WINDOWS:
        return 1
    elif k and (q or FREE):
        return 2
    for i in q:
        if FREE or (WINDOWS and i):
            if i:
                return i  # deep
        else:
            return 5
    if FREE and WINDOWS:
        x += 1
    return x
'''
BOTH = '''"""A part with choices, for ×."""

# Of windows.
from math import inf


def attend(q, k=1):
    x = "×"
    y = (q + k) if q else q
    if q:
        x = 1
        # the end of a branch
    else:
        # Rows at a time.
        x = """
    a"""

    if k:
        return 2
    for i in q:
        if i:
            return i  # deep
    x += 1
    return x
'''
NEITHER = '''"""A part with choices, for ×."""


def inf():
    return 1


def attend(q, k=1):
    x = (q, k)
    y = k
    if q:
        x = 1
        # the end of a branch
    else:
        x = 4
    return 1
    for i in q:
        return 5
    return x
'''


@pytest.mark.parametrize(("windows", "free", "left"), [(True, True, BOTH), (False, False, NEITHER)])
def test_choices_leave_the_branch_that_a_program_has(windows: bool, free: bool, left: str) -> None:
    text = fold_branches(CHOICES, {"WINDOWS": windows, "FREE": free})
    assert text == left


GIVEN = "RANKS = 8\nSCALE = 0.5\n"
WIDE = '"""Types."""\n\n\ndef wide(x):\n    return x\n'


def test_a_program_holds_what_is_used_and_no_more(part: Part, tmp_path: Path) -> None:
    program = assemble('"""A program."""', [GIVEN, part, WIDE], ["attend"])
    assert (
        program
        == '''"""A program."""

import math
from collections.abc import Iterator

import torch

SCALE = 0.5


# ---- Kernels: what the platform has.

aten = torch.ops.aten


def attend(q):
    """Uses what it is given."""
    return aten.attend(wide(q), LIMIT) * SCALE


# Tiles of more rows do not fit.
LIMIT = 512


@attend.register
def _shape(q):
    return math.prod(q.shape)


def later(x) -> Iterator[int]:
    yield x


attend.setup(later)


if __name__ == "__main__":
    attend(1)


def wide(x):
    return x
'''
    )
    folder = tmp_path / "emitted"
    folder.mkdir()
    (folder / "program.py").write_text(program)
    assert_as_ruff_has_it(folder)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["SCALE = 1\n"], "undefined names: wide"),
        ([WIDE], "undefined names: SCALE"),
        ([GIVEN, WIDE, WIDE + "\n\nx = 1\n"], "wide is defined twice"),
        ([GIVEN, WIDE, "nobody.knows(1)\n"], "registered on an undefined name"),
        ([GIVEN, WIDE, "for x in y:\n    pass\n"], "line 1 neither"),
        ([GIVEN, "from __future__ import annotations\n"], "__future__"),
    ],
)
def test_what_does_not_fit_together_is_refused(part: Part, texts: list[str], said: str) -> None:
    with pytest.raises(LookupError, match=said):
        assemble('"""A program."""', [part, *texts], ["attend"])


def test_stand_ins_of_parts_give_way_and_constants_of_printed_texts_stay(part: Part) -> None:
    program = assemble('"""A program."""', [part, WIDE, "SCALE = 2.0\n"], ["attend", "SCALE"])
    assert "SCALE = 1.0" not in program
    assert "SCALE = 2.0" in program


def test_names_inside_of_functions_are_not_those_of_the_program() -> None:
    assert used_names("def f(a, b=c):\n    d = e(a)\n    return [g for g in d if h(g)]\n") == {
        *("f", "c", "e", "h")
    } - {"f"}


def test_imports_come_in_the_order_of_ruff(tmp_path: Path) -> None:
    names = [
        *(("", "torch", ""), ("", "numpy", "np"), ("jax", "lax", ""), ("", "jax.numpy", "jnp")),
        *(("jax.sharding", "Mesh", ""), ("jax.sharding", "PartitionSpec", "Spec"), ("", "os", "")),
        *(("functools", "partial", ""), ("collections.abc", "Iterable", "")),
        *(("jax.sharding", "AxisType", "Axis"), ("torch", "Tensor", ""), ("", "jax", "")),
        ("typing", "Any", ""),
        ("math", "pi", ""),
    ]
    imports = [Import(*name, (name[0] or name[1]).split(".")[0]) for name in names]
    uses = ", ".join(sorted({line.name for line in imports}))
    (tmp_path / "imports.py").write_text(f"{print_imports(imports)}\n\nALL = ({uses})\n")
    assert_as_ruff_has_it(tmp_path)
