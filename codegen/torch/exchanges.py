"""Exchanges of all with all as text: gathers, all-to-alls over heads, and the sums' way back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from codegen.lowered.owners import along, pieces_of
from codegen.lowered.shares import Shares, shares_of
from codegen.lowered.walk import Cell
from codegen.text import Names, expression
from codegen.torch.messages import Messages
from codegen.torch.origins import together
from codegen.torch.tensors import Tensors, Text, list_of
from codegen.torch.variables import readers
from planner.errors import PlanError
from planner.loops.form import OWN, Attend, Exchange, Return, Statement


@dataclass(frozen=True)
class Swap:
    """An exchange of a list of tensors in some steps, and what is done with what comes."""

    steps: Sequence[int]
    handle: str
    tensors: Tensors
    start: Text  # with one of the tensors
    finish: Text  # with what was started
    into: Tensors  # what it is assigned or added to
    line: str = "{into} = {came}"
    name: str = "part"  # of what is sent, where it needs one
    before: Sequence[str] = ()

    def named(self) -> "Swap":
        """The same with a name for what is sent."""
        named = f"{self.name} = {self.tensors.text}"
        return replace(self, tensors=Tensors(self.name), before=[*self.before, named])

    def lines(self, room: int, beside: bool) -> tuple[list[str], list[str]]:
        """The lines that start it where attends are `beside`, and those in which it comes."""
        started = self.tensors.each(self.start)
        whole = self.brought(started.each(self.finish), room)
        if not beside and len(whole[-1]) <= room:
            return [], [*self.before, *whole]
        begun = f"{self.handle} = {started.text}"
        if self.tensors.source != self.name and (not beside or len(begun) > room):
            return self.named().lines(room, beside)
        came = self.brought(Tensors(self.handle).each(self.finish), room)
        return [*self.before, begun], came

    def brought(self, came: Tensors, room: int) -> list[str]:
        """The line in which it comes; two where it is too long, and what it is added to no name."""
        if self.into.apart:  # the only tensor of its list
            (name,) = self.into.apart
            return [f"{name} = {came.arguments}" if came.apart else f"({name},) = {came.text}"]
        line = self.line.format(into=self.into.text, came=came.text)
        if len(line) <= room or self.into.plain:
            return [line]
        return [f"part = {self.into.text}", self.line.format(into="part", came=came.text)]

    @property
    def assigns(self) -> bool:
        """True if what comes is a new value."""
        return " = " in self.line


class Exchanges(Messages):
    """The part of a pass that exchanges, and the orders of tokens that it needs."""

    direct = False  # functions return what comes, as nothing is done beside them

    def wait(self, started: str) -> str:
        """The text of what comes for a tensor."""
        return started if self.direct else f"wait({started})"

    def swap(self, s: Exchange | Return, steps: Sequence[int], names: Names) -> Swap:
        """An exchange in some steps."""
        if isinstance(s, Return):
            return self.swap_back(s, steps, names)
        shares, name = self.shares(s), self.have.inputs[s.side, s.name]
        tensors, flat = self.have.part(s.tensors, s.part), shares.every < shares.slices
        if shares.every > 1:
            pick = picked(shares, names) + ".flatten(1, 2)" * flat
            tensors = tensors.each(lambda x: x + pick)
        order = self.ordered(s.side, s.name, s.part.value, s.axis)
        function, how = ("gather", "") if shares.gathered else ("swap", "1, 2, ")
        group, line = self.group(s.axis), "{into} = {came}"
        if "STATS" in s.tensors and readers(self.loops, s) == {Attend}:
            self.have.outputs.add(s.name)
            line = "{into} = with_output({came})"
        self.defined.add(name)
        return Swap(
            steps,
            self.have.handles[s],
            tensors,
            lambda x: f"{function}({x}, {how}{group})",
            lambda x: self.wait(x) + order,
            list_of(name) if name == "dout" else Tensors(name),
            line,
        )

    def shares(self, s: Exchange) -> Shares:
        """The heads that each rank gets; PlanError for those that several ranks get."""
        shares = shares_of(self.plan, self.loops, s)
        if shares.copies > 1:
            raise PlanError(f"heads in {shares.slices} groups are shared among more ranks")
        return shares

    def back(self, s: Return) -> Shares:
        """The heads of which each rank computed sums."""
        exchange = self.loops.exchanges.get(s.name)
        shares = self.shares(exchange) if exchange else Shares(False)
        return shares.after(1 + s.lag)

    def assigned(self, cell: Cell, steps: Sequence[int]) -> Statement | None:
        """The same, but for results of several ranks for our tokens: these are merged."""
        s = super().assigned(cell, steps)
        merged = isinstance(s, Return) and cell[0] == "OUT" and self.back(s).gathered
        return None if merged else s

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
        if (chunks == np.sort(chunks, axis=1)).all() or self.handed(name):
            return ""
        every = before is not None and axis == 0  # groups, one by one
        if not every and source != OWN:
            raise PlanError("gathered pieces come in an order that follows no formula")
        if side == "kv" and not together(self.plan.partition):
            raise PlanError("gathered keys come in another order than queries")
        order = "all_at" if every else "at"
        if self.orders.setdefault(order, axis) != axis:
            raise PlanError("exchanges along several axes bring pieces in different orders")
        return f"[:, :, {order}]"

    def handed(self, value: str) -> Exchange | None:
        """The exchange of what ranks own that brings a value, if only other exchanges read it."""
        s = self.loops.exchanges.get(value)
        passed = s and s.part.value == OWN and readers(self.loops, s) == {Exchange}
        return s if passed else None

    def order(self) -> Iterator[tuple[str, str]]:
        """The orders, names and values."""
        names, sizes = self.axes, self.sizes
        for order, axis in self.orders.items():
            if len(names) == 1 or order == "all_at":
                member, members = "r", "RANKS"
            elif axis == len(names) - 1:
                member, members = f"{names[0]} * {sizes[axis]} + r", sizes[axis]
            else:
                member, members = "r", f"{names[1]}, RANKS, {sizes[1]}"
            each = f"positions({member}{self.of_length})"
            joined = f"torch.cat([{each} for r in range({members})])"
            if order == "tokens" and self.orders.get("at") == axis:
                yield "tokens, at", f"{joined}.sort()"
                yield "at", "at.to(q.device)"
            elif order == "tokens":
                yield order, f"{joined}.sort().values"
            elif order != "at" or self.orders.get("tokens") != axis:
                yield order, f"{joined}.argsort().to(q.device)"

    def swap_back(self, s: Return, steps: Sequence[int], names: Names) -> Swap:
        """An exchange of sums in some steps."""
        source, (into,) = (s.tensors[0], s.name), {*self.walked.into[s].values()}
        shares, before = self.back(s), list[str]()
        order = self.ordered(s.side, s.name, self.loops.source(s), s.axis)
        order = order.replace("]", ".argsort()]")
        group, cells, results = self.group(s.axis), self.have.cells, s.tensors == ("OUT",)
        name, target = cells[source], Tensors(cells[into])
        sent = Tensors(name)
        if not shares.gathered and (self.walked.complete(into) or shares.every > 1):
            sent = self.have.cast(source)
        if self.keep and not self.backward:
            before = [f"{name} = {sent.text}", self.kept_line()]
            sent = Tensors(name)
        function, how = ("reduce", "") if shares.gathered else ("swap", "2, 1, ")
        after = ""
        if shares.every > 1:
            if (many := shares.slices // shares.every) > 1:
                after = f".unflatten(1, ({many}, -1))"
            target = target.each(lambda x: x + picked(shares, names))
        line = "merge(*{into}, *{came})" if results else "add({into}, {came})"
        line = "{into} = {came}" if s == self.assigned(into, steps) else line
        if shares.gathered and results:  # one part after the other
            function, how, after = "swap", "2, 0, ", f".chunk({self.sizes[s.axis]})"
            line = "for part in zip(*{came}, strict=True):\n    merge(*{into}, *part)"
        return Swap(
            steps,
            self.have.handles[s],
            sent.each(lambda x: x + order),
            lambda x: f"{function}({x}, {how}{group})",
            lambda x: self.wait(x) + after,
            target,
            line,
            name,
            before,
        )

    def kept_line(self) -> str:
        """The tensors that the backward pass takes over."""
        q, names = self.keep["q"], self.have.inputs
        queries, kv = names["q", q.name], names["kv", self.keep["kv"].name]
        (results,) = (f"*{x}" for c, x in self.have.cells.items() if c[1] == q.name)
        if self.plan.workload.sinks:
            axis, axes = q.axis, len(self.loops.mesh)
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
    return f".unflatten(1, ({shares.slices}, -1))[:, {first.removeprefix('0')}::{shares.every}]"
