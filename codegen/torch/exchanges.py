"""Exchanges of all with all as text: gathers, all-to-alls over heads, and the sums' way back."""

from dataclasses import dataclass

import numpy as np

from codegen.torch.conditions import AXES, SIZES
from codegen.torch.holdings import Holdings
from codegen.torch.variables import returned_from, side_of
from codegen.torch.walk import Cell
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import HELD, OWN, AllToAll, Expr, Gather, Ints, Loops, Return, Scatter
from planner.partitions import Side


@dataclass
class Exchanges:
    """Prints the exchanges of one pass, and the orders of tokens that they need."""

    plan: Plan
    loops: Loops
    have: Holdings

    def __post_init__(self) -> None:
        self.orders: dict[int, str] = {}  # axis -> members

    def group(self, axis: int) -> str:
        """The process group along an axis."""
        return "group" if len(self.loops.mesh) == 1 else f"{AXES[len(self.loops.mesh)][axis]}_group"

    def brought(self, s: Gather | AllToAll) -> str:
        """The line of an exchange."""
        side = side_of(s.tensors)
        if isinstance(s, AllToAll):
            self.check_share(s)
        name = self.have.names.inputs[side, s.name]
        tensors = self.have.part(s.tensors, s.part).strip("[]").split(", ")
        order = "[:, :, order]" if self.ordered(side, s.name, s.part.value, s.axis) else ""

        def each(x: str) -> str:
            if isinstance(s, Gather):
                return f"gather({x}, {self.group(s.axis)}){order}"
            return f"swap({x}, 1, 2, {self.group(s.axis)}){order}"

        if name == "dout":
            return f"dout = {each('dout')}"
        if len(tensors) == 1:
            return f"{name} = [{each(tensors[0])}]"
        return f"{name} = [{each('x')} for x in ({', '.join(tensors)})]"

    def check_share(self, s: AllToAll) -> None:
        """Raise PlanError unless each rank gets as many heads as the next."""
        n = self.loops.mesh[s.axis]
        unit = tuple(int(a == s.axis) for a in range(len(self.loops.mesh)))
        heads = s.share.heads
        plain = s.share.pieces is None and heads is not None and heads[0] == heads[1]
        if (
            not plain
            or heads is None
            or heads[0] not in (Expr(0, 0, unit), Expr(0, 0, unit[: s.axis + 1]))
        ):
            raise PlanError("heads are shared in another order than ranks")
        counts = set(self.plan.partition.side(side_of(s.tensors)).head_counts.tolist())
        slices = len(self.plan.partition.side(side_of(s.tensors)).slices)
        if len(counts) > 1 or slices != n:
            raise PlanError(
                f"{slices} slices of heads among {n} ranks, {sorted(counts)} heads each"
            )

    def ordered(self, side: str, name: str, source: str, axis: int) -> bool:
        """True if what came has to be brought into sequence order; notes the order."""
        blocks = self.plan.partition.side(side)
        table = self.have.walked.tables[side, name][:, :, 0]
        came = np.hstack([self.source(side, source, axis, n) for n in range(self.loops.mesh[axis])])
        chunks, wanted = blocks.chunk[came], blocks.chunk[table]
        if (chunks == wanted).all():
            return False
        if source != OWN or (np.sort(chunks, 1) != np.sort(wanted, 1)).any():
            raise PlanError("what an exchange brings is in an order of its own")
        check_sequence(blocks, wanted)
        if blocks.chunks != self.plan.partition.q.chunks:
            raise PlanError("what an exchange brings of keys has another order than queries")
        self.orders[axis] = side
        return True

    def source(self, side: str, name: str, axis: int, member: int) -> Ints:
        """Returns the blocks that one member of the group along the axis had: [ranks, pieces]."""
        ranks = self.loops.coordinates()[:, :-1].copy()
        ranks[:, axis] = member
        at = np.ravel_multi_index(tuple(ranks.T), self.loops.mesh)
        key = "owned" if name == OWN else name
        table: Ints = self.have.walked.tables[side, key][at][:, :, 0]
        return table

    def order(self) -> list[str]:
        """The lines that define `order`."""
        if not self.orders:
            return []
        if len(self.orders) > 1:
            raise PlanError("exchanges along several axes need several orders")
        (axis,) = self.orders
        names, sizes = AXES[len(self.loops.mesh)], SIZES[len(self.loops.mesh)]
        if len(names) == 1:
            member, members = "r", "RANKS"
        elif axis == len(names) - 1:
            member, members = f"rank - {names[axis]} + r", sizes[axis]
        else:
            member, members = "r", f"{names[1]}, RANKS, {sizes[1]}"
        own = "dout" if self.have.kept else "q"
        return [
            f"tokens = [positions({member}, {own}.shape[2] * RANKS) for r in range({members})]",
            "order = torch.cat(tokens).argsort().to(q.device)",
        ]

    def returned(self, s: Return | Scatter, into: Cell) -> str:
        """The line of sums that go back."""
        if isinstance(s, Return):
            exchange = returned_from(self.loops, s)
            source, gathered = (s.tensors[0], s.exchange), isinstance(exchange, Gather)
            ordered = self.ordered(side_of(s.tensors), s.exchange, exchange.part.value, s.axis)
        else:
            source, gathered = (s.tensors[0], s.part.value), s.same
            ordered = self.ordered(side_of(s.tensors), HELD, OWN, s.axis)
        finished = not gathered and not self.have.accumulates(into)
        order = "[:, :, order.argsort()]" if ordered else ""
        name, group = self.have.names.cells[source], self.group(s.axis)
        cast = {"OUT": "", "DQ": ".to(q.dtype)", "DKV": ".to(k.dtype)"}[s.tensors[0]]

        def each(x: str) -> str:
            return (
                f"reduce({x}{order}, {group})" if gathered else f"swap({x}{order}, 2, 1, {group})"
            )

        if s.tensors == ("OUT",):
            if self.have.accumulates(into) or not self.have.plainly(source):
                raise PlanError("results that are merged after an exchange")
            if gathered:
                each_ordered = f"*(x{order} for x in (out, lse))" if order else "out, lse"
                return f"out, lse = combine({each_ordered}, {group})"
            given = "(out.to(q.dtype), lse)" if finished else "(out, lse)"
            return f"out, lse = ({each('x')} for x in {given})"
        if s.tensors == ("DQ",):
            came = each(f"{name}{cast if finished else ''}")
            return (
                f"{self.have.names.cells[into]} += {came}"
                if self.have.accumulates(into)
                else f"{self.have.names.cells[into]} = {came}"
            )
        came = f"[{each(f'x{cast}' if finished else 'x')} for x in {name}]"
        if self.have.accumulates(into):
            return self.have.arrive(into, came)
        return f"{self.have.names.cells[into]} = {came}"


def check_sequence(side: Side, wanted: Ints) -> None:
    """Raise PlanError unless blocks of each rank follow one another in the sequence."""
    first = np.array([min(p.start for p in c) if c else 0 for c in side.chunks])
    last = np.array([max(p[-1] for p in c) if c else 0 for c in side.chunks])
    if (last[wanted[:, :-1]] >= first[wanted[:, 1:]]).any():
        raise PlanError("pieces of what an exchange brings lie between each other")
