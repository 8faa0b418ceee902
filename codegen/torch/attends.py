"""The attends of a step as text: cases of whole rectangles, or all that the mask leaves."""

from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import numpy as np

from codegen.lowered.conditions import both, needed, times
from codegen.lowered.shares import head_of
from codegen.lowered.walk import Cell
from codegen.reflow import WIDTH
from codegen.text import expression
from codegen.torch.frames import Frame
from codegen.torch.origins import (
    Attended,
    everything,
    origin,
    single_runs,
    triangular,
)
from codegen.torch.state import Lines, State, bracketed, indented, joined, tupled
from codegen.torch.tensors import Tensors
from codegen.torch.tiles import ALL, Meeting
from planner.errors import PlanError
from planner.ir import ACCUMULATORS
from planner.loops.form import Attend

Values = tuple[list[Tensors], Tensors, Tensors]  # sums, queries and keys


class Attending(State):
    """The part of a pass that attends."""

    def cell(self, meeting: Meeting, tensor: str) -> Cell:
        """The cell that a meeting adds to."""
        return next(iter(self.walked.targets[meeting.attends[0]].values()))[tensor]

    def attend(self, meeting: Meeting, frame: Frame) -> Lines:
        """Attend, and add to sums what is seen."""
        when = ""
        if not meeting.plain:  # all lines under one condition
            meeting = replace(meeting, domain=replace(frame, steps=meeting.steps))
            when = both(times(meeting.steps, frame))
        self.margin += 4 * bool(when)
        asked, lines = self.meet(meeting)
        self.margin -= 4 * bool(when)
        if when and asked:
            return f"{when} and ({asked})" if " or " in asked else f"{when} and {asked}", lines
        return when or asked, lines

    def meet(self, meeting: Meeting) -> Lines:
        """The lines that attend."""
        (q, kv), pick = meeting.values, self.pick(meeting)
        cells = (self.cell(meeting, tensor) for tensor in ACCUMULATORS[self.plan.pass_])
        sums = [Tensors(self.have.cells[cell]) for cell in cells]
        lines, queries, keys = list[str](), self.have.queries(q), self.have.value("kv", kv)
        if pick:  # views of some heads, of sums and of what is read
            lines = [f"own = [x{pick} for x in ({sums[0].arguments}, {queries.arguments})]"]
            many = 1 if self.backward else 2
            sums[0], queries = Tensors(f"own[:{many}]"), Tensors(f"own[{many}:]")
        elif queries.computed and not meeting.plain:
            lines, queries = [f"visitors = {queries.text}"], Tensors("visitors")
        if meeting.plain:
            asked, body = self.cases(meeting, (sums, queries, keys))
            return asked, [*lines, *body]
        asked, name, *arguments = self.cuts(meeting)
        head = f"for rows, cols, band in {name}({', '.join(arguments)}):"
        if len(head) > WIDTH - self.margin:
            named = dict(zip(reversed(arguments), ("theirs", "ours"), strict=False))
            named = {text: to for text, to in reversed(named.items()) if not text.isidentifier()}
            lines += tupled([f"{to} = {text}" for text, to in named.items()])
            arguments = [named.get(x, x) for x in arguments]
            head = f"for rows, cols, band in {name}({', '.join(arguments)}):"
        tile = self.added((sums, queries, keys), "rows", "cols", "band")
        return asked, [*lines, *indented(head, tile)]

    def meetings(self, frame: Frame) -> list[Meeting]:
        """The rectangles of a frame, by the values that meet."""
        groups: dict[tuple[str, str, frozenset[Cell]], list[Attend]] = {}
        for s in frame.statements:
            if isinstance(s, Attend):
                cells = (c for to in self.walked.targets[s].values() for c in to.values())
                key = s.q[0].value, s.kv[0].value, frozenset(cells)
                groups.setdefault(key, []).append(s)
        pieces = self.walked.pieces
        return [
            Meeting(tuple(s), frame, (pieces["q", q], pieces["kv", kv]), self.unit)
            for (q, kv, _), s in groups.items()
        ]

    def added(self, values: Values, rows: str, cols: str, band: str) -> list[str]:
        """The lines that attend some rows to some columns, and add to sums what these see."""
        (*sums, last), queries, kv = values
        room = WIDTH - self.margin - 4
        queries, keys = sliced(queries, rows), sliced(kv, cols).arguments
        inputs = f"{queries.arguments}, {keys}"
        targets = *(sliced(x, rows) for x in sums), sliced(last, cols if sums else rows)
        into = ", ".join(x.arguments for x in targets)
        kernel = "attend_backward" if self.backward else "attend"
        adding = f"add([{into}], {{}})" if self.backward else f"merge({into}, *{{}})"
        whole = adding.format(f"{kernel}({inputs}, {band})")
        if len(whole) <= room:
            return [whole]
        lines = [f"part = {kernel}({inputs}, {band})"]
        if len(lines[0]) > room:
            lines = [f"inputs = {queries.text}", f"part = {kernel}(*inputs, {keys}, {band})"]
        if len(adding.format("part")) > room:
            lines.append(f"sums = [{into}]")
            adding = "add(sums, {})" if self.backward else "merge(*sums, *{})"
        return [*lines, adding.format("part")]

    def begun(self, values: Values, band: str) -> list[str]:
        """The lines that attend all rows to all columns, of which sums are what these see."""
        sums, queries, kv = [x.text for x in values[0]], *values[1:]
        kernel = f"attend{'_backward' * self.backward}"
        seen = f"{kernel}({queries.arguments}, {kv.arguments}, {band})"
        target = "part" if self.backward else sums[0]
        lines = [f"{target} = [x.contiguous().to(wide(q)) for x in {seen}]"]
        if len(lines[0]) > WIDTH - self.margin - 4:
            lines = [f"part = {seen}", f"{target} = [x.contiguous().to(wide(q)) for x in part]"]
        return [*lines, f"{', '.join(sums)} = part[:1], part[1:]"] if self.backward else lines

    def cases(self, meeting: Meeting, values: Values) -> Lines:
        """The rectangles one by one, each under the condition that none before it had."""
        tensor = ACCUMULATORS[self.plan.pass_][0]
        left, cases, made = meeting.domain.everywhere, meeting.cases(), list[Lines]()
        apart = bool(np.sum([on for *_, on in cases], axis=0).max() < 2)
        for s, said, on in cases:
            asked, (rows, cols, band) = both(needed(said, left)), meeting.arguments(s)
            begins = s == self.assigned(self.cell(meeting, tensor), meeting.domain.steps)
            lines = self.begun(values, band) if begins else self.added(values, rows, cols, band)
            made.append((asked, lines))
            left = left & ~on if apart else left
        if apart:
            made = [x for _, alike in groupby(made, itemgetter(1)) for x in joined(alike)]
        if len(made) == 1:
            return made[0]
        text = list[str]()
        for n, (asked, lines) in enumerate(made):
            later = apart and n > 0
            head = f"{'el' * later}if {asked}:" if asked else "else:" * later
            text += indented(head, lines) if head else lines
        return "", text

    def cuts(self, meeting: Meeting) -> tuple[str, ...]:
        """A condition, a function of tiles and its arguments: what the mask leaves of two values.

        It is asked where ranks have a value whose keys come to them in another step, too.
        """
        q, kv = (
            origin(self.plan, self.walked, side, value, meeting.domain)
            for side, value in zip(("q", "kv"), meeting.values, strict=True)
        )
        attended: Attended = {}
        for i, t in enumerate(meeting.domain.steps):
            rows = (self.walked.attended[s].get(t) for s in meeting.attends)
            attended[i] = [x for x in rows if x]
        asked, cases, on = "", meeting.cases(), meeting.domain.everywhere
        if not everything(self.plan, q, kv, attended, on):
            asked = " or ".join(bracketed(both(said)) for _, said, _ in cases)
            on = np.logical_or.reduce([holds for *_, holds in cases])
            if not 0 < len(asked) < WIDTH - 30 or not everything(self.plan, q, kv, attended, on):
                raise PlanError("attention calls leave out a part of what the mask allows")
        if tokens := triangular(self.plan, q, kv, self.free):
            if q.axis is not None:
                self.orders["tokens"] = q.axis
            return asked, "triangles", *tokens
        single = single_runs(self.plan, self.forms)
        return asked, "tiles", *(x.positions(self.free, single) for x in (q, kv))

    def pick(self, meeting: Meeting) -> str:
        """The text behind tensors of queries that takes the heads of a meeting."""
        head, side = head_of(meeting.attends), self.plan.partition.q
        if head is None:
            return ""
        if len(set(side.head_counts.tolist())) > 1:
            raise PlanError("ranks compute different numbers of heads")
        return f".chunk({len(side.slices)}, 1)[{expression(head, meeting.domain.names)}]"


def sliced(tensors: Tensors, tokens: str) -> Tensors:
    """Some tokens of each tensor."""
    return tensors if tokens == ALL else tensors.each(lambda x: f"{x}[:, :, {tokens}]")
