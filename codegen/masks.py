"""masks   the mask in a program: `allowed(i, j)` as one expression, and the data it or a cut needs.

    mask_data(work, free)        BOUNDS, Q_BOUNDS, GRID and more of a mask that has them; BOXES
    mask_function(work, target)  allowed(i, j) and what it calls

`allowed` takes query positions i [n, 1], aligned (i + KV_SEQ - SEQ), and key positions j [1, m],
as tensors or arrays, and says which pairs the workload allows: its definition, nothing derived.
BOXES is derived: rows (i0, i1, j0, j1, low, high), queries i0 <= i < i1 and keys j0 <= j < j1 with
low <= j - i <= high, disjoint, of aligned positions.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from codegen.reflow import WIDTH, filled, numbers
from codegen.text import entered, numbered
from planner.masks import Mask
from planner.masks.regions import FAR, Region
from planner.workload import Workload

BEYOND = 2**30  # printed for "no bound" where the length is free; programs count in 32 bits
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


# ---- data


def mask_data(work: Workload, free: bool) -> str:
    """Prints the data that a mask names, and its boxes; `free`: the program takes any length."""
    lines, sentence = list[str](), Sentence(work, "jax")
    sentence.joined(work.mask)
    for name, value in sentence.data.items():
        lines += _strings(name, value) if name.startswith("GRID") else numbers(name, value)
    return "\n".join([*lines, *_boxes(work, free)]) + "\n"


def _strings(name: str, rows: Iterable[object]) -> list[str]:
    lines = [f"{name} = (  # whose queries see whose keys, by cells"]
    for row in map(str, rows):
        if len(row) <= WIDTH - 7:
            lines.append(f'    "{row}",')
        else:
            parts = [row[a : a + WIDTH - 12] for a in range(0, len(row), WIDTH - 12)]
            lines += ["    (", *(f'        "{part}"' for part in parts), "    ),"]
    return [*lines, ")"]


def boxes(work: Workload, free: bool) -> list[tuple[int, ...]]:
    """Returns the mask as disjoint boxes cut by bands, for positions of this workload or of any."""
    region = work.mask.region()
    if free:
        return [tuple(row) for row in region.pieces.clip(-BEYOND, BEYOND).tolist()]
    low, high = min(0, work.offset), work.kv_seq
    whole = Region.of([(low, high, 0, high, -FAR, FAR)])
    rows = region.intersect(whole).pieces.tolist()
    reach = high - low
    return sorted((i0, i1, j0, j1, max(a, -reach), min(b, reach)) for i0, i1, j0, j1, a, b in rows)


def _boxes(work: Workload, free: bool) -> list[str]:
    rows = boxes(work, free)
    head, said = "BOXES = (", "# i0 <= i < i1, j0 <= j < j1, low <= j - i <= high"
    far = {BEYOND: "FAR", -BEYOND: "-FAR"}
    cells = [", ".join(far.get(x, str(x)) for x in row) for row in rows]
    start = ["FAR = 2**30  # beyond every position"] * free
    if not rows:
        return [*start, "BOXES: tuple[tuple[int, ...], ...] = ()  # the mask allows no pair"]
    one = f"{head}({cells[0]}),)  {said}"
    if len(cells) == 1 and len(one) <= WIDTH:
        return [*start, one]
    return [*start, f"{head}  {said}", *filled(f"({x})" for x in cells), ")  # fmt: skip"]


# ---- the function


@dataclass
class Sentence:
    """An expression, and the lines that name its parts where it would be too long.

    `data`: what it names, name -> numbers, or rows of a grid; alike ones have one name.
    """

    work: Workload
    target: str
    lines: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    data: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def short(self, mask: Mask, room: int) -> str:
        """Returns the expression of a mask, or the name that a line before gives it."""
        text = self.joined(mask)
        if len(text) <= room:
            return text
        name = type(mask).__name__.lower()
        self.used.append(name)
        name = f"{name}_{self.used.count(name)}"
        self.lines.append(f"{name} = {text}")
        return name

    def joined(self, mask: Mask) -> str:
        """Returns the expression of a mask, with the names that its data have here."""
        text = mask.expression
        names = {n: self.named(n, value, f"{n}[" in text) for n, value in mask.names.items()}
        guarded = mask.from_zero and self.work.offset < 0
        if guarded and "[" in mask.expression:
            names["i"] = "i.clip(0)"  # an index
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), mask.expression)
        return f"(i >= 0) & ({text})" if guarded else text

    def named(self, name: str, value: NDArray[np.integer | np.bool_] | Mask, indexed: bool) -> str:
        """Returns the text for data or a mask that an expression names; `indexed`: by arrays."""
        if isinstance(value, Mask):
            text = self.short(value, 40)
            return text if text.isidentifier() else f"({text})"
        if value.ndim == 1:
            data = entered(self.data, numbered(name), tuple(value.tolist()))
            return self.known(data.lower(), NUMBERS[self.target].format(data)) if indexed else data
        rows = tuple("".join("01"[c] for c in row) for row in value.tolist())
        grid = entered(self.data, numbered("GRID"), rows)
        return self.known(f"cells{grid[4:]}", CELLS[self.target].format(grid))

    def known(self, name: str, text: str) -> str:
        """Returns a name for what a line says, written one time."""
        if (line := f"{name} = {text}") not in self.lines:
            self.lines.append(line)
        return name


def mask_expression(work: Workload) -> str:
    """Returns the expression that `allowed` returns, "" if that names parts of it before."""
    sentence = Sentence(work, "torch")
    text = sentence.joined(work.mask)
    return "" if sentence.lines else text


def mask_function(work: Workload, target: str) -> str:
    """Prints `allowed`, and `place` for masks that need it, as a module text."""
    array = ARRAYS[target]
    sentence = Sentence(work, target)
    text = sentence.short(work.mask, WIDTH - len("    return "))
    aligned = " (+ KV_SEQ - SEQ)" if work.offset else ""
    lines = [
        f"def allowed(i: {array}, j: {array}) -> {array}:",
        f'    """Which query positions i{aligned} may see which key positions j."""',
        *(f"    {line}" for line in [*sentence.lines, f"return {text}"]),
    ]
    if "place(" in "".join(lines):
        lines += [
            *("", ""),
            f"def place(x: {array}, bounds: tuple[int, ...]) -> {array}:",
            '    """The number of the document that a position lies in, counted from 1."""',
            f"    return {PLACE[target]}",
        ]
    return "\n".join(lines) + "\n"
