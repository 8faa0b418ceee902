"""Gathers and all-to-alls along an axis of the mesh, and the way back of sums over them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from codegen.jax.words import WIDTH, call
from codegen.layout import Pieces, affine
from codegen.programs import Program
from planner.errors import PlanError
from planner.ir import TENSORS
from planner.loops.form import OWN, AllToAll, Gather, Loops, Part, Return, Scatter
from planner.loops.values import owned
from planner.partitions import Side

Exchange = Gather | AllToAll
NAMES = {Gather: ("gather", "scatter"), AllToAll: ("by_heads", "by_tokens")}
SAID = {
    "gather": "The tokens of all devices{group}, in the order of the sequence.",
    "scatter": "The sums of all devices{group} for our tokens.",
    "by_heads": "From our tokens with all heads to all tokens{group} with our share of the heads.",
    "by_tokens": "From all tokens{group} with our share of the heads to our tokens with all heads.",
}


@dataclass
class Exchanges:
    """The functions for the exchanges of a program: name -> lines; and constants."""

    program: Program
    functions: dict[str, list[str]] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)

    def text(self, s: Exchange, source: str, single: bool, loops: Loops) -> str:
        """A value made of `source`, one array or a tuple of them."""
        there, _ = self.add(s, loops)
        if single:
            return f"{there}({source}, axis)"
        copies = self.copies(s, loops)
        each = f"jnp.repeat(x, {copies}, 1)" if copies > 1 else "x"
        return f"tuple({there}({each}, axis) for x in {source})"

    def back(self, s: Return | Scatter, exchange: Exchange, source: str, loops: Loops) -> str:
        """Sums that go back over an exchange; whole ones in the type of the inputs."""
        _, back = self.add(exchange, loops)
        copies = self.copies(exchange, loops)
        whole = isinstance(exchange, AllToAll) and copies == 1
        if s.tensors == ("OUT",):
            if not whole:
                raise PlanError("outputs over some of the keys that come back from several ranks")
            out, lse = source.split(", ")
            return f"{back}({out}.astype(q.dtype), axis), {back}({lse}, axis)"
        cast = ".astype(q.dtype)" if whole else ""
        if s.tensors == ("DQ",):
            return f"{back}({source}{cast}, axis)"
        each = f"{back}(x{cast}, axis)"
        each = f"sum_of_copies({each}, {copies})" if copies > 1 else each
        return f"tuple({each} for x in {source})"

    def lines(self) -> list[str]:
        """The functions, two empty lines before each."""
        made = (["", "", *lines] for lines in self.functions.values())
        return [line for lines in made for line in lines]

    def copies(self, s: Exchange, loops: Loops) -> int:
        """How many receivers get the same heads. Raises PlanError for other shares than equal."""
        if isinstance(s, Gather):
            return 1
        heads, slices, n = s.share.heads, self._side(s).slices, loops.mesh[s.axis]
        if s.share.pieces or heads is None or heads[0] != heads[1] or heads[0].step:
            raise PlanError("an all-to-all of something else than a slice of the heads")
        at = np.zeros((n, len(loops.mesh) + 1), np.intp)
        at[:, s.axis] = np.arange(n)
        copies, rest = divmod(n, len(slices))
        if rest or len({len(x) for x in slices}) > 1:
            raise PlanError("an all-to-all of head slices that are not equal")
        if not np.array_equal(heads[0].at(0, at), np.arange(n) // copies):
            raise PlanError("an all-to-all whose head slices are not in the order of the ranks")
        return copies

    def reordered(self, s: Exchange, loops: Loops) -> bool:
        """True if what an exchange brings is put into another order than that of the shards."""
        return bool(self._order(s, loops)[0])

    def add(self, s: Exchange, loops: Loops) -> tuple[str, str]:
        """The names of the functions there and back; their lines are kept."""
        if s.part != Part(OWN):
            raise PlanError("an exchange of something else than what a rank owns")
        there, back = NAMES[type(s)]
        group, groups = "", list[str]()
        if len(loops.mesh) > 1:
            group, groups = " of our group", ["axis_index_groups=GROUPS"]
            self._constant("GROUPS", _groups(s.axis, loops.mesh))
        order, disorder = self._order(s, loops)
        if isinstance(s, Gather):
            sent = ["lax.all_gather(", "x", "axis", "axis=2", "tiled=True", *groups]
            home = ["lax.psum_scatter(", "axis", "scatter_dimension=2", "tiled=True", *groups]
        else:
            sent = ["lax.all_to_all(", "x", "axis", "1", "2", "tiled=True", *groups]
            home = ["lax.all_to_all(", "axis", "2", "1", "tiled=True", *groups]
        lines = call(4, f"return {sent[0]}", sent[1:])
        if order:
            text = order.replace("x", f"{sent[0]}{', '.join(sent[1:])})", 1)
            lines = [f"    return {text}"]
            if len(lines[0]) > WIDTH:
                lines = [*call(4, f"x = {sent[0]}", sent[1:]), f"    return {order}"]
        self._keep(there, group, lines)
        self._keep(back, group, call(4, f"return {home[0]}", [disorder or "x", *home[1:]]))
        return there, back

    def _keep(self, name: str, group: str, lines: Sequence[str]) -> None:
        text = [f"def {name}(x, axis):", f'    """{SAID[name].format(group=group)}"""', *lines]
        if self.functions.setdefault(name, text) != text:
            raise PlanError("exchanges of one kind along two axes")

    def _constant(self, name: str, value: str) -> None:
        if self.constants.setdefault(name, value) != value:
            raise PlanError("exchanges along two axes")

    def _side(self, s: Exchange) -> Side:
        return self.program.forward.partition.side(TENSORS[s.tensors[0]].side)

    def _order(self, s: Exchange, loops: Loops) -> tuple[str, str]:
        """Calls that put the shards of a group into the order of the sequence, and back."""
        side, n = self._side(s), loops.mesh[s.axis]
        own = owned(self.program.ranks, side)
        if (own < 0).any():
            raise PlanError("an exchange where some ranks own fewer pieces than others")
        pieces = side.chunk[own[:, :, 0]].reshape(*loops.mesh, -1)
        width = pieces.shape[-1]
        orders = np.argsort(np.moveaxis(pieces, s.axis, -2).reshape(-1, n * width), axis=1)
        if (orders != orders[0]).any():
            raise PlanError("an exchange whose groups have their pieces in different orders")
        plain = np.arange(n * width)
        if np.array_equal(orders[0], plain):
            return "", ""
        if np.array_equal(orders[0], plain.reshape(n, width).T.reshape(-1)):
            return f"transposed(x, {n}, {width})", f"transposed(x, {width}, {n})"
        form = self.program.layout.q if s.tensors[0] != "KV" else self.program.layout.kv
        if len(loops.mesh) > 1 or not isinstance(form, Pieces) or form.members > 1:
            raise PlanError("an exchange whose order follows no formula")
        numbers = [a * r + b for r in range(n) for a, b in form.places]
        if not np.array_equal(orders[0], np.argsort(numbers)):
            raise PlanError("an exchange whose order is not the layout's")
        each = ", ".join(affine(a, b, "r") for a, b in form.places)
        self._constant("PLACES", f"np.argsort([piece for r in range(RANKS) for piece in ({each})])")
        return "in_order(x, PLACES)", "in_order(x, np.argsort(PLACES))"


def _groups(axis: int, mesh: tuple[int, ...]) -> str:
    """The ranks along an axis, group by group."""
    if len(mesh) == 2 and axis == 1:
        return f"[[*range(r, r + {mesh[1]})] for r in range(0, RANKS, {mesh[1]})]"
    if len(mesh) == 2:
        return f"[[*range(r, RANKS, {mesh[1]})] for r in range({mesh[1]})]"
    raise PlanError("an exchange along one of three axes")
