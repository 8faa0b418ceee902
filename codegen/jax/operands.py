"""Operands   registers, ranks and positions as JAX expressions, for the arguments of calls."""

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
        """An array with the dtype of the inputs; a backward pass may have no saved queries."""
        return self.own[0]

    # ---- words

    def plain(self, axes: Sequence[str]) -> Words:
        """Returns the words for ranks, and steps, that are Python numbers."""
        words, rank = self.words, self.rank_number(axes)
        return Words(self.mesh, words.steps, words.loop, tuple(axes), rank, words.data, self.used)

    def constant(self, title: str, value: str) -> str:
        """Returns the name of a constant with this value, and defines it if it is new."""
        constants, number = self.form.constants, 1
        name = title
        while constants.setdefault(name, value) != value:
            number += 1
            name = f"{title}_{number}"
        return name

    def short(self) -> tuple[str, ...]:
        """Returns the names of coordinates that are Python numbers."""
        return tuple(name[0] for name in self.axes)

    def over(self, axes: Sequence[int]) -> str:
        """Returns loops over axes, such as `for o in range(OUTER) for i in range(INNER)`."""
        return " ".join(f"for {self.axes[n][0]} in range({self.sizes[n]})" for n in axes)

    # ---- registers

    def arguments(self, *names: str) -> str:
        """Returns a list of arguments of the pass, or of arrays that the forward pass saved."""
        self.used.update(names)
        return f"[{', '.join(names)}]"

    def whole_register(self, register: Register, tensors: Sequence[str] = STATS) -> str:
        """Returns the text of a whole register; for the queries of this rank, of these tensors."""
        if register in self.names:
            return self.names[register]
        if register.value == HELD:
            return self.arguments(*(("held_q",) if register.of == "q" else ("held_k", "held_v")))
        if register.of == "kv":
            return self.arguments("k", "v")
        if not self.backward:
            return self.arguments("q")
        if tuple(tensors) == ("DOUT",):
            return self.arguments("dout")
        return self.arguments(
            "q", "dout", *(("lse", "delta") if self.form.stats else ("out", "lse"))
        )

    def queries(self, q: Slice) -> str:
        """Returns the queries that attends read; in a backward pass, with their output."""
        whole = Slice(q.register, None, q.heads)
        if not (self.backward and "q" in self.keeps):
            return self.part(whole)
        if self.form.stats or q.heads or q.register.value == OWN:
            raise PlanError("queries that the forward pass kept are attended together with others")
        self.used.update(["held_q", "held_out", "held_lse"])
        return f"[held_q, *{self.part(whole, ('DOUT',))}, held_out, held_lse]"

    def slice_of_heads(self, part: Slice) -> str:
        """Returns the number of slices of heads, and the selected one or constant range."""
        low, high = part.heads or (Expr(), Expr())
        if low != high and any(any(e.axes) or e.table or e.modulo for e in (low, high)):
            raise PlanError("the slices of heads in a message depend on the rank")
        return super().slice_of_heads(part)

    def tokens(self, part: Slice) -> str:
        """Returns the tokens of a slice, "" for all; they must not depend on the rank."""
        ends = part.pieces or ()
        if any(any(e.axes) or e.table for e in ends):
            raise PlanError("the pieces that a rank reads depend on the rank")
        if self.words.loop and any(e.step for e in ends) and self.rolling:
            raise PlanError("the pieces that a rank reads change with the step of a rolled loop")
        return super().tokens(part)

    # ---- positions

    def positions(self, place: Place, side: SideName) -> str:
        """Returns the positions of the tokens at a place."""
        tokens, several = (
            self.tokens(Slice(Register(side, OWN), place.pieces)),
            place.at.count(None),
        )
        if several > 1 and several < len(self.mesh):
            raise PlanError("a value has the tokens of ranks along several axes")
        at = [
            f"jnp.arange({self.sizes[n]})" if e is None else self.coordinate(e, n)
            for n, e in enumerate(place.at)
        ]
        rank = "jnp.arange(RANKS)" if several > 1 else self.rank_number(at)
        text = self.of_ranks("positions_at", rank, side) + f"[..., {tokens}]" * bool(tokens)
        if not several:
            return text
        return f"jnp.sort({text}.reshape(-1))" if place.sort else f"{text}.reshape(-1)"

    def of_ranks(self, function: str, rank: str, side: SideName) -> str:
        """Returns a call of a function of ranks that has another name for keys."""
        self.used.update(["seq"] if self.form.any_length else [])
        name = f"{'kv_' * (self.form.separate_kv and side == 'kv')}{function}"
        return f"{name}({rank}{', seq' * self.form.any_length})"

    def order(self, message: Message, back: bool = False) -> str:
        """Returns the index that sorts gathered tokens by position, or its inverse."""
        of, route = message.exchanged, message.route
        assert of
        assert isinstance(route, Exchange)
        axes = [route.axis]
        positions = self.of_ranks("positions", self.rank_number(self.short()), of.side)
        if of.value != OWN:  # ranks send tokens gathered along another axis
            axes.append(self.axis_of(of))
            positions = f"np.sort(np.concatenate([{positions} {self.over(axes[1:])}]))"
        text = f"np.argsort(np.concatenate([{positions} {self.over(axes[:1])}]))"
        others = [n for n in range(len(self.mesh)) if n not in axes]
        for n in reversed(others):
            text = f"[{text} {self.over([n])}]"
        if others:
            self.used.update(self.axes[n] for n in others)
            text = f"jnp.array({text})[{', '.join(self.axes[n] for n in others)}]"
        name = self.order_name(message, text)
        return f"{'jnp' if others else 'np'}.argsort({name})" if back else name

    # ---- messages

    def group(self, axis: int) -> str:
        """Returns the mesh axis and, if ranks have several axes, their groups along one axis."""
        if len(self.mesh) == 1:
            return "axis"
        others = [n for n in range(len(self.mesh)) if n != axis]
        inner = f"[{self.rank_number(self.short())} {self.over([axis])}]"
        name = self.constant(f"ALONG_{self.sizes[axis]}", f"[{inner} {self.over(others)}]")
        return f"axis, {name}"

    def hop(self, message: Message, route: Hop, sent: str, other: str = "") -> str:
        """Returns the call of a message between two ranks; `other`: the value without arrival."""
        on, pairs = ranks_of(message.on), self.pairs(message, route)
        if on and message.source.register.of == "OUT":
            return f"exchange_output({sent}, axis, {pairs})"
        return f"exchange({sent}, axis, {pairs}{f', {other}' * bool(on and other)})"

    def pairs(self, message: Message, route: Hop) -> str:
        """Returns the pairs (sender, receiver), as a constant unless they change with the step."""
        on, short, used = ranks_of(message.on), self.short(), "step" in self.used
        self.used.discard("step")
        words = self.plain(short)
        own = self.rank_number(short)
        other = self.rank_number(
            self.peer_coordinates(words, route.by, -1 if message.of_receiver else 1)
        )
        pair = f"({other}, {own})" if message.of_receiver else f"({own}, {other})"
        condition = f" if {words.condition(on)}" if on else ""
        text = f"[{pair} {self.over(range(len(self.mesh)))}{condition}]"
        if "step" in self.used:
            return text
        self.used.update(["step"] * used)
        titles = {Expr(1): "NEXT", Expr(-1): "PREVIOUS"}
        plain = len(route.by) == 1 and not on
        return self.constant(titles.get(route.by[0], "PAIRS") if plain else "PAIRS", text)
