"""assemble(docstring, texts, keep, choices)   one file out of texts: printed ones and parts.

    Part("torch/parts/kernels")           codegen/torch/parts/kernels.py, read and not imported
    assemble(docstring, [constants, layout, schedule, Part(...), ...], keep=("attention", "main"))

What of a part is there for some programs only stands under an `if` of capital names, the choices
of the program, which `ringloom.codegen.frame.folding` makes: `if WINDOWS:` ... `else:` ...

Every text is a module: imports, then definitions (functions, classes, assignments). Texts come in
the order of the program. Kept are the definitions named in `keep` and what these use, transitively
and across texts; also what is registered on something kept (`@attention_op.register_fake`,
`local.defvjp(...)`) and `if __name__ == "__main__"`. Of all imports those are merged that the kept
definitions use; texts that are printed name what they use, and import nothing.

Left out of a text:
* its docstring;
* of parts, stand-ins for constants: `CAPITALS = value` above the first function or class;
* imports of `codegen.*`: a part imports from other parts what the program has them define.
A constant of the part itself must follow its first definition, or have a lower-case name.

A comment directly above a definition belongs to it. A comment `# ---- Title` that stands alone
begins a section, and is kept if anything below it is; other comments between definitions are not.
Raises LookupError for a name that two texts define, or that is used and not defined anywhere.
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

from ringloom.codegen.frame.folding import folded
from ringloom.codegen.frame.formatting import formatted
from ringloom.codegen.frame.imports import Import, written

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
"""  # of names that printed texts use
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Piece:
    """A top-level statement with the comments above it: what it defines, and what it uses.

    `owner` is the name it is registered on, or "". `heading` is the section it belongs to, and
    `gap` the blank lines above it.
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
    """A real module under codegen/ whose definitions go into programs; "torch/parts/kernels"."""

    name: str

    def text(self, choices: Mapping[str, bool]) -> str:
        """Its source for a program that makes these choices."""
        return folded((CODEGEN / f"{self.name}.py").read_text(encoding="utf-8"), choices)


PACKED = Part("frame/packed")  # before the first data


def parts_of(target: str, *names: str) -> list[Part]:
    """Parts of a target by their names."""
    return [Part(f"{target}/parts/{name}") for name in names]


def assemble(
    docstring: str,
    texts: Sequence[str | Part],
    keep: Sequence[str],
    choices: Mapping[str, bool] = MappingProxyType({}),
) -> str:
    """The program: docstring, imports, and what `keep` needs of the texts, in their order.

    `choices`: those of parts, by name.
    """
    modules = [
        module(x.text(choices), above=True) if isinstance(x, Part) else module(x)
        for x in (IMPORTS, *texts)
    ]
    given = {line for imports, _ in modules for line in imports}
    pieces = [piece for _, pieces in modules for piece in pieces]
    chosen = needed(pieces, {line.name for line in given}, keep)
    uses = {name for p in chosen for name in p.uses}
    imports = {line for line in given if line.name in uses}
    opening = "\n\n".join(filter(None, [docstring.strip(), written(imports)]))
    return formatted(f"{opening}\n{joined([p for p in pieces if p in chosen])}")


def needed(pieces: Sequence[Piece], given: Set[str], keep: Sequence[str]) -> set[Piece]:
    """The pieces that `keep` names, and those that they use or that are registered on them."""
    makers = dict[str, Piece]()
    for piece in pieces:
        for name in piece.names:
            if name in makers:
                raise LookupError(f"{name} is defined twice:\n{makers[name].text}\n{piece.text}")
            makers[name] = piece
    chosen, waiting = set[Piece](), [*keep]
    everything = given | makers.keys()
    if lost := [p.text for p in pieces if not p.names and p.owner not in everything | KNOWN]:
        raise LookupError(f"registered on nothing that is defined: {lost[0]}")
    while waiting:
        wanted = {name for name in waiting if name not in KNOWN and name not in given}
        if unknown := sorted(wanted - makers.keys()):
            raise LookupError(f"nothing defines {', '.join(unknown)}")
        new = {makers[name] for name in wanted} - chosen
        chosen |= new
        owned = {name for piece in chosen for name in piece.names} | {"__name__"}
        new |= {p for p in pieces if p.owner and p.owner in owned and p not in chosen}
        chosen |= new
        waiting = [name for piece in new for name in piece.uses]
    return chosen


def joined(pieces: Sequence[Piece]) -> str:
    """Pieces under their headings, blank lines between them as ruff has them."""
    lines, heading, before = list[str](), "", False
    for number, piece in enumerate(pieces):  # printed texts go on where others end
        gap = 2 if piece.block or before else piece.gap if number else 1
        if piece.heading not in ("", heading):
            heading = piece.heading
            lines += ["", "", heading]
            gap = 2 if piece.block else 1
        lines += [""] * gap + [piece.text]
        before = piece.block
    return "\n".join(lines) + "\n"


# ---- taking a text apart


@lru_cache(maxsize=256)  # a second program in a process takes 1.4 times as long without
def module(text: str, above: bool = False) -> tuple[tuple[Import, ...], tuple[Piece, ...]]:
    """The imports and the top-level statements of a text, without what assembly leaves out.

    `above`: stand-ins for constants may stand above its first definition.
    """
    lines, imports, pieces = text.splitlines(), list[Import](), list[Piece]()
    heading, end, last = "", 0, 0
    for node in ast.parse(text).body:
        first = min(n.lineno for n in (node, *getattr(node, "decorator_list", ()))) - 1
        while first > end and _is_comment(lines[first - 1]):
            first -= 1
        between, follows = lines[end:first], last == end
        heading = _heading(between) or heading
        above = above and not isinstance(node, DEFINITIONS)
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += _imports(node)
        elif not _left_out(node, above):
            gap = int(bool(pieces) and (bool(between) or not follows))
            pieces.append(_piece(node, "\n".join(lines[first:end]), heading, gap))
            last = end
    return tuple(imports), tuple(pieces)


def _is_comment(line: str) -> bool:
    """True for comments that begin no section."""
    return line[:1] == "#" and line[: len(HEADING)] != HEADING


def _heading(between: list[str]) -> str:
    """The last heading between two definitions, with the comments that go on with it."""
    starts = [n for n, line in enumerate(between) if line[: len(HEADING)] == HEADING]
    if not starts:
        return ""
    first, *others = between[starts[-1] :]
    return "\n".join([first, *takewhile(_is_comment, others)])


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    source = getattr(node, "module", None) or ""
    if source == "__future__":
        raise LookupError("a part must not import from __future__: programs do not")
    for alias in node.names:
        package, *_ = (source or alias.name).split(".")
        if package != "ringloom":
            yield Import(source, alias.name, alias.asname or "", package)


def _left_out(node: ast.stmt, above: bool) -> bool:
    """True for docstrings and stand-ins for constants."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign() | ast.AnnAssign():
            return above and all(map(str.isupper, _defined(node)))
    return False


def _piece(node: ast.stmt, text: str, heading: str, gap: int) -> Piece:
    names = frozenset(_defined(node))
    block = isinstance(node, (*DEFINITIONS, ast.If))
    return Piece(text, names, used(text) - names, _owner(node), block, heading, gap)


def _defined(node: ast.stmt) -> set[str]:
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
    """Returns the name that an unused statement registers on; "__name__" for the last lines."""
    match node:
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            return next((name for d in decorators if (name := _root(d))), "")
        case ast.Expr(value=value) if name := _root(value):
            return name
        case ast.If(
            test=ast.Compare(left=ast.Name(id="__name__"))
            | ast.BoolOp(values=[ast.Compare(left=ast.Name(id="__name__")), *_])
        ):
            return "__name__"
        case ast.Assign() | ast.AnnAssign():
            return ""
    raise LookupError(f"line {node.lineno}: neither a definition nor registered on one")


def _root(node: ast.expr) -> str:
    """`name` of name.attribute, called or not; "" of anything else."""
    if isinstance(node, ast.Call):
        return _root(node.func)
    if isinstance(node, ast.Attribute):
        value = node.value
        return value.id if isinstance(value, ast.Name) else _root(value)
    return ""


def used(text: str) -> frozenset[str]:
    """The global names that a statement refers to, those of its nested functions included."""
    top = symtable.symtable(text, "<part>", "exec")
    outer = (s for s in top.get_symbols() if not s.is_assigned())  # as names of comprehensions are
    names = {s.get_name() for s in outer if s.is_referenced()}
    tables = [*top.get_children()]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {s.get_name() for s in table.get_symbols() if s.is_global()}
    return frozenset(names)
