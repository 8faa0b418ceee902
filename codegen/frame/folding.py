"""fold_branches(source, choices)   keeps the branches of a part that a program takes.

    if WINDOWS:                        rows = cut(q)         with {"WINDOWS": True}
        rows = cut(q)           -->
    else:
        rows = q
    elif FREE and by_cudnn(q):  -->    elif by_cudnn(q):     with {"FREE": True}
    x = a if SINKS else b       -->    x = b                 with {"SINKS": False}

Choices are capital names, alone or combined with other conditions by `not`, `and`, `or`. They may
be nested, and at the top level an `if` may select a variant of a function, import or constant. The
lines that stay are copied with their comments.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache


def fold_branches(source: str, choices: Mapping[str, bool]) -> str:
    """Removes branches that a program does not take, and conditions that always hold."""
    return _fold_branches(source, tuple(choices.items()))


@lru_cache(maxsize=1024)  # without it, a second program in a process takes 1.6 times as long
def _fold_branches(source: str, choices: tuple[tuple[str, bool], ...]) -> str:
    fold = _Fold(dict(choices), source.encode().splitlines())
    fold.visit(ast.parse(source))
    return fold.text()


def simplify_condition(test: ast.expr, choices: Mapping[str, bool]) -> ast.expr:
    """Evaluates the choices in a condition; returns a constant if they decide it."""
    match test:
        case ast.Name(id=name) if name in choices:
            return ast.Constant(choices[name])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            part = simplify_condition(operand, choices)
            if isinstance(part, ast.Constant):
                return ast.Constant(not part.value)
            return ast.UnaryOp(ast.Not(), part)
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)
            parts = [simplify_condition(value, choices) for value in values]
            if any(isinstance(x, ast.Constant) and x.value is decisive for x in parts):
                return ast.Constant(decisive)
            parts = [x for x in parts if not isinstance(x, ast.Constant)]
            return ast.BoolOp(op, parts) if parts[1:] else [*parts, ast.Constant(not decisive)][0]
    return test


class _Fold(ast.NodeVisitor):
    """The changes to the lines of a part, in bytes because syntax trees count bytes."""

    def __init__(self, choices: Mapping[str, bool], lines: list[bytes]) -> None:
        self.choices, self.lines = choices, lines
        self.removed, self.dedents = set[int](), [0] * len(lines)
        self.changes = list[tuple[int, int, int, int, bytes]]()

    def text(self) -> str:
        """Returns the changed source."""
        for first, start, last, end, new in sorted(self.changes, reverse=True):
            self.lines[first] = self.lines[first][:start] + new + self.lines[last][end:]
            self.removed.update(range(first + 1, last + 1))
        lines = enumerate(zip(self.lines, self.dedents, strict=True))
        return "".join(f"{x[by:].decode()}\n" for n, (x, by) in lines if n not in self.removed)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        test = simplify_condition(node.test, self.choices)
        if not isinstance(test, ast.Constant):
            self._replace_condition(node.test, test)
            self.visit(node.body)
            self.visit(node.orelse)
            return
        value = node.body if test.value else node.orelse
        self.changes += [(*_start(node), *_start(value), b""), (*_end(value), *_end(node), b"")]
        self.visit(value)

    def visit_If(self, node: ast.If) -> None:
        decided, has_branch = False, False
        for first, end, test, body in self._branches(node):
            condition = simplify_condition(test, self.choices)
            holds = condition.value if isinstance(condition, ast.Constant) else None
            if decided or holds is False:
                self.removed.update(range(first, end))
                continue
            decided = holds is True
            if decided and has_branch:
                self.lines[first] = b" " * node.col_offset + b"else:"
            elif decided:
                self.removed.add(first)
                self.dedents[first:end] = [by + 4 for by in self.dedents[first:end]]
            else:
                self._replace_condition(test, condition)
                if first >= node.lineno and not has_branch:
                    start = node.col_offset
                    self.changes.append((first, start, first, start + len("elif"), b"if"))
            has_branch = True
            for statement in body:
                self.visit(statement)

    def _replace_condition(self, test: ast.expr, new: ast.expr) -> None:
        if ast.unparse(new) != ast.unparse(test):
            self.changes.append((*_start(test), *_end(test), ast.unparse(new).encode()))

    def _branches(self, node: ast.If) -> Iterator[tuple[int, int, ast.expr, list[ast.stmt]]]:
        """Yields the first line, end, condition and statements of each branch."""
        first, end = node.lineno - 1, node.end_lineno or 0
        match node.orelse:
            case [ast.If(col_offset=node.col_offset) as other]:  # elif
                yield first, other.lineno - 1, node.test, node.body
                yield from self._branches(other)
            case [other, *_]:
                head, last = b" " * node.col_offset + b"else:", node.body[-1].end_lineno or 0
                middle = self.lines.index(head, last, other.lineno)
                yield first, middle, node.test, node.body
                yield middle, end, ast.Constant(True), node.orelse
            case _:
                yield first, end, node.test, node.body


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno - 1, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return (node.end_lineno or 0) - 1, node.end_col_offset or 0
