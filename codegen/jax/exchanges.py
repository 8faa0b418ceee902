"""Gathers and all-to-alls along an axis of the mesh, and the way back of sums over them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from codegen.lowered.owners import along, pieces_of
from codegen.lowered.shares import Shares, shares_of
from codegen.programs import Program
from codegen.text import Names, entered, expression, numbered
from planner.errors import PlanError
from planner.loops.form import Exchange, Ints, Loops, Part, Return


@dataclass(frozen=True, eq=False)
class Over:
    """Calls over an exchange, there and back, and the constants that these use."""

    s: Exchange
    loops: Loops
    program: Program
    constants: dict[str, str]

    @cached_property
    def shares(self) -> Shares:
        """The heads that each rank gets."""
        return shares_of(self.program.forward, self.loops, self.s)

    @property
    def whole(self) -> bool:
        """True if what goes back is complete, and all that an owner gets."""
        return not self.shares.gathered and self.shares.every == self.shares.copies == 1

    def there(self, source: str, single: bool, names: Names) -> str:
        """A value made of `source`, one array or a tuple of them, in the order of the sequence."""
        shares, x = self.shares, source if single else "x"
        x = x if shares.every == 1 else f"some_heads({x}, {numbers(shares, names)})"
        x = f"jnp.repeat({x}, {shares.copies}, 1)" if shares.copies > 1 else x
        if not shares.gathered:
            each = self.swapped(f"by_heads({x}, axis{self.groups})")
        elif not self.groups and self.order:
            each = f"unshard(lax.all_gather({x}, axis){self.side})"
        else:
            groups = by_name(self.groups)
            each = self.swapped(f"lax.all_gather({x}, axis, axis=2, tiled=True{groups})")
        return each if single else f"tuple({each} for x in {source})"

    def back(self, s: Return, source: str, alone: bool) -> str:
        """Sums that go back, complete ones in the type of the inputs.

        `alone`: outputs without their log-sum-exp.
        """
        copies, gathered = self.shares.copies, self.shares.gathered
        whole = not gathered and copies == 1
        if s.tensors == ("OUT",):
            out, lse = source.split(", ")
            if gathered:  # over some keys each
                parts = ", ".join(self.swapped(x, back=True) for x in (out, lse))
                return f"merged_home({parts}, axis{self.groups})"
            if not whole:
                raise PlanError("outputs of some of the keys come back from several ranks")
            out = self.home(f"{out}.astype(q.dtype)")
            return out if alone else f"{out}, {self.home(lse)}"
        cast = ".astype(dout.dtype)" if whole else ""
        if s.tensors == ("DQ",):
            return self.home(f"{source}{cast}")
        each = self.home(f"x{cast}")
        each = f"sum_of_copies({each}, {copies})" if copies > 1 else each
        return f"tuple({each} for x in {source})"

    def home(self, x: str) -> str:
        """Sums on their way back to the ranks whose tokens they are for."""
        groups, gathered = self.groups, self.shares.gathered
        if gathered and not groups and self.order:
            return f"sum_of_shards({x}, axis{self.side})"
        sums = self.swapped(x, back=True)
        if gathered:
            function, options = "lax.psum_scatter", "scatter_dimension=2, tiled=True"
            return f"{function}({sums}, axis, {options}{by_name(groups)})"
        return f"by_tokens({sums}, axis{groups})"

    @property
    def side(self) -> str:
        """The argument of functions of the layout that tells the side, where sides differ."""
        return ', side="kv"' * (self.s.side == "kv" and not self.program.layout.alike)

    def share(self) -> list[str]:
        """The function that gives the sinks of the heads that a rank gets."""
        if self.s.heads is None:
            raise PlanError("sinks are shared among ranks, their outputs are of all heads")
        mesh, copies, index = self.loops.mesh, self.shares.copies, "lax.axis_index(axis)"
        if len(mesh) > 1:
            index = f"{index} {'%' if self.s.axis else '//'} INNER"
        index = f"({index}) // {copies}" if copies > 1 else index
        return [
            *("", "", "def share_of(sinks, axis):"),
            '    """The sinks of our share of the heads."""',
            f"    return sinks.reshape({mesh[self.s.axis] // copies}, -1)[{index}]",
        ]

    @cached_property
    def groups(self) -> str:
        """The argument of exchanges along an axis of the mesh: the ranks of each group."""
        part, mesh = self.s.part, self.loops.mesh
        if part != Part(part.value):
            raise PlanError("an exchange takes some of the pieces that a rank has")
        if len(mesh) == 1:
            return ""
        name, groups = "ACROSS", "[[*range(r, RANKS, INNER)] for r in range(INNER)]"
        if self.s.axis == 1:
            name = "GROUPS"
            groups = f"[[*range(r, r + {mesh[1]})] for r in range(0, RANKS, {mesh[1]})]"
        self.constants[name] = groups
        return f", {name}"

    def swapped(self, x: str, back: bool = False) -> str:
        """Tokens of a group in the order of the sequence, or back in that of the shards."""
        order = self.order
        if order and back:
            order = entered(self.constants, numbered("BACK"), f"np.argsort({order})")
        return f"in_order({x}, {order})" if order else x

    @cached_property
    def order(self) -> str:
        """The constant that says which pieces of the shards of a group follow each other.

        "" where shards do as they are.
        """
        side, loops, s = self.program.forward.partition.side(self.s.side), self.loops, self.s
        orders = np.argsort(along(pieces_of(side, loops, s.part.value), loops.mesh, s.axis), axis=1)
        if (orders != orders[0]).any():
            raise PlanError("ranks that exchange have their pieces in different orders")
        if np.array_equal(orders[0], np.arange(orders.shape[1])):
            return ""
        text = _zigzag(orders[0], loops.mesh[s.axis])
        if not text or not self.program.layout.equal or len({*side.sizes.tolist()}) > 1:
            raise PlanError("gathered pieces come in an order that follows no formula")
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
