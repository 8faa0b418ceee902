"""assemble(docstring, texts, keep, choices)   builds one file from printed texts and parts.

    Part("torch/parts/kernels")           codegen/torch/parts/kernels.py, read and not imported
    assemble(docstring, [constants, layout, schedule, Part(...), ...], keep=("attention", "main"))

Code of a part that only some programs need is under an `if` of capital names, the choices of the
program: `if WINDOWS:` ... `else:` ... `ringloom.codegen.frame.folding` keeps one branch.

Every text is a module: imports, then definitions (functions, classes, assignments). Texts come in
the order of the program. The file gets the definitions named in `keep` and all that they use,
transitively and across texts; also statements registered on them (`@attention_op.register_fake`,
`local.defvjp(...)`) and `if __name__ == "__main__"`. Imports that the file uses are merged;
printed texts contain no imports.

The file does not get:
* the docstrings of texts;
* stand-ins for constants in parts: `CAPITALS = value` above the first function or class;
* imports of `codegen.*` in parts: the program contains the imported definitions.
A constant of the part itself must follow its first definition, or have a lower-case name.

A comment directly above a definition belongs to it. A separate comment `# ---- Title` begins a
section, and is kept if a definition below it is; other comments between definitions are dropped.
Raises LookupError for a name that two texts define, or that is used but not defined.
"""

import ast
import builtins
import symtable
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType

from ringloom.codegen.frame.folding import fold_branches
from ringloom.codegen.frame.formatting import format_source
from ringloom.codegen.frame.imports import Import, print_imports

CODEGEN = Path(__file__).parents[1]
KNOWN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
HEADING = "# ---- "
IMPORTS = """\
from collections.abc import Iterable
from functools import cache, partial
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from torch import Tensor
"""  # for printed texts
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Piece:
    """A top-level statement with the comments above it, and the names that it defines and uses.

    `owner` is the name that the statement is registered on, or "". `block` is True for functions,
    classes and `if`. `heading` is the title of its section, `gap` the number of blank lines above.
    """

    text: str
    names: frozenset[str]
    uses: frozenset[str]
    owner: str
    block: bool
    heading: str
    gap: int


@dataclass(frozen=True)
class Part:
    """A module under codegen/ whose definitions are copied into programs: "torch/parts/kernels"."""

    name: str

    def text(self, choices: Mapping[str, bool]) -> str:
        """Returns the source for a program with some choices."""
        return fold_branches((CODEGEN / f"{self.name}.py").read_text(encoding="utf-8"), choices)


PACKED = Part("frame/packed")  # must precede the first data


def parts_of(target: str, *names: str) -> list[Part]:
    """Returns the parts of a target with some names."""
    return [Part(f"{target}/parts/{name}") for name in names]


def assemble(
    docstring: str,
    texts: Sequence[str | Part],
    keep: Sequence[str],
    choices: Mapping[str, bool] = MappingProxyType({}),
) -> str:
    """Returns the program: docstring, imports, and the definitions that `keep` needs, in order.

    `choices`: those of parts, by name.
    """
    modules = [
        split_module(x.text(choices), stand_ins=True) if isinstance(x, Part) else split_module(x)
        for x in (IMPORTS, *texts)
    ]
    available = {x for imports, _ in modules for x in imports}
    pieces = [piece for _, pieces in modules for piece in pieces]
    selected = select_pieces(pieces, {x.name for x in available}, keep)
    uses = {name for p in selected for name in p.uses}
    imports = {x for x in available if x.name in uses}
    opening = "\n\n".join(filter(None, [docstring.strip(), print_imports(imports)]))
    return format_source(f"{opening}\n{join_pieces([p for p in pieces if p in selected])}")


def select_pieces(pieces: Sequence[Piece], imported: Set[str], keep: Sequence[str]) -> set[Piece]:
    """Returns the pieces that `keep` names, and those that they use or that register on them."""
    definitions = dict[str, Piece]()
    for piece in pieces:
        for name in piece.names:
            if name in definitions:
                texts = f"{definitions[name].text}\n{piece.text}"
                raise LookupError(f"{name} is defined twice:\n{texts}")
            definitions[name] = piece
    selected, pending = set[Piece](), [*keep]
    owners = imported | definitions.keys() | KNOWN
    if orphans := [p.text for p in pieces if not p.names and p.owner not in owners]:
        raise LookupError(f"registered on an undefined name: {orphans[0]}")
    while pending:
        names = {name for name in pending if name not in KNOWN and name not in imported}
        if undefined := sorted(names - definitions.keys()):
            raise LookupError(f"undefined names: {', '.join(undefined)}")
        new = {definitions[name] for name in names} - selected
        selected |= new
        owned = {name for piece in selected for name in piece.names} | {"__name__"}
        new |= {p for p in pieces if p.owner and p.owner in owned and p not in selected}
        selected |= new
        pending = [name for piece in new for name in piece.uses]
    return selected


def join_pieces(pieces: Sequence[Piece]) -> str:
    """Joins pieces under their headings, with the blank lines that ruff puts between them."""
    lines, heading, after_block = list[str](), "", False
    for number, piece in enumerate(pieces):
        gap = 2 if piece.block or after_block else piece.gap if number else 1
        if piece.heading not in ("", heading):
            heading = piece.heading
            lines += ["", "", heading]
            gap = 2 if piece.block else 1
        lines += [""] * gap + [piece.text]
        after_block = piece.block
    return "\n".join(lines) + "\n"


# ---- splitting a text


@lru_cache(maxsize=256)  # without it, a second program in a process takes 1.4 times as long
def split_module(
    text: str, stand_ins: bool = False
) -> tuple[tuple[Import, ...], tuple[Piece, ...]]:
    """Returns the imports and top-level statements of a text that a file can get.

    `stand_ins`: constants above the first definition are stand-ins.
    """
    lines, imports, pieces = text.splitlines(), list[Import](), list[Piece]()
    heading, end, last = "", 0, 0
    for node in ast.parse(text).body:
        first = min(n.lineno for n in (node, *getattr(node, "decorator_list", ()))) - 1
        while first > end and _is_comment(lines[first - 1]):
            first -= 1
        between, follows = lines[end:first], last == end
        heading = _heading(between) or heading
        stand_ins = stand_ins and not isinstance(node, DEFINITIONS)
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += _imports(node)
        elif not _is_dropped(node, stand_ins):
            gap = int(bool(pieces) and (bool(between) or not follows))
            pieces.append(_piece(node, "\n".join(lines[first:end]), heading, gap))
            last = end
    return tuple(imports), tuple(pieces)


def _is_comment(line: str) -> bool:
    """Returns True for comments that do not begin a section."""
    return line[:1] == "#" and line[: len(HEADING)] != HEADING


def _heading(between: list[str]) -> str:
    """Returns the last heading between two definitions, with the comments directly below it."""
    starts = [n for n, line in enumerate(between) if line[: len(HEADING)] == HEADING]
    if not starts:
        return ""
    first, *others = between[starts[-1] :]
    return "\n".join([first, *takewhile(_is_comment, others)])


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    source = getattr(node, "module", None) or ""
    if source == "__future__":
        raise LookupError("a part cannot import from __future__, as programs do not")
    for alias in node.names:
        package, *_ = (source or alias.name).split(".")
        if package != "ringloom":
            yield Import(source, alias.name, alias.asname or "", package)


def _is_dropped(node: ast.stmt, stand_ins: bool) -> bool:
    """Returns True for docstrings and stand-ins for constants."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign() | ast.AnnAssign():
            return stand_ins and all(map(str.isupper, _defined_names(node)))
    return False


def _piece(node: ast.stmt, text: str, heading: str, gap: int) -> Piece:
    names = frozenset(_defined_names(node))
    block = isinstance(node, (*DEFINITIONS, ast.If))
    return Piece(text, names, used_names(text) - names, _owner(node), block, heading, gap)


def _defined_names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            trees = [n for target in targets for n in ast.walk(target)]
            return {n.id for n in trees if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _owner(node: ast.stmt) -> str:
    """Returns the name that a statement registers on, "__name__" for the last lines, or ""."""
    match node:
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            return next((name for d in decorators if (name := _root_name(d))), "")
        case ast.Expr(value=value) if name := _root_name(value):
            return name
        case ast.If(
            test=ast.Compare(left=ast.Name(id="__name__"))
            | ast.BoolOp(values=[ast.Compare(left=ast.Name(id="__name__")), *_])
        ):
            return "__name__"
        case ast.Assign() | ast.AnnAssign():
            return ""
    raise LookupError(f"line {node.lineno} neither defines a name nor registers a function")


def _root_name(node: ast.expr) -> str:
    """Returns `name` for name.attribute or a call of it, otherwise ""."""
    if isinstance(node, ast.Call):
        return _root_name(node.func)
    if isinstance(node, ast.Attribute):
        value = node.value
        return value.id if isinstance(value, ast.Name) else _root_name(value)
    return ""


def used_names(text: str) -> frozenset[str]:
    """Returns the global names that a statement refers to, including its nested functions."""
    top = symtable.symtable(text, "<part>", "exec")
    outer = (s for s in top.get_symbols() if not s.is_assigned())  # not those of comprehensions
    names = {s.get_name() for s in outer if s.is_referenced()}
    tables = [*top.get_children()]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {s.get_name() for s in table.get_symbols() if s.is_global()}
    return frozenset(names)
