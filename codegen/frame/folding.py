"""folded(source, choices)   a part with the branches that a program has, and without their `if`.

    if WINDOWS:                        rows = cut(q)         with {"WINDOWS": True}
        rows = cut(q)           -->
    else:
        rows = q
    elif FREE and by_cudnn(q):  -->    elif by_cudnn(q):     with {"FREE": True}
    x = a if SINKS else b       -->    x = b                 with {"SINKS": False}

Choices are capital names, alone or with `not`, `and`, `or` and other conditions, at any depth: at
the top two variants of a function, of an import or of a constant may stand under one `if`. The
syntax tree says which lines stay; so comments do, and those in a branch that goes go with it.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache


def folded(source: str, choices: Mapping[str, bool]) -> str:
    """The part, in lines that are otherwise its own."""
    return _folded(source, tuple(choices.items()))


@lru_cache(maxsize=1024)  # a second program in a process takes 1.6 times as long without
def _folded(source: str, given: tuple[tuple[str, bool], ...]) -> str:
    fold = _Fold(dict(given), source.encode().splitlines())
    fold.visit(ast.parse(source))
    return fold.text()


def simplified(test: ast.expr, choices: Mapping[str, bool]) -> ast.expr:
    """A condition without choices, which is a constant where these decide it."""
    match test:
        case ast.Name(id=name) if name in choices:
            return ast.Constant(choices[name])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            part = simplified(operand, choices)
            if isinstance(part, ast.Constant):
                return ast.Constant(not part.value)
            return ast.UnaryOp(ast.Not(), part)
        case ast.BoolOp(op=op, values=values):
            decides = isinstance(op, ast.Or)
            parts = [simplified(value, choices) for value in values]
            if any(isinstance(x, ast.Constant) and x.value is decides for x in parts):
                return ast.Constant(decides)
            parts = [x for x in parts if not isinstance(x, ast.Constant)]
            return ast.BoolOp(op, parts) if parts[1:] else [*parts, ast.Constant(not decides)][0]
    return test


class _Fold(ast.NodeVisitor):
    """The changes of the lines of a part: in bytes, because these are what syntax trees count."""

    def __init__(self, choices: Mapping[str, bool], lines: list[bytes]) -> None:
        self.choices, self.lines = choices, lines
        self.gone, self.left = set[int](), [0] * len(lines)  # lines left out, and how far others go
        self.changes = list[tuple[int, int, int, int, bytes]]()

    def text(self) -> str:
        """The lines that are left."""
        for first, start, last, end, new in sorted(self.changes, reverse=True):
            self.lines[first] = self.lines[first][:start] + new + self.lines[last][end:]
            self.gone.update(range(first + 1, last + 1))
        lines = enumerate(zip(self.lines, self.left, strict=True))
        return "".join(f"{x[by:].decode()}\n" for n, (x, by) in lines if n not in self.gone)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        test = simplified(node.test, self.choices)
        if not isinstance(test, ast.Constant):
            self._condition(node.test, test)
            self.visit(node.body)
            self.visit(node.orelse)
            return
        kept = node.body if test.value else node.orelse
        self.changes += [(*_start(node), *_start(kept), b""), (*_end(kept), *_end(node), b"")]
        self.visit(kept)

    def visit_If(self, node: ast.If) -> None:
        chosen, begun = False, False
        for first, end, test, body in self._arms(node):
            new = simplified(test, self.choices)
            holds = new.value if isinstance(new, ast.Constant) else None
            if chosen or holds is False:
                self.gone.update(range(first, end))
                continue
            chosen = holds is True
            if chosen and begun:
                self.lines[first] = b" " * node.col_offset + b"else:"
            elif chosen:
                self.gone.add(first)
                self.left[first:end] = [by + 4 for by in self.left[first:end]]
            else:
                self._condition(test, new)
                if first >= node.lineno and not begun:
                    word = first, node.col_offset
                    self.changes.append((*word, first, word[1] + len("elif"), b"if"))
            begun = True
            for statement in body:
                self.visit(statement)

    def _condition(self, test: ast.expr, new: ast.expr) -> None:
        if ast.unparse(new) != ast.unparse(test):
            self.changes.append((*_start(test), *_end(test), ast.unparse(new).encode()))

    def _arms(self, node: ast.If) -> Iterator[tuple[int, int, ast.expr, list[ast.stmt]]]:
        """The first line, the end, the condition and the statements of each branch."""
        first, end = node.lineno - 1, node.end_lineno or 0
        match node.orelse:
            case [ast.If(col_offset=node.col_offset) as other]:  # elif
                yield first, other.lineno - 1, node.test, node.body
                yield from self._arms(other)
            case [other, *_]:
                word, last = b" " * node.col_offset + b"else:", node.body[-1].end_lineno or 0
                middle = self.lines.index(word, last, other.lineno)
                yield first, middle, node.test, node.body
                yield middle, end, ast.Constant(True), node.orelse
            case _:
                yield first, end, node.test, node.body


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno - 1, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return (node.end_lineno or 0) - 1, node.end_col_offset or 0
