"""Operands   registers, slices and positions as JAX expressions: what calls are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from codegen.ir import Place, Program, Register, Slice
from codegen.jax.traced import Traced
from codegen.names import Names, named
from codegen.words import AXES, SIZES, Data, Words
from planner.errors import PlanError
from planner.loops.form import HELD, OWN, Expr
from planner.masks.mask import SideName

STATS = ("Q", "DOUT", "STATS")


@dataclass(frozen=True)
class Form:
    """The form of a program: `free` of its length, with keys `apart` from queries.

    `slices` counts those of the heads of a side, 0 where they are unequal; `stats` says that
    log-sum-exp and delta travel with queries, not their output. `data` gets the numbers that have
    names, `constants` other values. `unequal`: pieces of queries and of keys are of different
    lengths. `runs`: pieces of queries are of one length, their tokens follow each other.
    """

    free: bool
    apart: bool
    slices: Mapping[SideName, int]
    stats: bool
    unequal: bool = False
    runs: bool = False
    data: Data = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)


class Operands:
    """The expressions of one pass, by the names of its registers."""

    def __init__(self, program: Program, form: Form) -> None:
        self.program, self.form, self.mesh = program, form, program.mesh
        self.axes, self.sizes = AXES[len(self.mesh)], SIZES[len(self.mesh)]
        self.names: Names = named(program)
        self.used = set[str]()
        self.words: Words = self.frame(range(1), False)
        self.backward = program.pass_ == "backward"
        self.keeps = frozenset(register.of for register in program.kept)
        self.orders = dict[str, str]()  # of what exchanges bring, by name

    # ---- words

    def frame(self, steps: range, loop: bool) -> Words:
        """The words of some steps, of a rank that is traced."""
        return Traced(self.mesh, steps, loop, self.axes, "rank", self.form.data, self.used)

    def plain(self, axes: Sequence[str]) -> Words:
        """The same of a rank that Python counts, or of none."""
        words, rank = self.words, self.joined(axes)
        return Words(self.mesh, words.steps, words.loop, tuple(axes), rank, words.data, self.used)

    def constant(self, title: str, value: str) -> str:
        """The name of a value that is the same in all steps."""
        constants, number = self.form.constants, 1
        name = title
        while constants.setdefault(name, value) != value:
            number += 1
            name = f"{title}_{number}"
        return name

    def joined(self, at: Sequence[str]) -> str:
        """The rank at some coordinates."""
        factors = [" * ".join(("", *self.sizes[n + 1 :])) for n in range(len(at))]
        return " + ".join(f"{x}{factor}" for x, factor in zip(at, factors, strict=True))

    def short(self) -> tuple[str, ...]:
        """Names of coordinates that Python counts."""
        return tuple(name[0] for name in self.axes)

    def over(self, short: Sequence[str]) -> str:
        """for o in range(OUTER) for i in range(INNER)"""
        sizes = dict(zip(self.short(), self.sizes, strict=True))
        return " ".join(f"for {x} in range({sizes[x]})" for x in short)

    # ---- registers

    def own(self, *names: str) -> str:
        """Arguments of the pass, or arrays that the forward pass saved."""
        self.used.update(names)
        return f"[{', '.join(names)}]"

    def whole(self, register: Register, tensors: Sequence[str] = STATS) -> str:
        """All of a register; of the queries that a rank owns, these tensors."""
        if register in self.names:
            return self.names[register]
        if register.value == HELD:
            return self.own("held_q") if register.of == "q" else self.own("held_k", "held_v")
        if register.of == "kv":
            return self.own("k", "v")
        if not self.backward:
            return self.own("q")
        if tuple(tensors) == ("DOUT",):
            return self.own("dout")
        return self.own("q", "dout", *self.rest)

    @property
    def rest(self) -> tuple[str, ...]:
        """The arrays that attends need beside queries and their gradients."""
        return ("lse", "delta") if self.form.stats else ("out", "lse")

    def queries(self, q: Slice) -> str:
        """The queries that attends read: in a backward pass with their output."""
        whole = Slice(q.register, None, q.heads)
        if not (self.backward and "q" in self.keeps):
            return self.part(whole)
        if self.form.stats or q.heads or q.register.value == OWN:
            raise PlanError("queries that the forward pass left are attended with others")
        held, out, lse = "held_q", "held_out", "held_lse"
        self.used.update([held, out, lse])
        return f"[{held}, *{self.part(whole, ('DOUT',))}, {out}, {lse}]"

    def part(self, part: Slice, tensors: Sequence[str] = STATS) -> str:
        """Some pieces and heads of a register."""
        text, where = self.of_heads(part, self.whole(part.register, tensors)), self.tokens(part)
        return f"tokens({text}, {where})" if where else text

    def of_heads(self, part: Slice, text: str) -> str:
        """The heads of a slice of some arrays."""
        if not part.heads:
            return text
        return f"{'some_' * self.several(part)}heads({text}, {self.slice_of_heads(part)})"

    def several(self, part: Slice) -> bool:
        """True if a part has several slices of the heads."""
        return part.heads is not None and part.heads[0] != part.heads[1]

    def slice_of_heads(self, part: Slice) -> str:
        """The number of slices of heads, and which of them are meant."""
        assert part.heads
        count, (low, high) = self.form.slices[part.register.side], part.heads
        if not count:
            raise PlanError("slices of heads have different numbers of heads")
        if not self.several(part):
            return f"{count}, {self.words.number(low)}"
        if any(any(e.axes) or e.table or e.modulo for e in (low, high)):
            raise PlanError("which slices of heads travel depends on the rank")
        by = f", {part.by}" * (part.by > 1)
        end = replace(high, constant=high.constant + 1)
        return f"{count}, slice({self.words.number(low)}, {self.words.number(end)}{by})"

    # ---- tokens

    def tokens(self, part: Slice) -> str:
        """The tokens of a slice, "" for all."""
        if part.pieces is None:
            return ""
        low, high = part.pieces
        if any(any(e.axes) or e.table or e.modulo or e.period > 1 for e in part.pieces):
            raise PlanError("the pieces that a rank reads depend on the rank")
        if self.words.loop and any(e.step for e in part.pieces) and self.rolling:
            raise PlanError("the pieces that a rank reads change with the step of a rolled loop")
        unit, count = self.program.unit, self.program.pieces_of(part.register)
        past, side = Expr(high.constant + 1, high.step), part.register.side
        begin = "" if low == Expr() else f"{self.in_tokens(low, unit, side)}, "
        end = "None" if past == Expr(count) else self.in_tokens(past, unit, side)
        return f"slice({begin}{end})"

    rolling = False  # True in a loop that is rolled

    def in_tokens(self, e: Expr, unit: int, side: SideName) -> str:
        """A number of pieces as a number of tokens."""
        size = "kv_size" if self.form.unequal and side == "kv" else "size"
        self.used.update([size, "k"] if size == "kv_size" else [size])
        number = Expr(e.constant // unit, e.step // unit)
        if number == Expr(1):
            return size
        text = self.words.number(number)
        return f"({text}) * {size}" if number.step else f"{text} * {size}"

    def here(self) -> tuple[Expr, ...]:
        """The coordinates of the rank itself."""
        return tuple(Expr(0, 0, (*[0] * n, 1)) for n in range(len(self.mesh)))

    def positions(self, place: Place, side: SideName) -> str:
        """The positions of the tokens at a place."""
        coordinates, several = list[str](), place.at.count(None)
        for e, name, size in zip(place.at, self.axes, self.sizes, strict=True):
            if e is None:
                coordinates.append(f"jnp.arange({size})")
                continue
            text = self.words.number(e)
            self.used.add(name)
            coordinates.append(text if text == name else f"({text}) % {size}")
        if several > 1 and several < len(self.mesh):
            raise PlanError("a value has the tokens of several axes")
        at = "jnp.arange(RANKS)" if several > 1 else self.joined(coordinates)
        keys = self.form.apart and side == "kv"
        self.used.update(["seq"] if self.form.free else [])
        text = f"{'kv_' * keys}positions_at({at}{', seq' * self.form.free})"
        if where := self.tokens(Slice(Register(side, OWN), place.pieces)):
            text += f"[..., {where}]"
        if not several:
            return text
        return f"jnp.sort({text}.reshape(-1))" if place.sort else f"{text}.reshape(-1)"

    def positions_of(self, axes: Sequence[str], side: SideName) -> str:
        """The positions of the tokens on a rank that Python counts."""
        keys = self.form.apart and side == "kv"
        self.used.update(["seq"] if self.form.free else [])
        rank = self.joined(axes)
        return f"{'kv_' * keys}positions({rank}{', seq' * self.form.free})"

    def narrowed(self, sums: Register) -> str:
        """Complete sums in the type of the inputs; a log-sum-exp stays as it is."""
        name, like = self.names[sums], "dout" if self.backward else "q"
        if sums.of == "OUT":
            return f"[{name}[0].astype({like}.dtype), {name}[1]]"
        return f"narrow({name}, {like})"

    def size(self, side: SideName) -> str:
        """The number of tokens of a unit of pieces."""
        own = self.program.pieces_of(Register(side, OWN))
        unit = f" * {self.program.unit}" * (self.program.unit > 1)
        array = "k" if side == "kv" else "dout" if self.backward else "q"
        return f"{array}.shape[2]{unit} // {own}"

    def piece(self) -> str:
        """The number of tokens of one piece of queries."""
        own = self.program.pieces_of(Register("q", OWN))
        return f"{'dout' if self.backward else 'q'}.shape[2]{f' // {own}' * (own > 1)}"

    def ranks(self) -> str:
        """The number of ranks, by its name where there are some."""
        return "RANKS" if prod(self.mesh) > 3 else str(prod(self.mesh))
