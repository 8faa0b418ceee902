"""definitions(text, names)   what the passes of a program call, defined over other names."""

import __future__

import ast
from collections.abc import Iterator, Set
from functools import cache
from typing import Any

FRAMEWORKS = {"torch", "jax", "ringloom"}
PASSES = {"forward", "backward", "forward_with_sinks", "backward_with_sinks"}
POSITIONS = {"positions", "kv_positions"}


def definitions(text: str, names: dict[str, Any], wanted: Set[str] = frozenset()) -> dict[str, Any]:
    """The definitions that the passes need, over `names`, which stand for some of them.

    `wanted` are further definitions. Imports of frameworks are left out: `names` has what stands
    for those, too.
    """
    nodes = [(node, {*defined(node)} - names.keys()) for node in ast.parse(text).body]
    needed, chosen = PASSES | POSITIONS | wanted, set[int]()
    while new := [n for n, (_, own) in enumerate(nodes) if own & needed and n not in chosen]:
        chosen |= {*new}
        needed |= {name for n in new for name in read(nodes[n][0])}
    flags, scope = __future__.annotations.compiler_flag, dict(names)
    body = [node for n, (node, _) in enumerate(nodes) if n in chosen]
    exec(compile(ast.Module(body, []), "<program>", "exec", flags), scope)
    for name in POSITIONS & scope.keys() - names.keys():  # which each rank asks of all
        scope[name] = cache(scope[name])
    return scope


def read(node: ast.stmt) -> set[str]:
    """The names that a statement of a module reads, but for variables of its own."""
    names = [x for x in ast.walk(node) if isinstance(x, ast.Name)]
    own = {x.id for x in names if isinstance(x.ctx, ast.Store)}
    return {x.id for x in names} - own


def defined(node: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement of a module defines."""
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            yield node.name
        case ast.ImportFrom(module=str(source)):
            if source.split(".")[0] not in FRAMEWORKS:
                yield from (x.asname or x.name for x in node.names)
        case ast.Import():
            yield from (
                x.asname or x.name for x in node.names if x.name.split(".")[0] not in FRAMEWORKS
            )
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            for x in ast.walk(node):
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
                    yield x.id
