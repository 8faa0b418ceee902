"""Prints the mask of a program: `allowed(i, j)` as one expression, and its data.

    mask_data(work, any_length)   the data of the mask (BOUNDS, Q_BOUNDS, GRID etc.), and BOXES
    mask_function(work, target)   allowed(i, j) and the function that it calls

`allowed` takes query positions i [n, 1], aligned (i + KV_SEQ - SEQ), and key positions j [1, m], as
tensors or arrays, and returns the pairs that the mask allows, by its definition. BOXES
is derived from the mask: disjoint rows (i0, i1, j0, j1, low, high) of aligned positions, queries
i0 <= i < i1 and keys j0 <= j < j1 with low <= j - i <= high.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from ringloom.codegen.frame.packed import print_data, print_string
from ringloom.planner.masks import Mask
from ringloom.planner.masks.regions import FAR, Region
from ringloom.planner.workload import Workload

UNBOUNDED = 2**30  # printed for "no bound" if any length is valid; programs use 32-bit integers
ARRAYS = {"torch": "Tensor", "jax": "jax.Array"}
PLACE = {
    "torch": "torch.bucketize(x, torch.tensor(bounds, device=x.device), right=True)",
    "jax": 'jnp.searchsorted(jnp.array(bounds), x, side="right")',
}
CELLS = {
    "torch": 'torch.tensor([[c == "1" for c in row] for row in {}], device=i.device)',
    "jax": 'jnp.array([[c == "1" for c in row] for row in {}])',
}
NUMBERS = {"torch": "torch.tensor({}, device=i.device)", "jax": "jnp.array({})"}
V = TypeVar("V")


# ---- data


def mask_data(work: Workload, any_length: bool) -> str:
    """Prints the data that a mask uses, and its boxes; `any_length` as in `boxes`."""
    lines, printer = list[str](), MaskPrinter(work, "jax")
    printer.expression(work.mask)
    for name, values in printer.grids.items():
        cells = "".join(f"{print_string(row)}," for row in values)
        lines += ["# cells of queries (rows) that see cells of keys", f"{name} = ({cells})"]
    for name, numbers in printer.numbers.items():
        lines.append(print_data(name, numbers))
    return "\n".join([*lines, *_boxes(work, any_length)]) + "\n"


def boxes(work: Workload, any_length: bool) -> list[tuple[int, ...]]:
    """Returns the mask as disjoint boxes cut by bands, for one length or for `any_length`."""
    region = work.mask.region()
    if any_length:
        return [tuple(row) for row in region.pieces.clip(-UNBOUNDED, UNBOUNDED).tolist()]
    low, high = min(0, work.offset), work.kv_seq
    whole = Region.of([(low, high, 0, high, -FAR, FAR)])
    rows = region.intersect(whole).pieces.tolist()
    reach = high - low
    return sorted((i0, i1, j0, j1, max(a, -reach), min(b, reach)) for i0, i1, j0, j1, a, b in rows)


def _boxes(work: Workload, any_length: bool) -> Iterator[str]:
    rows = boxes(work, any_length)
    if any_length:
        yield "FAR = 2**30  # larger than any position"
    if not rows:
        yield "BOXES: tuple[tuple[int, ...], ...] = ()  # the mask allows no pair"
        return
    names = {UNBOUNDED: "FAR", -UNBOUNDED: "-FAR"} if any_length else {}
    cells = (f"({', '.join(names.get(x, str(x)) for x in row)})," for row in rows)
    yield "# i0 <= i < i1, j0 <= j < j1, low <= j - i <= high"
    yield print_data("BOXES", rows, f"({''.join(cells)})")


# ---- the function


@dataclass
class MaskPrinter:
    """The names of the data of a mask in a program, filled while its expression is printed.

    `grids` are rows of cells, `numbers` all other data, by name; equal data share a name.
    """

    work: Workload
    target: str
    grids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)  # name of indexed data -> its array

    def expression(self, mask: Mask) -> ast.expr:
        """Returns the expression of a mask."""
        tree = ast.parse(mask.expression, mode="eval").body
        indexed = {ast.unparse(n.value) for n in ast.walk(tree) if isinstance(n, ast.Subscript)}
        names = {n: self._operand(n, value, n in indexed) for n, value in mask.names.items()}
        guarded = mask.from_zero and self.work.offset < 0
        if guarded and indexed:
            names["i"] = ast.parse("i.clip(0)", mode="eval").body
        expression: ast.expr = _Substitution(names).visit(tree)
        if guarded:
            return ast.BinOp(ast.parse("i >= 0", mode="eval").body, ast.BitAnd(), expression)
        return expression

    def _operand(self, name: str, value: Any, indexed: bool) -> ast.expr:
        """Returns the expression for a named mask or named data; `indexed`: data as an array."""
        if isinstance(value, Mask):
            return self.expression(value)
        if value.ndim == 1:
            name = _add(self.numbers, name, tuple(value.tolist()))
            return ast.Name(self._array(name.lower(), name, NUMBERS) if indexed else name)
        rows = tuple("".join("01"[c] for c in row) for row in value.tolist())
        name = _add(self.grids, "GRID", rows)
        return ast.Name(self._array(f"cells{name[4:]}", name, CELLS))

    def _array(self, name: str, data: str, templates: dict[str, str]) -> str:
        self.arrays[name] = templates[self.target].format(data)
        return name


@dataclass(frozen=True)
class _Substitution(ast.NodeTransformer):
    """A substitution of expressions for names."""

    names: dict[str, ast.expr]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.names.get(node.id, node)


def _add(table: dict[str, V], name: str, value: V) -> str:
    """Adds a value to a table; returns its name, numbered if another value has the name."""
    names = (name if n == 1 else f"{name}_{n}" for n in count(1))
    return next(name for name in names if table.setdefault(name, value) == value)


def mask_function(work: Workload, target: str) -> str:
    """Prints `allowed`, and `place` for masks that need it."""
    array = ARRAYS[target]
    printer = MaskPrinter(work, target)
    tree = printer.expression(work.mask)
    aligned = " (+ KV_SEQ - SEQ)" if work.offset else ""
    lines = [
        f"def allowed(i: {array}, j: {array}) -> {array}:",
        f'    """Return which query positions i{aligned} may see which key positions j."""',
        *(f"    {name} = {text}" for name, text in printer.arrays.items()),
        f"    return {ast.unparse(tree)}",
    ]
    if any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        lines += [
            f"def place(x: {array}, bounds: tuple[int, ...]) -> {array}:",
            '    """Return the number of the document at a position, counted from 1."""',
            f"    return {PLACE[target]}",
        ]
    return "\n".join(lines) + "\n"
