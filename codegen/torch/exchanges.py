"""Exchanges of all with all as text: gathers, all-to-alls over heads, and the sums' way back."""

from collections.abc import Callable

import numpy as np

from codegen.lowered.owners import along, pieces_of
from codegen.lowered.shares import Shares, shares_of
from codegen.lowered.sums import Cell
from codegen.torch.state import State
from planner.errors import PlanError
from planner.loops.form import HELD, OWN, Exchange, Ints, Return
from planner.partitions import Side


class Exchanges(State):
    """The part of a pass that exchanges, and the orders of tokens that it needs."""

    def brought(self, s: Exchange, later: bool) -> tuple[str, str, str]:
        """An exchange that is started, the name of what it brings, and that after waiting.

        Where it is not waited for `later` there is only the last, which does it all.
        """
        side = s.side
        shares = self.shares(s)
        name = self.have.names.inputs[side, s.name]
        tensors = self.have.part(s.tensors, s.part)
        order = self.ordered(side, s.name, s.part.value, s.axis)
        order = f"[:, :, {order}]" if order else ""
        swaps, group = not shares.gathered, self.group(s.axis)
        if later:
            verb, how = ("swapping", "1, 2, ") if swaps else ("gathering", "")
            sent = listed(tensors, lambda x: f"{x}{picked(shares)}")
            came = f"[x{order} for x in {{}}]" if order else "{}"
            if name == "dout":
                raise PlanError("gradients of results come beside attends")
            return f"{verb}({sent}, {how}{group})", name, came

        def each(x: str) -> str:
            x = f"{x}{picked(shares)}"
            return (f"swap({x}, 1, 2, {group})" if swaps else f"gather({x}, {group})") + order

        if name == "dout":
            return "", name, each("dout")
        return "", name, listed(tensors, each)

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
        """The name of the order that brings what came into sequence order, "" where it is in it."""
        blocks = self.plan.partition.side(side)
        chunks = along(pieces_of(blocks, self.loops, source), self.loops.mesh, axis)
        wanted = np.sort(chunks, axis=1)
        if name == HELD:
            wanted = blocks.chunk[self.walked.tables[side, HELD][:, :, 0]]
        if (chunks == wanted).all():
            return ""
        every = source != OWN and axis == 0 and len(self.loops.mesh) == 2  # groups, one by one
        if not (every or source == OWN) or (np.sort(chunks, 1) != np.sort(wanted, 1)).any():
            raise PlanError("what an exchange brings is in an order of its own")
        check_sequence(blocks, wanted)
        if blocks.chunks != self.plan.partition.q.chunks:
            raise PlanError("what an exchange brings of keys has another order than queries")
        order = "all_order" if every else "order"
        if self.orders.setdefault(order, axis) != axis:
            raise PlanError("exchanges along several axes need several orders")
        return order

    def order(self, seq: str) -> list[str]:
        """The lines that define the orders; `seq`: the length of the sequence."""
        names, sizes, lines = self.axes, self.sizes, list[str]()
        for order, axis in self.orders.items():
            joined = "torch.cat(tokens)"
            if len(names) == 1 or order == "all_order":
                member, members = "r", "RANKS"
            elif axis == len(names) - 1:
                member, members = f"rank - {names[axis]} + r", sizes[axis]
            else:
                member, members = "r", f"{names[1]}, RANKS, {sizes[1]}"
            if order == "all_order":  # each group has its own tokens in order
                joined = f"{joined}.view({sizes[0]}, -1).sort(1).values.flatten()"
            lines += [
                f"tokens = [positions({member}, {seq}) for r in range({members})]",
                f"{order} = {joined}.argsort().to(q.device)",
            ]
        return lines

    def returned(self, s: Return, into: Cell, later: bool) -> tuple[str, list[str]]:
        """An exchange that is started, if it is waited for `later`, and the lines that add it."""
        source, exchange = (s.tensors[0], s.name), self.loops.exchanges.get(s.name)
        shares = self.shares(exchange) if exchange else Shares(self.held_by_all(s))
        order = self.ordered(s.side, s.name, self.loops.source(s), s.axis)
        order = f"[:, :, {order}.argsort()]" if order else ""
        reduces, complete = shares.gathered, self.walked.complete(into)
        name, group = self.have.names.cells[source], self.group(s.axis)
        if later and shares.every == 1:
            raise PlanError("sums go back beside attends")
        if shares.every > 1:
            if not complete:
                raise PlanError("sums of some heads are added to others")
            if reduces and s.tensors == ("OUT",):
                raise PlanError("results of some heads are merged")
            sums = self.have.message(source) if reduces else self.have.cast(source)
            sent = f"[x{order} for x in {sums}]" if order else sums
            started = (
                f"reducing({sent}, {group})" if reduces else f"swapping({sent}, 2, 1, {group})"
            )
            return started, self.placed(into, shares)
        finished = not reduces and complete
        cast = {"OUT": "", "DQ": ".to(q.dtype)", "DKV": ".to(k.dtype)"}[s.tensors[0]]

        def each(x: str) -> str:
            return f"reduce({x}{order}, {group})" if reduces else f"swap({x}{order}, 2, 1, {group})"

        if s.tensors == ("OUT",):
            if self.walked.accumulates(into) or not self.have.plainly(source):
                raise PlanError("results that are merged after an exchange")
            if reduces:
                each_ordered = f"*(x{order} for x in (out, lse))" if order else "out, lse"
                return "", [f"out, lse = combine({each_ordered}, {group})"]
            given = "(out.to(q.dtype), lse)" if finished else "(out, lse)"
            return "", [f"out, lse = ({each('x')} for x in {given})"]
        if s.tensors == ("DQ",):
            came = each(f"{name}{cast if finished else ''}")
            sign = "+=" if self.walked.accumulates(into) else "="
            return "", [f"{self.have.names.cells[into]} {sign} {came}"]
        came = f"[{each(f'x{cast}' if finished else 'x')} for x in {name}]"
        if self.walked.accumulates(into):
            return "", [self.have.arrive(into, came)]
        return "", [f"{self.have.names.cells[into]} = {came}"]

    def placed(self, into: Cell, shares: Shares) -> list[str]:
        """The lines that put what came in its place among the sums of a rank."""
        total = f"total.unflatten(1, ({shares.slices}, -1))[:, {span(shares)}]"
        many = shares.slices // shares.every
        share = f"share.unflatten(1, ({many}, -1))"
        if many == 1:
            total, share = f"total{picked(shares)}[:]", "share"
        head = f"for total, share in zip({self.have.totals(into)}, {{}}, strict=True):"
        return [head, f"    {total} = {share}"]


def picked(shares: Shares) -> str:
    """The text behind a tensor that takes the heads of one exchange; "" for all."""
    if shares.every == 1:
        return ""
    if shares.every == shares.slices:
        return f".chunk({shares.slices}, 1)[{shares.first}]"
    return f".unflatten(1, ({shares.slices}, -1))[:, {span(shares)}].flatten(1, 2)"


def span(shares: Shares) -> str:
    """The slices as text."""
    return f"{shares.first or ''}::{shares.every}"


def listed(tensors: str, each: Callable[[str], str]) -> str:
    """A list of the same of each tensor of a list, or of a value that is one."""
    names = tensors.strip("[]").split(", ")
    if not tensors.startswith("["):
        return tensors if each("x") == "x" else f"[{each('x')} for x in {tensors}]"
    if len(names) == 1 or each("x") == "x":
        return f"[{', '.join(map(each, names))}]"
    return f"[{each('x')} for x in ({', '.join(names)})]"


def check_sequence(side: Side, wanted: Ints) -> None:
    """Raise PlanError unless blocks of each rank follow one another in the sequence."""
    first = np.array([min(p.start for p in c) if c else 0 for c in side.chunks])
    last = np.array([max(p[-1] for p in c) if c else 0 for c in side.chunks])
    if (last[wanted[:, :-1]] >= first[wanted[:, 1:]]).any():
        raise PlanError("pieces of what an exchange brings lie between each other")
