"""Exchanges of all with all as text: gathers, all-to-alls over heads, and the sums' way back."""

import numpy as np

from codegen.lowered.owners import along, pieces_of
from codegen.lowered.shares import Shares, shares_of
from codegen.torch.holdings import listed
from codegen.torch.messages import Messages
from codegen.torch.variables import readers
from planner.errors import PlanError
from planner.loops.form import HELD, OWN, Exchange, Ints, Return
from planner.partitions import Side


class Exchanges(Messages):
    """The part of a pass that exchanges, and the orders of tokens that it needs."""

    def exchange(self, s: Exchange) -> tuple[str, str, str]:
        """An exchange that is started, the name of what it brings, and that after waiting."""
        shares, name = self.shares(s), self.have.names.inputs[s.side, s.name]
        pick = ""
        if shares.every > 1:
            slices = f".unflatten(1, ({shares.slices}, -1))[:, {span(shares)}].flatten(1, 2)"
            one = f".chunk({shares.slices}, 1)[{shares.first}]"
            pick = one if shares.every == shares.slices else slices
        sent = listed(self.have.part(s.tensors, s.part), lambda x: x + pick)
        order = self.ordered(s.side, s.name, s.part.value, s.axis)
        came = listed("wait({})", lambda x: x + order)
        function, how = ("gather", "") if shares.gathered else ("swap", "1, 2, ")
        started = f"{function}({sent}, {how}{self.group(s.axis)})"
        self.defined.add(name)
        return started, "(dout,)" if name == "dout" else name, came

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
        """The text that brings what came into the order of the sequence, "" where it is in it."""
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
            joined = f"torch.cat([positions({member}, seq) for r in range({members})])"
            if order == "tokens":
                both, ordered = self.orders.get("at") == axis, "tokens.to(q.device).sort()"
                lines.append(f"tokens = {joined}")
                lines.append(f"tokens, at = {ordered}" if both else f"tokens = {ordered}.values")
            elif order != "at" or self.orders.get("tokens") != axis:
                lines.append(f"{order} = {joined}.argsort().to(q.device)")
        return lines

    def sum_exchange(self, s: Return, t: int) -> tuple[str, str]:
        """An exchange of sums that is started, and the line that adds what comes."""
        source, into = (s.tensors[0], s.name), self.walked.into[s][t]
        exchange = self.loops.exchanges.get(s.name)
        shares = self.shares(exchange) if exchange else Shares(self.held_by_all(s))
        order = self.ordered(s.side, s.name, self.loops.source(s), s.axis)
        order = order.replace("]", ".argsort()]")
        group, cells, results = self.group(s.axis), self.have.names.cells, s.tensors == ("OUT",)
        name, target = cells[source], cells[into]
        cast = not shares.gathered and (self.walked.complete(into) or shares.every > 1)
        if cast and results:
            self.write(f"{name} = {self.have.cast(source)}")
            cast = False
        sums = listed(self.have.cast(source) if cast else name, lambda x: x + order)
        function, how = "combine" if results else "reduce", "" if shares.gathered else "2, 1, "
        started = f"{function if shares.gathered else 'swap'}({sums}, {how}{group})"
        came = "{}" if shares.gathered and results else "wait({})"
        if shares.every > 1:
            many = shares.slices // shares.every
            part = f".chunk({shares.slices}, 1)[{shares.first}]"
            if many > 1:
                part = f".unflatten(1, ({shares.slices}, -1))[:, {span(shares)}]"
                came = listed(came, lambda x: f"{x}.unflatten(1, ({many}, -1))")
            target = listed(target, lambda x: x + part)
        if self.assigned(into, [t]):
            return started, f"{target} = {came}"
        return started, f"merge(*{target}, *{came})" if results else f"add({target}, {came})"


def span(shares: Shares) -> str:
    """The slices as text."""
    return f"{shares.first or ''}::{shares.every}"


def check_sequence(side: Side, wanted: Ints) -> None:
    """Raise PlanError unless blocks of each rank follow one another in the sequence."""
    first = np.array([min(p.start for p in c) if c else 0 for c in side.chunks])
    last = np.array([max(p[-1] for p in c) if c else 0 for c in side.chunks])
    if (last[wanted[:, :-1]] >= first[wanted[:, 1:]]).any():
        raise PlanError("pieces of what an exchange brings lie between each other")
