"""Emission decides on data: no module of `codegen` looks into the text that it or another printed.

A rule is a function from a syntax tree to what it has to complain of, tried on the repository and
on lines that break it. Parts of programs are programs, and do as they like.
"""

import ast
from collections.abc import Callable, Iterator

import pytest

from repository import ROOT

READERS = {"codegen/frame/assemble.py", "codegen/frame/folding.py"}  # of parts, by syntax trees
LOOKS = {
    *("replace", "partition", "rpartition", "split", "rsplit", "splitlines", "find", "rfind"),
    *("startswith", "endswith", "removeprefix", "removesuffix", "rindex"),
}
STRINGS = {"join", "format", "lstrip", "lower", "rstrip", "strip", "upper", "unparse"}

Rule = Callable[[ast.AST], Iterator[str]]


def regular_expressions(tree: ast.AST) -> Iterator[str]:
    """Imports of `re`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"{node.lineno} imports re" for name in names if name.name == "re")
            case ast.ImportFrom(module="re"):
                yield f"{node.lineno} imports from re"


def looks_into_texts(tree: ast.AST) -> Iterator[str]:
    """Calls of methods that take a text apart; tuples have `count`, too, of what is no text."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="count"), args=[given]):
                if is_text(given, set()):
                    yield f"{node.lineno} calls count"
            case ast.Call(func=ast.Attribute(attr=name)) if name in LOOKS:
                yield f"{node.lineno} calls {name}"


def members_of_texts(tree: ast.AST) -> Iterator[str]:
    """Comparisons with `in` whose right side is a text, as far as its function says so."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.Module):
            texts = {name for node in own(scope) for name in named_texts(node)}
            for node in own(scope):
                match node:
                    case ast.Compare(_, ops, sides):
                        pairs = zip(ops, sides, strict=True)
                        looked_at = [x for op, x in pairs if isinstance(op, ast.In | ast.NotIn)]
                        if any(is_text(x, texts) for x in looked_at):
                            yield f"{node.lineno} looks for a member of a text"


def own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef):
            yield from own(child)


def named_texts(node: ast.AST) -> Iterator[str]:
    """The names that a node says are texts."""
    match node:
        case ast.arg(arg=name, annotation=ast.Name(id="str")):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="str")):
            yield name
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_text(value, set()):
            yield name
        case ast.NamedExpr(target=ast.Name(id=name), value=value) if is_text(value, set()):
            yield name


def is_text(node: ast.expr, texts: set[str]) -> bool:
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.Name(id=name):
            return name in texts
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in STRINGS
        case ast.Call(func=ast.Name(id=name)):
            return name in {"str", "repr"}
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_text(left, texts) or is_text(right, texts)
    return False


RULES: list[Rule] = [regular_expressions, looks_into_texts, members_of_texts]


def complaints(rule: Rule) -> list[str]:
    paths = sorted((ROOT / "codegen").rglob("*.py"))
    names = {p.relative_to(ROOT).as_posix(): p for p in paths if "parts" not in p.parts}
    assert len(names) > 30, "a check that finds nothing must not pass"
    return [
        f"{name}:{said}"
        for name, path in names.items()
        if name not in READERS
        for said in rule(ast.parse(path.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize("rule", RULES)
def test_codegen_reads_no_text(rule: Rule) -> None:
    assert complaints(rule) == []


PLANTED: list[tuple[Rule, str]] = [
    (regular_expressions, "import os, re"),
    (regular_expressions, "def f():\n    from re import sub"),
    (looks_into_texts, "x = line.partition('=')[0]"),
    (looks_into_texts, "x = line.count('(') - line.count(')')"),
    (looks_into_texts, "def f(line):\n    return [w for w in line.split() if w.startswith('kv')]"),
    (members_of_texts, "def f(passes: str) -> bool:\n    return 'pieces(' in passes"),
    (members_of_texts, "def f(lines):\n    return 'place(' in ''.join(lines)"),
    (members_of_texts, "def f(x):\n    text = f'{x}!'\n    return x not in text"),
    (members_of_texts, "if (whole := ' '.join(words)) and 'a' in whole: pass"),
]


@pytest.mark.parametrize(("rule", "text"), PLANTED)
def test_a_planted_look_is_found(rule: Rule, text: str) -> None:
    assert [*rule(ast.parse(text))]


@pytest.mark.parametrize("rule", RULES)
def test_what_looks_into_data_alone_is_fine(rule: Rule) -> None:
    text = "def f(names: set[str], n: int, op: Op):\n    return n in names or replace(op, n=1)\n"
    assert [*rule(ast.parse(text))] == []
