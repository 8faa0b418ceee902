"""Operands   registers, slices and positions as torch expressions: what calls are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from codegen.ir import Let, Place, Post, Program, Register, Slice, Swap, Wait, walk
from codegen.names import Names, named
from codegen.words import AXES, SIZES, Data, Words
from planner.errors import PlanError
from planner.loops.form import HELD, OWN, Expr
from planner.masks.mask import SideName

STATS = ("Q", "DOUT", "STATS")


@dataclass(frozen=True)
class Form:
    """The form of a program: `free` of its length, with keys `apart` from queries.

    `slices` are those of the heads of each side, 0 where they are of several sizes; `data` gets
    the numbers that have names. `unequal`: pieces of queries and of keys are of different lengths.
    """

    free: bool
    apart: bool
    sinks: bool
    slices: Mapping[SideName, int]
    unequal: bool = False
    data: Data = field(default_factory=dict)


class Operands:
    """The expressions of one pass, by the names of its registers."""

    def __init__(self, program: Program, form: Form) -> None:
        self.program, self.form, self.mesh = program, form, program.mesh
        self.axes, self.sizes = AXES[len(self.mesh)], SIZES[len(self.mesh)]
        self.names: Names = named(program)
        self.used = set[str]()
        self.words = self.frame(range(1), False)
        self.backward = program.pass_ == "backward"
        self.keeps = bool(program.kept)
        self.settled = settled(program)
        self.orders = dict[str, str]()  # of what exchanges bring, by name

    def frame(self, steps: range, loop: bool) -> Words:
        """The words of some steps."""
        return Words(self.mesh, steps, loop, self.axes, "rank", self.form.data, self.used)

    def whole(self, register: Register, tensors: Sequence[str] = STATS) -> str:
        """All of a register; of the queries that a rank owns, these tensors."""
        if register in self.names:
            return self.names[register]
        if register.of == "kv":
            return "saved[1:3]" if self.other(register) else "[k, v]"
        if not self.backward:
            return "[q]"
        if register.value == HELD or self.keeps:
            if tuple(tensors) != ("DOUT",):
                raise PlanError("queries that the forward pass left travel on")
            return "[dout]"
        self.used.add("delta" if "STATS" in tensors else "dout")
        return "[dout, q, lse, delta]" if "STATS" in tensors else "[dout]"

    def other(self, register: Register) -> bool:
        """True if a rank owns other keys than those that the forward pass left."""
        return self.backward and self.keeps and register.value == OWN

    def part(self, part: Slice, tensors: Sequence[str] = STATS, sent: bool = False) -> str:
        """Some pieces and heads of a register, as views unless they are sent."""
        text = self.whole(part.register, tensors)
        if part.heads:
            text = self.heads(text, part, sent)
        where = self.tokens(part)
        return f"tokens({text}, {where})" if where else text

    def heads(self, text: str, part: Slice, sent: bool = False) -> str:
        """Some slices of the heads of tensors, one unless they are sent."""
        assert part.heads
        if part.heads[0] == part.heads[1]:
            return f"heads({text}, {self.slices(part)}, {self.words.number(part.heads[0])})"
        if not sent:
            raise PlanError("several slices of heads are attended at once")
        return f"some_heads({text}, {self.several(part)})"

    def several(self, part: Slice) -> str:
        """The number of slices of heads, and which of these a part has."""
        assert part.heads
        low, high = part.heads
        if high.modulo or high.table:
            raise PlanError("slices of heads that travel go around the ranks")
        ends = (self.words.number(e) for e in (low, replace(high, constant=high.constant + 1)))
        by = f", {part.by}" * (part.by > 1)
        return f"{self.slices(part)}, slice({', '.join(ends)}{by})"

    def slices(self, part: Slice) -> int:
        """The number of slices of the heads of a register."""
        if not (count := self.form.slices[part.register.side]):
            raise PlanError("slices of heads of several sizes travel, or are attended")
        return count

    def tokens(self, part: Slice) -> str:
        """The tokens of a slice, "" for all."""
        if part.pieces is None:
            return ""
        low, high = part.pieces
        if any(e.modulo or e.period > 1 for e in part.pieces):
            raise PlanError("the pieces that a rank attends to go around the ranks")
        unit, count = self.program.unit, self.program.pieces_of(part.register)
        past = Expr(high.constant + 1, high.step, high.axes, 0, high.table)
        side = part.register.side
        first, end = self.in_tokens(low, unit, side), self.in_tokens(past, unit, side)
        if high.table:
            end = f"({self.words.number(high)} + 1) * {self.size(side)}"
        begin = "" if low == Expr() else f"{first}, "
        return f"slice({begin}{'None' if past == Expr(count) else end})"

    def size(self, side: SideName) -> str:
        """The name of the number of tokens of a piece of a side."""
        name = "kv_size" if self.form.unequal and side == "kv" else "size"
        self.used.add(name)
        return name

    def in_tokens(self, e: Expr, unit: int, side: SideName) -> str:
        """A number of pieces as a number of tokens."""
        scaled = e
        if not e.table:
            axes = tuple(a // unit for a in e.axes)
            scaled = Expr(e.constant // unit, e.step // unit, axes)
        elif unit > 1:
            raise PlanError("pieces are listed that are not cut alike")
        if scaled == Expr():
            return "0"
        number, size = self.words.number(scaled), self.size(side)
        if scaled == Expr(1):
            return size
        plain = scaled == Expr(scaled.constant)
        return f"{number} * {size}" if plain else f"({number}) * {size}"

    def narrowed(self, sums: Register) -> str:
        """Complete sums in the dtype of the inputs; a log-sum-exp stays as it is."""
        name = self.names[sums]
        return f"[{name}[0].to(q.dtype), {name}[1]]" if sums.of == "OUT" else f"narrow({name}, q)"

    def joined(self, at: Sequence[str]) -> str:
        """The rank at some coordinates."""
        factors = [prod(self.mesh[n + 1 :]) for n in range(len(at))]
        terms = [
            x if factor == 1 else f"{x} * {factor}" for x, factor in zip(at, factors, strict=True)
        ]
        return " + ".join(terms)

    def here(self) -> tuple[Expr, ...]:
        """The coordinates of the rank itself."""
        return tuple(Expr(0, 0, (*[0] * n, 1)) for n in range(len(self.mesh)))

    def queries(self, q: Slice) -> str:
        """The queries that attends read: in a backward pass with their output."""
        whole = Slice(q.register, None, q.heads)
        if not self.backward:
            return self.part(whole)
        if q.register.value == OWN and not self.keeps:
            text = "[dout, q, out, lse]"
            return self.heads(text, q) if q.heads else text
        name = self.part(whole, ("DOUT",))
        if q.register in self.settled:
            return name
        return f"[*{name}, q, out, lse]" if self.keeps else f"[*with_output({name})]"

    def positions(self, place: Place, side: SideName) -> str:
        """The positions of the tokens at a place."""
        where = self.tokens(Slice(Register(side, OWN), place.pieces))
        text = self.owners(place.at, side, where)
        if None not in place.at:
            return text
        return f"torch.cat([{text}])" + ".sort().values" * place.sort

    def owners(self, at: Sequence[Expr | None], side: SideName, where: str = "") -> str:
        """The positions of the rank at coordinates, or of each along an axis; of some tokens."""
        coordinates, loops = list[str](), list[str]()
        for e, name, size in zip(at, self.axes, self.sizes, strict=True):
            if e is None:
                coordinates.append(name[0])
                loops.append(f" for {name[0]} in range({size})")
                continue
            text = self.words.number(e)
            coordinates.append(text if text == name else f"({text}) % {size}")
        function = "kv_positions" if self.form.apart and side == "kv" else "positions"
        self.used.update(["seq"] if self.form.free else [])
        given = f"{self.joined(coordinates)}{', seq' * self.form.free}"
        cut = f"[{where}]" if where else ""
        return f"{function}({given}){cut}{''.join(loops)}"


def settled(program: Program) -> set[Register]:
    """Visiting queries with their statistics that come to all ranks, and that nobody sends on."""
    ops = [*walk(program.ops)]
    waits = [op for op in ops if isinstance(op, Wait) and op.message.source.register.of == "q"]
    came = {op.into.register for op in waits if "STATS" in op.message.tensors}
    sent = {op.message.source.register for op in ops if isinstance(op, Post | Wait)}
    named = {op.into for op in ops if isinstance(op, Let)}
    return came - sent - named - {op.into.register for op in waits if op.partial}


def kept_along(program: Program) -> int:
    """The axis along which came what a forward pass leaves, queries first, for the backward pass.

    Raises PlanError unless swaps brought it.
    """
    axes = {
        op.message.route.axis
        for op in walk(program.ops)
        if isinstance(op, Wait)
        and op.into.register in program.kept
        and isinstance(op.message.route, Swap)
    }
    if [register.of for register in program.kept] != ["q", "kv"] or len(axes) != 1:
        raise PlanError("the backward pass begins with copies that no all-to-all brought")
    return axes.pop()
