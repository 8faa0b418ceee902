"""Operands   registers, ranks and positions as JAX expressions: what calls are given."""

from collections.abc import Sequence
from typing import ClassVar

from ringloom.codegen.conditions import ranks_of
from ringloom.codegen.expressions import STATS, Expressions
from ringloom.codegen.ir import Exchange, Hop, Message, Place, Register, Slice
from ringloom.codegen.jax.traced import Traced
from ringloom.codegen.words import Words
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import HELD, OWN, Expr
from ringloom.planner.masks.mask import SideName


class Operands(Expressions):
    """The expressions of one pass in JAX."""

    kind = Traced
    cast = "astype"
    causal: ClassVar = {"full": "", "causal": "True", "strict": "True"}
    rolling = False  # True in a loop that is rolled

    @property
    def like(self) -> str:
        """A backward pass may have saved no queries."""
        return self.own[0]

    # ---- words

    def plain(self, axes: Sequence[str]) -> Words:
        """The words of a rank that Python counts, or of none."""
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

    def short(self) -> tuple[str, ...]:
        """Names of coordinates that Python counts."""
        return tuple(name[0] for name in self.axes)

    def over(self, axes: Sequence[int]) -> str:
        """for o in range(OUTER) for i in range(INNER)"""
        return " ".join(f"for {self.axes[n][0]} in range({self.sizes[n]})" for n in axes)

    # ---- registers

    def given(self, *names: str) -> str:
        """Arguments of the pass, or arrays that the forward pass saved."""
        self.used.update(names)
        return f"[{', '.join(names)}]"

    def whole(self, register: Register, tensors: Sequence[str] = STATS) -> str:
        """All of a register; of the queries that a rank owns, these tensors."""
        if register in self.names:
            return self.names[register]
        if register.value == HELD:
            return self.given(*(("held_q",) if register.of == "q" else ("held_k", "held_v")))
        if register.of == "kv":
            return self.given("k", "v")
        if not self.backward:
            return self.given("q")
        if tuple(tensors) == ("DOUT",):
            return self.given("dout")
        return self.given("q", "dout", *(("lse", "delta") if self.form.stats else ("out", "lse")))

    def queries(self, q: Slice) -> str:
        """The queries that attends read: in a backward pass with their output."""
        whole = Slice(q.register, None, q.heads)
        if not (self.backward and "q" in self.keeps):
            return self.part(whole)
        if self.form.stats or q.heads or q.register.value == OWN:
            raise PlanError("queries that the forward pass left are attended with others")
        self.used.update(["held_q", "held_out", "held_lse"])
        return f"[held_q, *{self.part(whole, ('DOUT',))}, held_out, held_lse]"

    def slice_of_heads(self, part: Slice) -> str:
        """The number of slices of heads, and which of them: several are the same on all ranks."""
        low, high = part.heads or (Expr(), Expr())
        if low != high and any(any(e.axes) or e.table or e.modulo for e in (low, high)):
            raise PlanError("which slices of heads travel depends on the rank")
        return super().slice_of_heads(part)

    def tokens(self, part: Slice) -> str:
        """The tokens of a slice, "" for all: the same on all ranks, and in a rolled loop."""
        ends = part.pieces or ()
        if any(any(e.axes) or e.table for e in ends):
            raise PlanError("the pieces that a rank reads depend on the rank")
        if self.words.loop and any(e.step for e in ends) and self.rolling:
            raise PlanError("the pieces that a rank reads change with the step of a rolled loop")
        return super().tokens(part)

    # ---- positions

    def positions(self, place: Place, side: SideName) -> str:
        """The positions of the tokens at a place."""
        where, several = self.tokens(Slice(Register(side, OWN), place.pieces)), place.at.count(None)
        if several > 1 and several < len(self.mesh):
            raise PlanError("a value has the tokens of several axes")
        at = [
            f"jnp.arange({self.sizes[n]})" if e is None else self.coordinate(e, n)
            for n, e in enumerate(place.at)
        ]
        rank = "jnp.arange(RANKS)" if several > 1 else self.joined(at)
        text = self.of_ranks("positions_at", rank, side) + f"[..., {where}]" * bool(where)
        if not several:
            return text
        return f"jnp.sort({text}.reshape(-1))" if place.sort else f"{text}.reshape(-1)"

    def of_ranks(self, function: str, rank: str, side: SideName) -> str:
        """A function of ranks that has a form for keys."""
        self.used.update(["seq"] if self.form.free else [])
        name = f"{'kv_' * (self.form.apart and side == 'kv')}{function}"
        return f"{name}({rank}{', seq' * self.form.free})"

    def order(self, message: Message, back: bool = False) -> str:
        """The order that brings gathered tokens into that of the sequence, or back."""
        of, route = message.exchanged, message.route
        assert of
        assert isinstance(route, Exchange)
        axes = [route.axis]
        each = self.of_ranks("positions", self.joined(self.short()), of.side)
        if of.value != OWN:  # ranks along this axis give what they gathered along another
            axes.append(self.axis_of(of))
            each = f"np.sort(np.concatenate([{each} {self.over(axes[1:])}]))"
        text = f"np.argsort(np.concatenate([{each} {self.over(axes[:1])}]))"
        others = [n for n in range(len(self.mesh)) if n not in axes]
        for n in reversed(others):
            text = f"[{text} {self.over([n])}]"
        if others:
            self.used.update(self.axes[n] for n in others)
            text = f"jnp.array({text})[{', '.join(self.axes[n] for n in others)}]"
        name = self.ordered(message, text)
        return f"{'jnp' if others else 'np'}.argsort({name})" if back else name

    # ---- messages

    def group(self, axis: int) -> str:
        """The axis of the mesh, and the groups along one of several axes of ranks."""
        if len(self.mesh) == 1:
            return "axis"
        others = [n for n in range(len(self.mesh)) if n != axis]
        inner = f"[{self.joined(self.short())} {self.over([axis])}]"
        name = self.constant(f"ALONG_{self.sizes[axis]}", f"[{inner} {self.over(others)}]")
        return f"axis, {name}"

    def hop(self, message: Message, route: Hop, sent: str, other: str = "") -> str:
        """A message between pairs of ranks; `other`: what a rank has to which nothing comes."""
        on, pairs = ranks_of(message.on), self.pairs(message, route)
        if on and message.source.register.of == "OUT":
            return f"exchange_output({sent}, axis, {pairs})"
        return f"exchange({sent}, axis, {pairs}{f', {other}' * bool(on and other)})"

    def pairs(self, message: Message, route: Hop) -> str:
        """Pairs of sender and receiver: a constant, unless these change with the step."""
        on, short, used = ranks_of(message.on), self.short(), "step" in self.used
        self.used.discard("step")
        words = self.plain(short)
        own = self.joined(short)
        other = self.joined(self.far(words, route.by, -1 if message.of_receiver else 1))
        pair = f"({other}, {own})" if message.of_receiver else f"({own}, {other})"
        asked = f" if {words.condition(on)}" if on else ""
        text = f"[{pair} {self.over(range(len(self.mesh)))}{asked}]"
        if "step" in self.used:
            return text
        self.used.update(["step"] * used)
        titles = {Expr(1): "NEXT", Expr(-1): "PREVIOUS"}
        plain = len(route.by) == 1 and not on
        return self.constant(titles.get(route.by[0], "PAIRS") if plain else "PAIRS", text)
