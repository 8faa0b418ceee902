"""Finds assertions that cannot fail: evaluates each again, one value in it changed by a tenth.

assert a == b  -->  assert a == b
                    _again(line, sites, False, lambda: _value(0, a) == _value(1, b))
"""

import ast
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import sympy

READ = ast.Attribute, ast.BinOp, ast.Call, ast.Name, ast.Subscript
ENTRIES = list, tuple, set, frozenset
NOTHING = 0, None  # other values, in assertions that tell a reader what is wrong
WAYS = 2 + len(NOTHING)  # in which a value is changed, at most


class Assertions(ast.NodeTransformer):
    """Tries the assertions of the programs that it compiles, while they run with its `names`."""

    def __init__(self) -> None:
        self.lines, self.failed = set[int](), set[int]()
        self._site, self._way, self._nothing = -1, 0, tuple[Any, ...]()

    @property
    def loose(self) -> list[int]:
        """The lines of assertions that held whatever was changed, or were never reached."""
        return sorted(self.lines - self.failed)

    @property
    def names(self) -> dict[str, Any]:
        """The functions that compiled programs call."""
        return {"_again": self._again, "_value": self._value, "_verdict": self._verdict}

    def compile(self, text: str, file: str, mode: str) -> Any:
        """Returns the code of a program, to be run with `names` in its namespace."""
        return compile(ast.fix_missing_locations(self.visit(ast.parse(text))), file, mode)

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        """Keep an assertion, and evaluate it again behind it."""
        self.lines.add(node.lineno)
        sites = Sites()
        test = sites.visit(ast.parse(ast.unparse(node.test), mode="eval").body)
        text = f"_again({node.lineno}, {sites.count}, {node.msg is not None}, lambda: 0)"
        (again,) = ast.parse(text).body
        again.value.args[-1].body = test
        return [node, ast.copy_location(again, node)]

    def _again(self, line: int, sites: int, explained: bool, test: Callable[[], Any]) -> None:
        self._nothing = NOTHING if explained else ()
        for self._site, self._way in product(range(sites), range(WAYS)):
            if line not in self.failed and _fails(test):
                self.failed.add(line)
        self._site = -1

    def _value(self, site: int, value: Any) -> Any:
        changed = [*changes(value), *self._nothing] if site == self._site else []
        return changed[self._way] if self._way < len(changed) else value

    def _verdict(self, site: int, value: Any) -> Any:
        """Keep what a call says is true: of other arguments it says something else, or not."""
        return value if isinstance(value, bool | np.bool_) else self._value(site, value)


class Sites(ast.NodeTransformer):
    """Numbers the values that an expression reads, the outermost first."""

    def __init__(self) -> None:
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        """Wrap a value, and the values in it."""
        if not isinstance(node, READ) or isinstance(getattr(node, "ctx", None), ast.Store):
            return self.generic_visit(node)
        name = ast.Name("_verdict" if isinstance(node, ast.Call) else "_value", ast.Load())
        number = ast.Constant(self.count)
        self.count += 1
        return ast.Call(name, [number, self.generic_visit(node)], [])


def _fails(test: Callable[[], Any]) -> bool:
    """True for an assertion that fails; one that cannot be evaluated tells nothing."""
    try:
        return not test()
    except Exception:
        return False


def changes(value: Any) -> list[Any]:
    """Returns numbers a tenth, or one, away; all entries but the last, or with another last one."""
    if isinstance(value, bool | np.bool_):
        return [not value]
    if isinstance(value, int | np.integer):
        return [value + max(1, abs(value) // 10), value - max(1, abs(value) // 10)]
    if isinstance(value, float | np.floating | sympy.Expr):
        return [value + (value / 10 or 0.1), value - (value / 10 or 0.1)]
    if isinstance(value, np.ndarray) and value.size:
        return [~value] if value.dtype == bool else [value * 1.1, value * 0.9]
    if isinstance(value, str):
        return [value[::-1] + "~"]
    if isinstance(value, dict):
        return [dict(pairs) for pairs in changes(list(value.items()))]
    if isinstance(value, ENTRIES) and value:
        *rest, last = value
        made = type(value) if type(value) in ENTRIES else tuple  # a named one takes no entries
        return [made([*rest, *changes(last)[:1]]), made(rest)]
    return [object()]
