"""Python for what a rank holds: inputs that it owns or that came, and running sums."""

from dataclasses import dataclass, field

from codegen.lowered.sums import Cell, Walk
from codegen.torch.variables import Variables
from planner.errors import PlanError
from planner.ir import TENSORS
from planner.loops.form import HELD, OWN, Part

MOVES = {("Q",), ("DOUT",), ("KV",), ("Q", "DOUT", "STATS"), ("OUT",), ("DQ",), ("DKV",)}


def zeros(like: str) -> str:
    """Running sums in the shape of a list of tensors, one after the other."""
    like = f"({like[1:-1]})" if like.startswith("[") and "," in like else like
    return f"torch.zeros_like(x, dtype=wide(x)) for x in {like}"


@dataclass(frozen=True)
class Holdings:
    """The names of one pass, as they are written where they are used."""

    names: Variables
    walked: Walk
    backward: bool
    kept: bool = False  # the forward pass left what it exchanged under the names of what is owned
    dim: str = ""  # of results, where it is not that of queries
    used: set[str] = field(default_factory=set)  # "stats": that of our queries is sent or attended

    # -- inputs

    def plain(self, side: str, name: str) -> bool:
        """True of values whose tensors have the names that a pass is given."""
        return name in (OWN, HELD) or self.names.inputs[side, name] == "dout"

    def value(self, side: str, name: str) -> str:
        """A list of tensors: all that is sent of a value."""
        if not self.plain(side, name):
            return self.names.inputs[side, name]
        if side == "kv":
            return "[k, v]"
        if self.kept:
            return "[dout]"
        if self.backward:
            self.used.add("stats")
            return "[dout, q, lse, delta]"
        return "[q]"

    def part(self, tensors: tuple[str, ...], part: Part) -> str:
        """The list of tensors of a message."""
        if tensors not in MOVES:
            raise PlanError(f"a message of {' '.join(tensors)}")
        if part.pieces is not None or part.heads is not None:
            raise PlanError("a message of a part of what a rank has")
        return self.value(TENSORS[tensors[0]].side, part.value)

    def keys(self, value: str, cut: bool) -> list[str]:
        """Arguments k and v of an attend."""
        if self.plain("kv", value):
            return ["k[:, :, cols]", "v[:, :, cols]"] if cut else ["k", "v"]
        name = self.names.inputs["kv", value]
        return [f"*(x[:, :, cols] for x in {name})"] if cut else [f"*{name}"]

    def queries(self, value: str, cut: bool, pick: str = "") -> list[str]:
        """The argument q of an attend of the forward pass; `pick` takes some heads of it."""
        if value == OWN:
            return [f"q{pick}[:, :, rows]" if cut else f"q{pick}"]
        name = self.names.inputs["q", value]
        return [f"*(x[:, :, rows] for x in {name})"] if cut else [f"*{name}"]

    def like(self, side: str, value: str) -> str:
        """A tensor, or a list of tensors for keys and values, in whose shape sums are kept."""
        if side == "kv":
            return self.value(side, value)
        return "q" if self.plain("q", value) else f"{self.value(side, value)}[{int(self.backward)}]"

    # -- sums

    def plainly(self, cell: Cell) -> bool:
        """True if the results of queries have two names of their own."""
        return self.names.cells[cell] == "results"

    def message(self, cell: Cell) -> str:
        """A list of tensors: the sums as they are sent."""
        name = self.names.cells[cell]
        if cell[0] == "OUT":
            return "[out, lse]" if self.plainly(cell) else name
        return f"[{name}]" if cell[0] == "DQ" else name

    def cast(self, cell: Cell) -> str:
        """A list of tensors: the sums as they are sent when nothing more is added to them."""
        name = self.names.cells[cell]
        if cell[0] == "OUT":
            plain = self.plainly(cell)
            return "[out.to(q.dtype), lse]" if plain else f"[{name}[0].to(q.dtype), {name}[1]]"
        return f"[{name}.to(q.dtype)]" if cell[0] == "DQ" else f"[x.to(k.dtype) for x in {name}]"

    def totals(self, cell: Cell) -> str:
        """The tensors of running sums, one after the other."""
        return self.message(cell).replace("[", "(").replace("]", ",)" if cell[0] == "DQ" else ")")

    def taken(self, cell: Cell) -> str:
        """The target of an assignment from a list of tensors."""
        name = self.names.cells[cell]
        if cell[0] == "OUT" and self.plainly(cell):
            return "out, lse"
        return f"({name},)" if cell[0] == "DQ" else name

    def begin(self, cell: Cell) -> str:
        """The assignment of the results that the first attend gave."""
        if self.plainly(cell):
            return "out, lse = part.to(wide(q)), part_lse"
        return f"{self.names.cells[cell]} = [part.to(wide(q)), part_lse]"

    def blank(self, cell: Cell, side: str) -> str:
        """The assignment of sums of nothing."""
        name, like = self.names.cells[cell], self.like(side, self.shape(cell))
        if cell[0] == "OUT":
            out = f"torch.zeros_like({like}, dtype=wide({like}))"
            if self.dim:
                out = f"{like}.new_zeros((*{like}.shape[:3], {self.dim}), dtype=wide({like}))"
            lse = f"torch.full_like({like}[..., :1], -torch.inf, dtype=wide({like}))"
            if self.plainly(cell):
                return f"out = {out}\nlse = {lse}"
            return f"{name} = [\n    {out},\n    {lse},\n]"
        if cell[0] == "DQ":
            return f"{name} = torch.zeros_like({like}, dtype=wide({like}))"
        return f"{name} = [{zeros(like)}]"

    def shape(self, cell: Cell) -> str:
        """A value in whose shape sums are kept: what is owned, if that is as large."""
        side = "kv" if cell[0] == "DKV" else "q"
        pieces = self.walked.pieces
        known = (side, cell[1]) in self.names.inputs and not self.kept
        return cell[1] if known and pieces[side, cell[1]] != pieces[side, OWN] else OWN

    def fresh(self, cell: Cell) -> str:
        """The assignment of nothing to `shares`, beside sums that are on their way."""
        if cell[0] != "DKV":
            raise PlanError("tiles of sums for queries that travel on")
        return f"shares = [{zeros(self.like('kv', self.shape(cell)))}]"

    def add(self, cell: Cell, cut: bool, parts: str, name: str = "", pick: str = "") -> str:
        """Add what an attend gave; `pick` takes some heads of what queries have."""
        name = name or self.names.cells[cell]
        if cell[0] == "OUT":
            part = pick + "[:, :, rows]" * cut
            if self.plainly(cell):
                totals = f"out{part}, lse{part}"
            else:
                totals = f"*(x{part} for x in {name})" if part else f"*{name}"
            return f"merge({totals}, {parts})"
        if cell[0] == "DQ":
            rows = "[:, :, rows]" if cut else "[:]" if pick else ""
            return f"{name}{pick}{rows} += {parts}"
        total = "total[:, :, cols]" if cut else "total"
        return f"for total, share in zip({name}, {parts}, strict=True):\n    {total} += share"

    def arrive(self, cell: Cell, came: str) -> str:
        """Add what a message brought, if it did."""
        name = self.names.cells[cell]
        if cell[0] == "OUT":
            totals = "out, lse" if self.plainly(cell) else f"*{name}"
            return f"merge({totals}, *{came})"
        if cell[0] == "DQ":
            return f"for share in {came}:\n    {name} += share"
        return f"for total, share in zip({name}, {came}, strict=False):\n    total += share"

    def anew(self, cell: Cell) -> bool:
        """True if sums begin with nothing in each step, because the last ones have left."""
        walked = self.walked
        return walked.accumulates(cell) and cell in walked.sent and not walked.relayed(cell)
