"""The attends of a step as text, and the sums that they add to."""

from itertools import chain, count

from codegen.lowered.sums import Cell
from codegen.text import entered
from codegen.torch.origins import Attended, called, check_everything, origin, triangular
from codegen.torch.state import State, indented
from codegen.torch.tiles import Meeting, tile_function
from planner.errors import PlanError
from planner.loops.form import OWN


class Attending(State):
    """The part of a pass that attends: at once, and what is added after waiting."""

    def cell(self, meeting: Meeting, tensor: str) -> Cell:
        """The cell that a meeting adds to."""
        targets, steps = self.walked.targets, meeting.domain.steps
        cells = {to[tensor] for s in meeting.attends for t, to in targets[s].items() if t in steps}
        if len(cells) > 1:
            raise PlanError(f"{tensor} of one rectangle is added to several values")
        return cells.pop()

    def begins(self, meeting: Meeting, cell: Cell) -> bool:
        """True if the first rectangle gives every rank, at once, all sums that others add to."""
        walked = self.walked
        if self.have.anew(cell):
            return False
        t = walked.first[cell]
        first = [s for s, on in walked.targets.items() if on.get(t, {}).get(cell[0]) == cell]
        if not meeting.plain or len(first) != 1 or first[0] not in meeting.attends:
            return False
        part = first[0].q[0]
        whole = part.pieces is part.heads is None and first[0].kind in ("full", "causal")
        return whole and bool(meeting.everywhere[t - meeting.domain.steps[0]].all())

    def attend(self, meeting: Meeting) -> list[str]:
        """Attend, and merge what is seen."""
        q, kv = meeting.values
        cell, cut = self.cell(meeting, "OUT"), not meeting.simple
        arguments = [*self.have.queries(q, cut, self.pick(meeting)), *self.have.keys(kv, cut)]
        if not self.walked.accumulates(cell):
            body = self._assigned(cell, arguments, meeting)
        elif self.begins(meeting, cell):
            body = self._begun(meeting, cell, cut, arguments)
        else:
            body = [attend("part, part_lse", "attend", *arguments, self.masked(meeting))]
            body.append(self.have.add(cell, cut, "part, part_lse", pick=self.pick(meeting)))
        return self.around(meeting, body)

    def _assigned(self, cell: Cell, arguments: list[str], meeting: Meeting) -> list[str]:
        """The only part is all there is."""
        if self.have.plainly(cell):
            return [attend("out, lse", "attend", *arguments, self.masked(meeting))]
        lines = [attend("part, part_lse", "attend", *arguments, self.masked(meeting))]
        return [*lines, self.have.begin(cell)]

    def _begun(self, meeting: Meeting, cell: Cell, cut: bool, arguments: list[str]) -> list[str]:
        """The first part begins the sums."""
        first = self.walked.first[cell] - meeting.domain.steps[0]
        lines = [attend("part, part_lse", "attend", *arguments, self.masked(meeting))]
        steps = meeting.everywhere.any(axis=1)
        if steps.sum() == 1:
            return [*lines, self.have.begin(cell)]
        return [
            *lines,
            f"if {meeting.names.step} == {first}:",
            f"    {self.have.begin(cell)}",
            "else:",
            f"    {self.have.add(cell, cut, 'part, part_lse')}",
        ]

    def masked(self, meeting: Meeting) -> str:
        """The last argument of an attend."""
        if not meeting.plain:
            return "band"
        return meeting.causal() if meeting.simple else "causal"

    def around(self, meeting: Meeting, body: list[str]) -> list[str]:
        """The condition, or the loop over tiles, in which a rectangle is attended."""
        if meeting.simple:
            guard = meeting.guard()
            return indented(f"if {guard}:", body) if guard else body
        if not meeting.plain:
            function, *arguments = self.cuts(meeting)
            head = f"for rows, cols, band in {function}({', '.join(arguments)}):"
            return indented(head, body)
        name, idle = self.tile(meeting)
        if not idle:
            return [f"rows, cols, causal = {name}", *body]
        return indented(f"if work := {name}:", ["rows, cols, causal = work", *body])

    def tile(self, meeting: Meeting) -> tuple[str, bool]:
        """A call of `tile`, and whether it may give nothing."""
        arguments, lines, idle = tile_function(meeting)
        names = chain(["tile", "tile_backward"], (f"tile_{n}" for n in count(3)))
        name = entered(self.texts, names, [f"({arguments}):", *lines])
        self.uses |= {"size"} if "size" in arguments else set()
        step = str(meeting.names.at) if meeting.names.at is not None else meeting.names.step
        return f"{name}({arguments.replace('step', step)})", idle

    def cuts(self, meeting: Meeting) -> tuple[str, ...]:
        """A function of tiles and its arguments: all that the mask leaves of two values."""
        q, kv = (
            origin(self.plan, self.walked, side, value, meeting.domain, meeting.names)
            for side, value in zip(("q", "kv"), meeting.values, strict=True)
        )
        attended: Attended = {}
        for s in meeting.attends:
            for t, rows in self.walked.attended[s].items():
                if t in meeting.domain.steps:
                    attended.setdefault(t - meeting.domain.steps[0], []).append(rows)
        check_everything(self.plan, q, kv, attended)
        if pieces := triangular(self.plan, q, kv):
            return "triangles", pieces
        return called(self.plan, q, kv)

    # -- backward

    def attend_back(self, meeting: Meeting) -> tuple[list[str], list[str]]:
        """Attend, and add to sums: at once, and after sums of before have come."""
        q, kv = meeting.values
        cut = not meeting.simple
        dq, dkv = self.cell(meeting, "DQ"), self.cell(meeting, "DKV")
        targets = [self.gradient(dq), f"*{self.gradient(dkv)}"]
        arguments = self.arguments(q, kv, cut, meeting)
        body = [attend(", ".join(targets), "attend_backward", *arguments)]
        now, late = list[str](), list[str]()
        before = list[str]()
        for cell, part in ((dq, "dq_part"), (dkv, "dkv_part")):
            if self.walked.accumulates(cell) and self.walked.relayed(cell) and not meeting.plain:
                before += [self.have.fresh(cell)]
                now.append(self.have.add(cell, cut, part, "shares"))
                late.append(self.have.arrive(cell, "shares"))
            elif self.walked.accumulates(cell):
                pick = self.pick(meeting) if cell[0] == "DQ" else ""
                add = self.have.add(cell, cut, part, pick=pick)
                (late if self.walked.relayed(cell) else now).append(add)
            elif cell in self.walked.sent:
                name = self.have.names.cells[cell]
                wide = (
                    "dq_part.to(wide(q))"
                    if cell[0] == "DQ"
                    else "[x.to(wide(k)) for x in dkv_part]"
                )
                now.append(f"{name} = {wide}")
        return [*before, *self.around(meeting, [*body, *now])], self.afterwards(meeting, late)

    def pick(self, meeting: Meeting) -> str:
        """The text behind tensors of queries that takes the heads of a meeting."""
        side = self.plan.partition.q
        pick = meeting.picked(len(side.slices))
        if pick and len(set(side.head_counts.tolist())) > 1:
            raise PlanError("slices of heads are of different sizes")
        if pick and meeting.values[0] != OWN:
            raise PlanError("a rank attends some of the heads of queries that came")
        return pick

    def gradient(self, cell: Cell) -> str:
        """The name that a part of the sums is given."""
        if self.walked.accumulates(cell) or cell in self.walked.sent:
            return "dq_part" if cell[0] == "DQ" else "dkv_part"
        return self.have.names.cells[cell]

    def arguments(self, q: str, kv: str, cut: bool, meeting: Meeting) -> list[str]:
        """The arguments of that kernel."""
        keys, masked, pick = self.have.keys(kv, cut), self.masked(meeting), self.pick(meeting)
        if not self.have.plain("q", q):
            name = self.have.names.inputs["q", q]
            queries = f"x[:, :, rows] for x in {name}" if cut else name
            return [f"*with_output({queries})", *keys, masked]
        if cut or pick:
            part = pick + "[:, :, rows]" * cut
            return [f"*(x{part} for x in (dout, q, out, lse))", *keys, masked]
        return ["dout", "q", "out", "lse", *keys, masked]

    def afterwards(self, meeting: Meeting, adds: list[str]) -> list[str]:
        """Add parts to sums that have come, where there was something to attend."""
        if not adds:
            return []
        if not meeting.plain:
            return adds
        if meeting.simple:
            guard = meeting.guard()
            return indented(f"if {guard}:", adds) if guard else adds
        return indented("if work:", adds) if self.tile(meeting)[1] else adds


def attend(targets: str, function: str, *arguments: str) -> str:
    """A call of a kernel."""
    return f"{targets} = {function}({', '.join(arguments)})"
