"""The attends of a step as text: cases of whole rectangles, or all that the mask leaves."""

from dataclasses import replace

import numpy as np

from codegen.lowered.conditions import Domain, both, needed, times
from codegen.lowered.sums import Cell
from codegen.reflow import WIDTH
from codegen.torch.frames import Frame
from codegen.torch.holdings import listed
from codegen.torch.origins import (
    Attended,
    called,
    check_everything,
    origin,
    single_runs,
    triangular,
)
from codegen.torch.state import Lines, State, indented, tupled
from codegen.torch.tiles import Meeting
from planner.errors import PlanError
from planner.ir import ACCUMULATORS
from planner.loops.form import OWN


class Attending(State):
    """The part of a pass that attends."""

    def cell(self, meeting: Meeting, tensor: str) -> Cell:
        """The cell that a meeting adds to."""
        targets, steps = self.walked.targets, meeting.domain.steps
        cells = {to[tensor] for s in meeting.attends for t, to in targets[s].items() if t in steps}
        if len(cells) > 1:
            raise PlanError(f"{tensor} of one rectangle is added to several values")
        return cells.pop()

    def attend(self, meeting: Meeting, frame: Frame) -> Lines:
        """Attend, and add to sums what is seen."""
        when = ""
        if self.pick(meeting) or not meeting.plain:  # all lines under one condition
            meeting = replace(meeting, domain=Domain(self.loops, meeting.steps))
            when = both(times(meeting.steps, frame, meeting.names))
        self.margin += 4 * bool(when)
        asked, lines = self.meet(meeting)
        self.margin -= 4 * bool(when)
        return when or asked, lines

    def meet(self, meeting: Meeting) -> Lines:
        """The lines that attend."""
        (q, kv), pick = meeting.values, self.pick(meeting)
        sums = [self.have.names.cells[self.cell(meeting, t)] for t in ACCUMULATORS[self.plan.pass_]]
        lines, queries, kv = list[str](), self.have.queries(q), self.have.value("kv", kv)
        if pick:  # views of some heads, of sums and of what is read
            lines = [f"own = [x{pick} for x in (*{sums[0]}, {queries[1:-1]})]"]
            many = 1 if self.backward else 2
            sums[0], queries = f"own[:{many}]", f"own[{many}:]"
        elif queries.startswith("with_output") and not meeting.plain:
            lines, queries = [f"visitors = {queries}"], "visitors"
        if meeting.plain:
            function = "add_gradient" if self.backward else "add_attention"
            call = f"{function}({', '.join([*sums, queries, kv])}, {{}})"
            asked, body = self.cases(meeting, call)
            body = indented(f"if {asked}:", body) if lines and asked else body
            return asked * (not lines), [*lines, *body]
        name, *arguments = self.cuts(meeting)
        head = f"for rows, cols, band in {name}({', '.join(arguments)}):"
        if len(head) > WIDTH - self.margin:
            named = dict(zip(dict.fromkeys(arguments), ("ours", "theirs"), strict=False))
            lines += tupled([f"{to} = {text}" for text, to in named.items()])
            head = f"for rows, cols, band in {name}({', '.join(named[x] for x in arguments)}):"
        return "", [*lines, *indented(head, self.one_tile(sums, queries, kv))]

    def one_tile(self, sums: list[str], queries: str, kv: str) -> list[str]:
        """The lines that attend some rows to some columns, and add to sums what these see."""
        inputs = f"{sliced(queries, 'rows')}, {sliced(kv, 'cols')}"
        into = ", ".join(map(sliced, sums, ("rows", "cols")))
        kernel = "attend_backward" if self.backward else "attend"
        lines = [f"part = {kernel}({inputs}, band)"]
        if len(lines[0]) > WIDTH - self.margin - 4:
            lines = [f"inputs = {inputs}", f"part = {kernel}(*inputs, band)"]
        return [*lines, f"add([{into}], part)" if self.backward else f"merge({into}, *part)"]

    def cases(self, meeting: Meeting, call: str) -> Lines:
        """The rectangles one by one, each under the condition that none before it had."""
        left, cases, made = meeting.domain.everywhere, meeting.cases(), list[str]()
        apart = np.sum([on for *_, on in cases], axis=0).max() < 2
        for n, (s, said, on) in enumerate(cases):
            *where, masked = meeting.arguments(s)
            lines, asked = [call.format(", ".join([*where, masked]))], both(needed(said, left))
            self.uses |= {"size"} if "size" in lines[0] else set()
            if self.margin + 4 + len(lines[0]) > WIDTH:
                lines = [f"rows, cols = {', '.join(where)}", call.format(f"rows, cols, {masked}")]
            if len(cases) == 1:
                return asked, lines
            head = f"{'el' * bool(apart and n)}if {asked}:" if asked else ""
            head = "else:" if apart and n and (on == left).all() else head
            made += indented(head, lines) if head else lines
            left = left & ~on if apart else left
        return "", made

    def cuts(self, meeting: Meeting) -> tuple[str, ...]:
        """A function of tiles and its arguments: all that the mask leaves of two values."""
        q, kv = (
            origin(self.plan, self.walked, side, value, meeting.domain, meeting.names)
            for side, value in zip(("q", "kv"), meeting.values, strict=True)
        )
        attended: Attended = {}
        for i, t in enumerate(meeting.domain.steps):
            rows = (self.walked.attended[s].get(t) for s in meeting.attends)
            attended[i] = [x for x in rows if x]
        check_everything(self.plan, q, kv, attended)
        if tokens := triangular(self.plan, q, kv):
            if q.axis is not None and self.orders.setdefault("tokens", q.axis) != q.axis:
                raise PlanError("queries along several axes are attended")
            return "triangles", tokens
        return called(self.plan, q, kv, single_runs(self.plan, self.forms))

    def pick(self, meeting: Meeting) -> str:
        """The text behind tensors of queries that takes the heads of a meeting."""
        side = self.plan.partition.q
        pick = meeting.picked(len(side.slices))
        if pick and len(set(side.head_counts.tolist())) > 1:
            raise PlanError("slices of heads are of different sizes")
        if pick and meeting.values[0] != OWN:
            raise PlanError("a rank attends some of the heads of queries that came")
        return pick


def sliced(tensors: str, tokens: str) -> str:
    """Some tokens of each tensor of a list, as arguments."""
    text = listed(tensors, lambda x: f"{x}[:, :, {tokens}]")
    return f"*{text}" if " for " in text else text[1:-1]
