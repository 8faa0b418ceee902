"""Exchanges of all with all as text: gathers, all-to-alls over heads, and the sums' way back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codegen.lowered.owners import along, pieces_of
from codegen.lowered.shares import Shares, shares_of
from codegen.text import Names, expression
from codegen.torch.holdings import listed
from codegen.torch.messages import Messages
from codegen.torch.variables import readers
from planner.errors import PlanError
from planner.loops.form import HELD, OWN, Attend, Exchange, Ints, Return, Statement
from planner.partitions import Side


@dataclass(frozen=True)
class Swap:
    """An exchange in some steps: what starts it, and the line that waits for it, in {}."""

    steps: Sequence[int]
    handle: str
    started: str
    line: str
    before: Sequence[str] = ()


class Exchanges(Messages):
    """The part of a pass that exchanges, and the orders of tokens that it needs."""

    def swap(self, s: Exchange | Return, steps: Sequence[int], names: Names) -> Swap:
        """An exchange in some steps."""
        if isinstance(s, Return):
            return self.swap_back(s, steps, names)
        shares, name = self.shares(s), self.have.names.inputs[s.side, s.name]
        pick = ""
        if shares.every > 1:
            pick = picked(shares, names) + ".flatten(1, 2)" * (shares.every < shares.slices)
        sent = listed(self.have.part(s.tensors, s.part), lambda x: x + pick)
        order = self.ordered(s.side, s.name, s.part.value, s.axis)
        came = listed("wait({})", lambda x: x + order)
        function, how = ("gather", "") if shares.gathered else ("swap", "1, 2, ")
        started = f"{function}({sent}, {how}{self.group(s.axis)})"
        self.defined.add(name)
        line = f"{'(dout,)' if name == 'dout' else name} = {came}"
        return Swap(steps, self.have.names.handles[s], started, line)

    def shares(self, s: Exchange) -> Shares:
        """The heads that each rank gets; PlanError for those that several ranks get."""
        shares = shares_of(self.plan, self.loops, s)
        if shares.copies > 1:
            raise PlanError(f"{shares.slices} slices of heads are shared among more ranks")
        return shares

    def held_by_all(self, s: Return) -> bool:
        """True if all ranks along an axis hold the same blocks."""
        table = self.walked.tables[s.side, HELD]
        cube = table.reshape(*self.loops.mesh, -1)
        return bool((cube == cube.take([0], axis=s.axis)).all())

    def ordered(self, side: str, name: str, source: str, axis: int) -> str:
        """The text that brings what came into the order of the sequence, "" where it is in it.

        Where all attends are of whole values no order matters.
        """
        if all(map(entire, (s for form in self.forms for s in form.statements))):
            return ""
        blocks, mesh = self.plan.partition.side(side), self.loops.mesh
        before = self.handed(source)
        chunks = pieces_of(blocks, self.loops, OWN if before else source)
        chunks = along(along(chunks, mesh, before.axis) if before else chunks, mesh, axis)
        wanted = np.sort(chunks, axis=1)
        if name == HELD:
            wanted = blocks.chunk[self.walked.tables[side, HELD][:, :, 0]]
        if (chunks == wanted).all() or self.handed(name):
            return ""
        every = before is not None and axis == 0 and len(mesh) == 2  # groups, one by one
        if not (every or source == OWN) or (np.sort(chunks, 1) != np.sort(wanted, 1)).any():
            raise PlanError("what an exchange brings is in an order of its own")
        check_sequence(blocks, wanted)
        if blocks.chunks != self.plan.partition.q.chunks:
            raise PlanError("what an exchange brings of keys has another order than queries")
        order = "all_at" if every else "at"
        if self.orders.setdefault(order, axis) != axis:
            raise PlanError("exchanges along several axes need several orders")
        return f"[:, :, {order}]"

    def handed(self, value: str) -> Exchange | None:
        """The exchange of what ranks own that brings a value, if only other exchanges read it."""
        s = self.loops.exchanges.get(value)
        passed = s and s.part.value == OWN and readers(self.loops, s) == {Exchange}
        return s if passed else None

    def order(self) -> list[str]:
        """The lines that define the orders."""
        names, sizes, lines = self.axes, self.sizes, list[str]()
        for order, axis in self.orders.items():
            if len(names) == 1 or order == "all_at":
                member, members = "r", "RANKS"
            elif axis == len(names) - 1:
                member, members = f"rank - {names[axis]} + r", sizes[axis]
            else:
                member, members = "r", f"{names[1]}, RANKS, {sizes[1]}"
            each = f"positions({member}{self.of_length})"
            joined = f"torch.cat([{each} for r in range({members})])"
            if order == "tokens":
                both = self.orders.get("at") == axis
                lines.append(
                    f"tokens, at = {joined}.sort()" if both else f"tokens = {joined}.sort().values"
                )
                lines += ["at = at.to(q.device)"] * both
            elif order != "at" or self.orders.get("tokens") != axis:
                lines.append(f"{order} = {joined}.argsort().to(q.device)")
        return lines

    def swap_back(self, s: Return, steps: Sequence[int], names: Names) -> Swap:
        """An exchange of sums in some steps."""
        source, (into,) = (s.tensors[0], s.name), {*self.walked.into[s].values()}
        exchange, before = self.loops.exchanges.get(s.name), list[str]()
        shares = self.shares(exchange) if exchange else Shares(self.held_by_all(s))
        shares = shares.after(1 + s.lag.constant)
        order = self.ordered(s.side, s.name, self.loops.source(s), s.axis)
        order = order.replace("]", ".argsort()]")
        group, cells, results = self.group(s.axis), self.have.names.cells, s.tensors == ("OUT",)
        name, target = cells[source], cells[into]
        cast = not shares.gathered and (self.walked.complete(into) or shares.every > 1)
        if cast and results:
            before, cast = [f"{name} = {self.have.cast(source)}"], False
        sums = listed(self.have.cast(source) if cast else name, lambda x: x + order)
        function, how = "combine" if results else "reduce", "" if shares.gathered else "2, 1, "
        started = f"{function if shares.gathered else 'swap'}({sums}, {how}{group})"
        came = "{}" if shares.gathered and results else "wait({})"
        if shares.every > 1:
            if (many := shares.slices // shares.every) > 1:
                came = listed(came, lambda x: f"{x}.unflatten(1, ({many}, -1))")
            target = listed(target, lambda x: x + picked(shares, names))
        if self.keep.names and not self.backward:
            before.append(self.kept_line())
        line = f"merge(*{target}, *{came})" if results else f"add({target}, {came})"
        line = f"{target} = {came}" if self.assigned(into, steps) else line
        return Swap(steps, self.have.names.handles[s], started, line, before)

    def kept_line(self) -> str:
        """The tensors that the backward pass takes over."""
        assert self.keep.q
        assert self.keep.kv
        names = self.have.names.inputs
        queries, kv = names["q", self.keep.q.name], names["kv", self.keep.kv.name]
        (results,) = (f"*{x}" for c, x in self.have.names.cells.items() if c[1] == self.keep.q.name)
        if self.plan.workload.sinks:
            axis, axes = self.keep.q.axis, len(self.loops.mesh)
            place = "group.rank()" if axes == 1 else self.axes[axis]
            results = f"*sunk({results}, sinks.chunk({self.sizes[axis]})[{place}])"
        return f"kept = [*{queries}, *{kv}, {results}]"


def entire(s: Statement) -> bool:
    """True unless it attends a part of a rectangle."""
    parts = (*s.q, *s.kv) if isinstance(s, Attend) else ()
    return all(p.pieces is None for p in parts) and getattr(s, "kind", "full") == "full"


def picked(shares: Shares, names: Names) -> str:
    """The text behind a tensor that takes one slice of its heads, or several beside each other."""
    first = expression(shares.first, names)
    if shares.every == shares.slices:
        return f".chunk({shares.slices}, 1)[{first}]"
    span = f"{first} :: " if " " in first else f"{first.removeprefix('0')}::"
    return f".unflatten(1, ({shares.slices}, -1))[:, {span}{shares.every}]"


def check_sequence(side: Side, wanted: Ints) -> None:
    """Raise PlanError unless blocks of each rank follow one another in the sequence."""
    first = np.array([min(p.start for p in c) if c else 0 for c in side.chunks])
    last = np.array([max(p[-1] for p in c) if c else 0 for c in side.chunks])
    if (last[wanted[:, :-1]] >= first[wanted[:, 1:]]).any():
        raise PlanError("pieces of what an exchange brings lie between each other")
