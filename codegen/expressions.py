"""Expressions   prints the calls of a pass and their arguments, as far as targets share them.

Each op is one call of the vocabulary, which all targets share. This module builds arguments from
the names of registers, pieces, heads and places. A target adds messages between pairs of ranks,
token orders, and the names of the arguments of a pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import ClassVar, assert_never

from ringloom.codegen.conditions import Condition
from ringloom.codegen.ir import (
    Attend,
    Exchange,
    Gather,
    Message,
    Op,
    Place,
    Program,
    Reduce,
    Register,
    Slice,
    Swap,
    SwapBack,
    Wait,
    walk,
)
from ringloom.codegen.names import Names, assign_names
from ringloom.codegen.programs import Program as Printed
from ringloom.codegen.words import AXES, SIZES, Data, Words
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import OWN, Expr, Root
from ringloom.planner.masks.mask import SideName

Lines = list[str]
STATS = ("Q", "DOUT", "STATS")
CALLS = {
    "forward": ("merge_attention", "merge_tiles"),
    "backward": ("add_gradients", "add_tile_gradients"),
}


@dataclass(frozen=True)
class Form:
    """Properties of a program that printing depends on.

    `any_length`: it accepts any length. `separate_kv`: keys have their own layout. `slices`: the
    number of head slices per side, 0 if their sizes differ. `unequal_pieces`: pieces of queries and
    keys differ in length. `stats`: the log-sum-exp and delta are sent with queries instead of the
    output. `runs`: pieces of queries are contiguous and equally long. `data` collects named
    numbers, `constants` other named values.
    """

    any_length: bool
    separate_kv: bool
    slices: Mapping[SideName, int]
    unequal_pieces: bool
    sinks: bool
    stats: bool
    runs: bool
    data: Data = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)


def form_of(program: Printed) -> Form:
    """Returns the form of a program."""
    sides: tuple[SideName, ...] = ("q", "kv")
    parts = {side: program.forward.partition.side(side).slices for side in sides}
    slices = {side: len(x) * (len({*map(len, x)}) == 1) for side, x in parts.items()}
    chunks = program.forward.partition.q.chunks
    shapes = {tuple((run.step, len(run)) for run in chunk) for chunk in chunks}
    runs = len(shapes) == 1 and [step for step, _ in shapes.pop()] == [1]
    stats, separate_kv = program.choices["STATS"], program.choices["APART"]
    unequal_pieces, sinks = program.unequal_pieces, program.work.sinks
    return Form(program.any_length, separate_kv, slices, unequal_pieces, sinks, stats, runs)


class Expressions:
    """The expressions of one pass, built from the names of its registers."""

    kind: ClassVar[type[Words]] = Words
    cast = "to"  # the method that converts an array to another dtype
    causal: ClassVar[Mapping[str, str]] = {"full": "False", "causal": "True", "strict": "True"}

    def __init__(self, program: Program, form: Form) -> None:
        self.program, self.form, self.mesh = program, form, program.mesh
        self.axes, self.sizes = AXES[len(self.mesh)], SIZES[len(self.mesh)]
        self.names: Names = assign_names(program)
        self.used = set[str]()
        self.words = self.frame(range(1), False)
        self.backward = program.pass_ == "backward"
        self.keeps = frozenset(register.of for register in program.kept)
        self.orders = dict[str, str]()  # token orders of exchanged values, by name

    # ---- specific to a target

    def lines(self, ops: Sequence[Op]) -> Lines:
        """Prints ops as lines."""
        raise NotImplementedError

    def whole_register(self, register: Register, tensors: Sequence[str] = STATS) -> str:
        """Prints a whole register; `tensors`: those of a rank's own queries."""
        raise NotImplementedError

    def queries(self, q: Slice) -> str:
        """Prints the queries that attends read, with their output in a backward pass."""
        raise NotImplementedError

    def positions(self, place: Place, side: SideName) -> str:
        """Prints the positions of the tokens at a place."""
        raise NotImplementedError

    def group(self, axis: int) -> str:
        """Prints the group of ranks along an axis, as an argument of exchanges."""
        raise NotImplementedError

    def order(self, message: Message, back: bool = False) -> str:
        """Prints the permutation of gathered tokens to sequence order, or back."""
        raise NotImplementedError

    @property
    def own(self) -> tuple[str, str]:
        """The names of arrays with a rank's tokens: queries, keys."""
        return ("dout" if self.backward else "q"), "k"

    @property
    def like(self) -> str:
        """The name of an array with the dtype of the inputs."""
        return "q"

    # ---- words

    def frame(self, steps: range, loop: bool) -> Words:
        """Returns the words for some steps."""
        return self.kind(self.mesh, steps, loop, self.axes, "rank", self.form.data, self.used)

    def ends(self, steps: range, zero: str = "") -> str:
        """Prints the first step (`zero` if it is 0) and the end of a range of steps."""
        ranks = prod(self.mesh)
        names = {ranks: "RANKS", ranks - 1: "RANKS - 1"} if ranks > 3 else {}
        stop = names.get(steps.stop, str(steps.stop))
        return f"{f'{steps.start}, ' if steps.start else zero}{stop}"

    def branches(self, cases: Sequence[tuple[Condition, Op]], words: Words) -> Lines:
        """Prints if ...: elif ...: else: ..."""
        lines = Lines()
        for n, (case, group) in enumerate(groupby(cases, itemgetter(1))):
            conditions = [tests for tests, _ in group]
            texts = [words.condition(tests) for tests in conditions]
            if len(texts) > 1:
                pairs = zip(texts, conditions, strict=True)
                texts = [f"({text})" if len(tests) > 1 else text for text, tests in pairs]
            body, head = self.lines([case]), f"{'el' * (n > 0)}if {' or '.join(texts)}:"
            if not all(texts) and not n:
                return body
            lines += [head if all(texts) else "else:", *indent(body)]
        return lines

    # ---- ranks

    def rank_number(self, at: Sequence[str]) -> str:
        """Prints the rank at some coordinates."""
        factors = [" * ".join(("", *self.sizes[n + 1 :])) for n in range(len(at))]
        return " + ".join(f"{x}{factor}" for x, factor in zip(at, factors, strict=True))

    def own_coordinates(self) -> tuple[Expr, ...]:
        """Returns the coordinates of the rank itself."""
        return tuple(Expr(0, 0, (*[0] * n, 1)) for n in range(len(self.mesh)))

    def coordinate(self, e: Expr, axis: int) -> str:
        """Prints a coordinate along an axis, modulo its size."""
        text, name = self.words.number(e), self.axes[axis]
        return text if text == name else f"({text}) % {self.sizes[axis]}"

    def peer_coordinates(
        self, words: Words, distance: Sequence[Expr], sign: int
    ) -> tuple[str, ...]:
        """Prints the coordinates of the rank at a distance ahead (sign 1) or behind (-1)."""
        texts = list[str]()
        for axis, (e, name, size) in enumerate(zip(distance, words.axes, self.sizes, strict=True)):
            if any(e.axes) or e.table:
                raise PlanError("the distance of a message depends on the rank")
            unit = tuple(int(n == axis) for n in range(len(distance)))
            end = Expr(sign * e.constant, sign * e.step, unit, 0, (), e.period, e.phase)
            number = words.number(end)
            texts.append(name if e == Expr() else f"({number}) % {size}")
        return tuple(texts)

    # ---- registers, and slices of them

    def part(self, part: Slice, tensors: Sequence[str] = STATS, sent: bool = False) -> str:
        """Prints some pieces and heads of a register; `sent`: as copies."""
        text = self.select_heads(part, self.whole_register(part.register, tensors), sent)
        tokens = self.tokens(part)
        return f"tokens({text}, {tokens})" if tokens else text

    def select_heads(self, part: Slice, text: str, sent: bool = False) -> str:
        """Prints the selection of the heads of a slice from arrays."""
        if not part.heads:
            return text
        return f"{'some_' * has_several_heads(part)}heads({text}, {self.slice_of_heads(part)})"

    def slice_of_heads(self, part: Slice) -> str:
        """Prints the number of head slices, and the selected ones."""
        assert part.heads
        count, (low, high) = self.form.slices[part.register.side], part.heads
        if not count:
            raise PlanError("slices of heads that are sent or attended differ in size")
        if not has_several_heads(part):
            return f"{count}, {self.words.number(low)}"
        if high.modulo or high.table:
            raise PlanError("slices of heads that are sent wrap around the ranks")
        ends = (self.words.number(e) for e in (low, replace(high, constant=high.constant + 1)))
        by = f", {part.by}" * (part.by > 1)
        return f"{count}, slice({', '.join(ends)}{by})"

    def tokens(self, part: Slice) -> str:
        """Prints the tokens of a slice, "" for all."""
        if part.pieces is None:
            return ""
        low, high = part.pieces
        if any(e.modulo or e.period > 1 for e in part.pieces):
            raise PlanError("the pieces that a rank attends to wrap around the ranks")
        side, count = part.register.side, self.program.pieces_of(part.register)
        stop = Expr(high.constant + 1, high.step, high.axes, 0, high.table)
        begin = "" if low == Expr() else f"{self.token_count(low, side)}, "
        if high.table:
            end = f"({self.words.number(high)} + 1) * {self.size(side)}"
        else:
            end = "None" if stop == Expr(count) else self.token_count(stop, side)
        return f"slice({begin}{end})"

    def token_count(self, e: Expr, side: SideName) -> str:
        """Prints a number of pieces as a number of tokens."""
        unit, scaled = self.program.unit, e
        if not e.table:
            axes = tuple(a // unit for a in e.axes)
            scaled = Expr(e.constant // unit, e.step // unit, axes)
        elif unit > 1:
            raise PlanError("pieces that a table lists cannot be grouped into larger units")
        number, size = self.words.number(scaled), self.size(side)
        if scaled == Expr(1):
            return size
        return f"{number} * {size}" if scaled == Expr(scaled.constant) else f"({number}) * {size}"

    def size(self, side: SideName) -> str:
        """Returns the name of the piece size of a side, in tokens."""
        name = "kv_size" if self.form.unequal_pieces and side == "kv" else "size"
        self.used.add(name)
        return name

    def lengths(self) -> dict[str, str]:
        """Returns expressions for numbers of tokens, by name."""
        unit = f" * {self.program.unit}" * (self.program.unit > 1)
        counts = (self.program.pieces_of(Register(side, OWN)) for side in ("q", "kv"))
        sizes = (f"{x}.shape[2]{unit} // {n}" for x, n in zip(self.own, counts, strict=True))
        return {
            **dict(zip(("size", "kv_size"), sizes, strict=True)),
            "seq": f"{self.own[0]}.shape[2] * RANKS",
        }

    def narrow(self, sums: Register) -> str:
        """Prints the rounding of complete sums to the input dtype, without log-sum-exps."""
        name = self.names[sums]
        if sums.of == "OUT":
            return f"[{name}[0].{self.cast}({self.like}.dtype), {name}[1]]"
        return f"narrow({name}, {self.like})"

    # ---- messages

    def sent_arrays(self, message: Message) -> str:
        """Prints the arrays that a message sends."""
        if message.complete and not isinstance(message.route, Reduce):
            return self.narrow(message.source.register)
        return self.part(message.source, message.tensors, sent=True)

    def exchange_call(self, message: Message, route: Root | Exchange, sent: str) -> str:
        """Prints the call that starts a message among all ranks along an axis."""
        group, register = self.group(route.axis), message.source.register
        match route:
            case Root(_, root):
                verb = "reduce_to" if register.accumulates else "broadcast"
                return f"{verb}({sent}, {self.words.number(root)}, {group})"
            case Gather():
                return f"gather({sent}, {group})"
            case Swap():
                sent = f"repeat_heads({sent}, {route.copies})" if route.copies > 1 else sent
                return f"swap({sent}, 1, 2, {group})"
            case Reduce() | SwapBack():
                if route.sort:
                    sent = f"tokens({sent}, {self.order(message, back=True)})"
                if isinstance(route, SwapBack):
                    return f"swap({sent}, 2, 1, {group})"
                return (
                    f"swap({sent}, 2, 0, {group})"
                    if register.of == "OUT"
                    else f"reduce({sent}, {group})"
                )
            case _:
                assert_never(route)

    def received_arrays(self, op: Wait, arrays: str) -> str:
        """Prints the received arrays, in the form in which they are bound or added."""
        route = op.message.route
        if isinstance(route, SwapBack) and route.copies > 1:
            return f"add_repeated({arrays}, {route.copies})"
        if isinstance(route, Gather | Swap) and route.sort:
            return f"tokens({arrays}, {self.order(op.message)})"
        return arrays

    def order_name(self, message: Message, text: str) -> str:
        """Returns the name of the token order of an exchange."""
        of, route = message.exchanged, message.route
        assert of
        assert isinstance(route, Exchange)
        name = "order" if len(self.mesh) == 1 else f"order_{route.axis}"
        name = f"{'kv_' * (self.form.separate_kv and of.side == 'kv')}{name}"
        if self.orders.setdefault(name, text) != text:
            raise PlanError("exchanges along one axis bring tokens in two different orders")
        self.used.add(name)
        return name

    def axis_of(self, register: Register) -> int:
        """Returns the axis along which inputs were gathered."""
        for op in walk(self.program.ops):
            if isinstance(op, Wait) and op.into.register == register:
                route, of = op.message.route, op.message.exchanged
                if isinstance(route, Gather | Swap) and of and of.value == OWN:
                    return route.axis
        raise PlanError("an exchange sends tokens that several earlier exchanges received")

    # ---- attends

    def attend_call(self, op: Attend) -> list[str]:
        """Returns a call and its arguments: sums, queries, keys, causality or positions, tokens."""
        call = CALLS[self.program.pass_][op.kind == "tiles"]
        *sums, kv = (self.part(Slice(s.register, None, s.heads)) for s in (*op.sums, op.kv))
        tokens = [("rows", self.tokens(op.q)), ("cols", self.tokens(op.kv))]
        if op.kind == "strict":
            tokens = [("rows", "slice(1, None)"), ("cols", "slice(-1)")]
        if op.kind == "tiles":
            assert op.places
            q_place, kv_place = op.places
            mask = [self.positions(q_place, "q"), self.positions(kv_place, "kv")]
        else:
            mask = [self.causal[op.kind]] if self.causal[op.kind] else []
        arguments = [*sums, self.queries(op.q), kv, *mask]
        return [call, *arguments, *(f"{name}={text}" for name, text in tokens if text)]


def has_several_heads(part: Slice) -> bool:
    """Returns True if a slice has several head slices."""
    return part.heads is not None and part.heads[0] != part.heads[1]


def indent(lines: Iterable[str]) -> Lines:
    """Indents the lines of a block."""
    return [f"    {line}".rstrip() for line in lines]
