"""State   a torch pass on its way to text: printers of messages, attends and exchanges share it."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from codegen.lowered.conditions import AXES, SIZES
from codegen.lowered.walk import Cell, walk
from codegen.lowering.keeping import Kept
from codegen.reflow import WIDTH
from codegen.text import Data
from codegen.torch.frames import frames
from codegen.torch.holdings import Holdings
from codegen.torch.tiles import unit_of
from codegen.torch.variables import variables
from planner.loops.expand import Expansion
from planner.loops.form import Attend, Guard, Loops, Send, Statement

Lines = tuple[str, list[str]]  # and the condition that they are under, "" for none


class State:
    """A pass on its way to text, one of `forms`.

    `keep`: exchanges whose values backward has; `free`: any length goes.
    """

    def __init__(
        self, rows: Expansion, forms: Sequence[Loops], keep: Kept, free: bool, data: Data
    ) -> None:
        self.plan, self.forms, self.keep, self.free = rows.plan, forms, keep, free
        self.loops, self.walked = walk(rows)
        self.frames = [*frames(self.loops, data)]
        self.backward, kept = self.plan.pass_ == "backward", bool(keep)
        names = variables(self.loops, self.walked, self.frames, kept and not self.backward)
        work = self.plan.workload
        dim = "" if work.v_head_dim == work.head_dim else "V_HEAD_DIM"
        self.have = Holdings(*names, self.walked, self.backward, kept and self.backward, dim)
        self.unit = unit_of(self.loops, self.walked.pieces)
        self.axes, self.sizes = (names[len(self.loops.mesh)] for names in (AXES, SIZES))
        self.of_length = ", seq" * free  # that positions are given
        self.lines: list[str] = []
        self.margin = 4
        self.orders: dict[str, int] = {}  # of what exchanges bring, and `tokens` in order: axis
        self.started = dict[Send, str]()  # messages that are under way
        self.defined: set[str] = set()  # variables, so far
        self.neighbours: tuple[str, str] | None = None
        self.peers_said: tuple[str, str] | None = None  # in the step that is printed

    def write(self, line: str) -> None:
        """One line at the margin."""
        self.lines += [" " * self.margin + part for part in line.split("\n")]

    def paste(self, lines: Sequence[str]) -> None:
        """Lines at the margin."""
        for line in lines:
            self.write(line)

    def under(self, blocks: Iterable[Lines]) -> None:
        """Lines under their conditions, neighbours under the same one together."""
        for when, group in groupby(blocks, lambda block: block[0]):
            body = [line for _, lines in group for line in lines]
            self.paste(indented(f"if {when}:", body) if when and body else body)

    def assigned(self, cell: Cell, steps: Sequence[int]) -> Statement | None:
        """The statement that brings new sums of some steps to all ranks; None: they are zeros."""
        match first := self.beginning(cell, steps):
            case Attend() as s, t:
                cells = self.walked.targets[s][t].values()
                alike = {self.beginning(c, steps) for c in cells} == {first}
                alone = alike and s.when.steps == [t] and t == steps[0]
                named = alone and not any(self.sent_before(c, steps) for c in cells)
                return s if named and self.in_one(s) else None
            case s, _ if len(steps) == 1:
                return s
        return None

    def sent_before(self, cell: Cell, steps: Sequence[int]) -> bool:
        """True if a loop has a line that sends a variable, above its attends."""
        sent = (c for c, on in self.walked.taken.items() if len(steps) > 1 and on & {*steps})
        return any(self.have.cells.get(c) == self.have.cells[cell] for c in sent)

    def beginning(self, cell: Cell, steps: Sequence[int]) -> tuple[Statement, int] | None:
        """The statement with which sums of some steps begin, if it is one, and that step."""
        begun = self.walked.lasting(cell)[0] & {*steps}
        added = [(s, t) for s, t, c in self.walked.additions() if c == cell and t in begun]
        if len(added) != 1 or cell in self.walked.parted:
            return None
        return added[0] if added[0][0].when.guard == Guard() else None

    def in_one(self, s: Attend) -> bool:
        """True if all queries of a value meet all keys of another in one call."""
        sliced = any(p.pieces for p in (*s.q, *s.kv))
        return not sliced and (s.q[0].value, s.kv[0].value) not in self.walked.cut

    def group(self, axis: int) -> str:
        """The process group along an axis."""
        return "group" if len(self.axes) == 1 else f"{self.axes[axis]}_group"


def indented(head: str, body: list[str]) -> list[str]:
    """A block."""
    return [head, *(f"    {line}" for lines in body for line in lines.split("\n"))]


def tupled(lines: Sequence[str]) -> list[str]:
    """Assignments as few, where they fit on a line and none reads what another assigns."""
    made = list[tuple[str, str]]()
    for left, _, right in (line.partition(" = ") for line in lines):
        names, values = (", ".join(x) for x in zip(*made[-1:], (left, right), strict=True))
        read = re.search(rf"\b({names.replace(', ', '|')})\b| = ", values)
        if read or not re.fullmatch(r"\w+(, \w+)+", names) or len(names + values) >= WIDTH - 10:
            made.append((left, right))
        else:
            made[-1] = names, values
    return [" = ".join(pair) for pair in made]


def bracketed(condition: str) -> str:
    """A condition beside others, of which one holds."""
    return f"({condition})" if " and " in condition else condition


def joined(blocks: Iterable[Lines]) -> list[Lines]:
    """Blocks with one condition for several that are alike, which hold one at a time."""
    made = list[Lines]()
    for when, lines in blocks:
        same = [n for n, (asked, others) in enumerate(made) if asked and when and others == lines]
        whole = [bracketed(x) for x in (*(made[n][0] for n in same), when)]
        if same and len(" or ".join(whole)) <= WIDTH - 12:
            made[same[0]] = " or ".join(whole), lines
        else:
            made.append((when, lines))
    return made
