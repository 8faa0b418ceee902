"""Gathers and all-to-alls along an axis of the mesh, and the way back of sums over them."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from codegen.lowered.owners import along, pieces_of
from codegen.lowered.shares import Shares, shares_of
from codegen.programs import Program
from codegen.text import Names, entered, expression, numbered
from planner.errors import PlanError
from planner.loops.form import OWN, Exchange, Ints, Loops, Part, Return


@dataclass
class Exchanges:
    """Calls for the exchanges of a program, and the constants that these use."""

    program: Program
    constants: dict[str, str] = field(default_factory=dict)

    def text(self, s: Exchange, source: str, single: bool, loops: Loops, names: Names) -> str:
        """A value made of `source`, one array or a tuple of them."""
        shares = self.shares(s, loops)
        x = source if single else "x"
        x = x if shares.every == 1 else f"some_heads({x}, {numbers(shares, names)})"
        x = f"jnp.repeat({x}, {shares.copies}, 1)" if shares.copies > 1 else x
        each = self.there(s, x, loops)
        return each if single else f"tuple({each} for x in {source})"

    def whole(self, s: Exchange, loops: Loops) -> bool:
        """True if what goes back over an exchange is complete, and all that an owner gets."""
        shares = self.shares(s, loops)
        return not shares.gathered and shares.every == shares.copies == 1

    def back(self, s: Return, exchange: Exchange, source: str, loops: Loops, alone: bool) -> str:
        """Sums that go back over an exchange, complete ones in the type of the inputs.

        `alone`: outputs without their log-sum-exp.
        """
        home, shares = partial(self.home, exchange, loops), self.shares(exchange, loops)
        copies, whole = shares.copies, not shares.gathered and shares.copies == 1
        if s.tensors == ("OUT",):
            out, lse = source.split(", ")
            if not whole:
                return self.merged(exchange, loops, out, lse)
            out = home(f"{out}.astype(q.dtype)")
            return out if alone else f"{out}, {home(lse)}"
        cast = ".astype(dout.dtype)" if whole else ""
        if s.tensors == ("DQ",):
            return home(f"{source}{cast}")
        each = home(f"x{cast}")
        each = f"sum_of_copies({each}, {copies})" if copies > 1 else each
        return f"tuple({each} for x in {source})"

    def there(self, s: Exchange, x: str, loops: Loops) -> str:
        """An array over an exchange, its tokens in the order of the sequence."""
        groups = self.groups(s, loops)
        if not self.shares(s, loops).gathered:
            return self.swapped(f"by_heads({x}, axis{groups})", s, loops)
        if not groups and self.order(s, loops):
            return f"unshard(lax.all_gather({x}, axis){self.side(s)})"
        return self.swapped(
            f"lax.all_gather({x}, axis, axis=2, tiled=True{by_name(groups)})", s, loops
        )

    def home(self, s: Exchange, loops: Loops, x: str) -> str:
        """Sums back over an exchange to the ranks whose tokens they are for."""
        groups, gathered = self.groups(s, loops), self.shares(s, loops).gathered
        if gathered and not groups and self.order(s, loops):
            return f"sum_of_shards({x}, axis{self.side(s)})"
        sums = self.swapped(x, s, loops, back=True)
        if gathered:
            function, options = "lax.psum_scatter", "scatter_dimension=2, tiled=True"
            return f"{function}({sums}, axis, {options}{by_name(groups)})"
        return f"by_tokens({sums}, axis{groups})"

    def side(self, s: Exchange) -> str:
        """The argument of functions of the layout that tells the side, where sides differ."""
        return ', side="kv"' * (s.side == "kv" and not self.program.layout.alike)

    def merged(self, s: Exchange, loops: Loops, out: str, lse: str) -> str:
        """Outputs over some keys, back from all ranks to the owners of their queries."""
        if not self.shares(s, loops).gathered:
            raise PlanError("outputs over some of the keys that come back from several ranks")
        parts = ", ".join(self.swapped(x, s, loops, back=True) for x in (out, lse))
        return f"merged_home({parts}, axis{self.groups(s, loops)})"

    def share_of(self, s: Exchange, loops: Loops) -> list[str]:
        """The function that gives the sinks of the heads that an exchange brings."""
        if s.heads is None:
            raise PlanError("sinks of outputs that ranks have of all heads")
        copies, index = self.shares(s, loops).copies, "lax.axis_index(axis)"
        if len(loops.mesh) > 1:
            index = f"{index} {'%' if s.axis else '//'} INNER"
        index = f"({index}) // {copies}" if copies > 1 else index
        return [
            *("", "", "def share_of(sinks, axis):"),
            '    """The sinks of our share of the heads."""',
            f"    return sinks.reshape({loops.mesh[s.axis] // copies}, -1)[{index}]",
        ]

    def shares(self, s: Exchange, loops: Loops) -> Shares:
        """The heads that each rank gets."""
        return shares_of(self.program.forward, loops, s)

    def groups(self, s: Exchange, loops: Loops) -> str:
        """The argument of exchanges along an axis of the mesh: the ranks of each group."""
        if s.part != Part(s.part.value) or s.part.value not in {OWN} | loops.exchanges.keys():
            raise PlanError("an exchange of something else than what a rank owns or got by one")
        if len(loops.mesh) == 1:
            return ""
        name, groups = "ACROSS", "[[*range(r, RANKS, INNER)] for r in range(INNER)]"
        if s.axis == 1:
            name, size = "GROUPS", loops.mesh[1]
            groups = f"[[*range(r, r + {size})] for r in range(0, RANKS, {size})]"
        self.constants[name] = groups
        return f", {name}"

    def swapped(self, x: str, s: Exchange, loops: Loops, back: bool = False) -> str:
        """Tokens of a group in the order of the sequence, or back in that of the shards."""
        order = self.order(s, loops)
        if order and back:
            order = entered(self.constants, numbered("BACK"), f"np.argsort({order})")
        return f"in_order({x}, {order})" if order else x

    def order(self, s: Exchange, loops: Loops) -> str:
        """The constant that says which pieces of the shards of a group follow each other.

        "" where shards do as they are.
        """
        side = self.program.forward.partition.side(s.side)
        pieces = pieces_of(side, loops, s.part.value)
        orders = np.argsort(along(pieces, loops.mesh, s.axis), axis=1)
        if (orders != orders[0]).any():
            raise PlanError("an exchange whose groups have their pieces in different orders")
        if np.array_equal(orders[0], np.arange(orders.shape[1])):
            return ""
        text = _zigzag(orders[0], loops.mesh[s.axis])
        if not text or not self.program.layout.equal or len({*side.sizes.tolist()}) > 1:
            raise PlanError("an exchange whose order follows no formula")
        return entered(self.constants, numbered("ORDER"), text)


def by_name(groups: str) -> str:
    """The argument of groups as functions of JAX take it."""
    return groups.replace(", ", ", axis_index_groups=")


def _zigzag(order: Ints, ranks: int) -> str:
    """The order of the halves of shards: first halves, then last ones as they are or backwards.

    "" for other orders of the pieces.
    """
    n, each = 2 * ranks, len(order) // (2 * ranks)
    for last in (range(1, n, 2), range(n - 1, 0, -2)):
        halves = np.array([*range(0, n, 2), *last])
        if np.array_equal(np.add.outer(halves * each, np.arange(each)).ravel(), order):
            return f"(*range(0, {n - 1}, 2), *{last})  # of the pieces of a group"
    return ""


def numbers(shares: Shares, names: Names) -> str:
    """The arguments that tell which heads take part in an exchange of some of them."""
    few = shares.slices != shares.every
    return f"{expression(shares.first, names)}, {shares.every}" + f", {shares.slices}" * few
