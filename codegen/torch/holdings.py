"""Python for what a rank holds: inputs that it owns or that came, and running sums.

Everything is a list of tensors: keys and values, queries, results and gradients.
"""

from dataclasses import dataclass, field

from codegen.lowered.variables import Value
from codegen.lowered.walk import Cell, Walk
from codegen.reflow import WIDTH
from codegen.torch.tensors import Tensors, list_of
from codegen.torch.variables import Moving
from planner.errors import PlanError
from planner.ir import TENSORS
from planner.loops.form import HELD, OWN, Part


@dataclass(frozen=True)
class Holdings:
    """The names of one pass, as they are written where they are used."""

    inputs: dict[Value, str]
    cells: dict[Cell, str]
    handles: dict[Moving, str]
    walked: Walk
    backward: bool
    kept: bool = False  # the forward pass left what it exchanged under the names of what is owned
    dim: str = ""  # of results, where it is not that of queries
    outputs: set[str] = field(default_factory=set)  # values of queries that have theirs

    def plain(self, side: str, name: str) -> bool:
        """True of values whose tensors have the names that a pass is given."""
        return name in (OWN, HELD) or self.inputs[side, name] == "dout"

    def value(self, side: str, name: str) -> Tensors:
        """All that is sent of a value."""
        if not self.plain(side, name):
            return Tensors(self.inputs[side, name])
        if side == "kv":
            return list_of("k", "v")
        if self.kept:
            return list_of("dout")
        return list_of("dout", "q", "lse", "delta") if self.backward else list_of("q")

    def queries(self, name: str) -> Tensors:
        """The queries of an attend: in a backward pass dout, q, out and lse."""
        if self.plain("q", name):
            return list_of("dout", "q", "out", "lse") if self.backward else list_of("q")
        value = self.value("q", name)
        without = self.backward and name not in self.outputs
        return Tensors(f"with_output({value.text})") if without else value

    def part(self, tensors: tuple[str, ...], part: Part) -> Tensors:
        """The list of tensors of a message."""
        if part.pieces is not None or part.heads is not None:
            raise PlanError("a message carries some of the pieces that a rank has")
        return self.value(TENSORS[tensors[0]].side, part.value)

    # -- sums

    def cast(self, cell: Cell) -> Tensors:
        """Sums as they are sent when nothing more is added to them."""
        name = self.cells[cell]
        if cell[0] == "OUT":
            return list_of(f"{name}[0].to(q.dtype)", f"{name}[1]")
        return Tensors(name).each(lambda x: f"{x}.to(q.dtype)")

    def blank(self, cell: Cell) -> str:
        """The assignment of sums of nothing."""
        name, value = self.cells[cell], self.shape(cell)
        if cell[0] == "DKV":
            return f"{name} = zeros({self.value('kv', value).text})"
        queries = self.value("q", value)
        like = "q" if self.plain("q", value) else f"{queries.text}[{int(self.backward)}]"
        if cell[0] == "DQ":
            return f"{name} = zeros([{like}])"
        out = f"[{like}.new_empty((*{like}.shape[:3], {self.dim}))]"
        out = out if self.dim else queries.text
        lse = f"torch.full_like({like}[..., :1], -torch.inf, dtype=wide(q))"
        text = f"{name} = [*zeros({out}), {lse}]"
        return text if len(text) <= WIDTH - 4 else f"lse = {lse}\n{name} = [*zeros({out}), lse]"

    def shape(self, cell: Cell) -> str:
        """A value in whose shape sums are kept."""
        side = TENSORS[cell[0]].side
        known = (side, cell[1]) in self.inputs and not self.kept
        return self.like(side, cell[1]) if known else OWN

    def like(self, side: str, name: str) -> str:
        """A value of the same shape: what is owned, if that is as large."""
        pieces = self.walked.pieces
        return OWN if pieces[side, name] == pieces[side, OWN] else name
