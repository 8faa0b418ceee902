"""Operands   registers, ranks and positions as PyTorch expressions, for the arguments of calls."""

from collections.abc import Sequence

from ringloom.codegen.conditions import ranks_of, steps_of
from ringloom.codegen.expressions import STATS, Expressions, Form, Lines, has_several_heads
from ringloom.codegen.ir import (
    Exchange,
    Hop,
    Let,
    Message,
    Place,
    Post,
    Program,
    Register,
    Slice,
    Swap,
    Wait,
    walk,
)
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import HELD, OWN, Expr
from ringloom.planner.masks.mask import SideName


class Operands(Expressions):
    """The expressions of one pass in PyTorch."""

    def __init__(self, program: Program, form: Form) -> None:
        super().__init__(program, form)
        self.settled = settled(program)

    @property
    def own(self) -> tuple[str, str]:
        """The queries, and the keys saved by the forward pass unless the rank owns others."""
        queries, keys = super().own
        return queries, "saved[1]" if self.other(Register("kv", OWN)) else keys

    # ---- registers

    def whole_register(self, register: Register, tensors: Sequence[str] = STATS) -> str:
        """Returns the text of a whole register; for the queries of this rank, of these tensors."""
        if register in self.names:
            return self.names[register]
        if register.of == "kv":
            return "saved[1:3]" if self.other(register) else "[k, v]"
        if not self.backward:
            return "[q]"
        if register.value == HELD or self.keeps:
            if tuple(tensors) != ("DOUT",):
                raise PlanError("queries that the forward pass kept are sent on")
            return "[dout]"
        self.used.add("delta" if "STATS" in tensors else "dout")
        return "[dout, q, lse, delta]" if "STATS" in tensors else "[dout]"

    def other(self, register: Register) -> bool:
        """Returns True if a rank owns other keys than those that the forward pass kept."""
        return self.backward and bool(self.keeps) and register.value == OWN

    def queries(self, q: Slice) -> str:
        """Returns the queries that attends read; in a backward pass, with their output."""
        whole = Slice(q.register, None, q.heads)
        if not self.backward:
            return self.part(whole)
        if q.register.value == OWN and not self.keeps:
            return self.select_heads(q, "[dout, q, out, lse]")
        name = self.part(whole, ("DOUT",))
        if q.register in self.settled:
            return name
        return f"[*{name}, q, out, lse]" if self.keeps else f"[*with_output({name})]"

    def select_heads(self, part: Slice, text: str, sent: bool = False) -> str:
        """Returns the heads of a slice of some tensors: as views, unless they are sent."""
        if has_several_heads(part) and not sent:
            raise PlanError("several slices of heads are attended together")
        return super().select_heads(part, text)

    # ---- positions

    def positions(self, place: Place, side: SideName) -> str:
        """Returns the positions of the tokens at a place."""
        tokens = self.tokens(Slice(Register(side, OWN), place.pieces))
        text = self.owners(place.at, side, tokens)
        if None not in place.at:
            return text
        return f"torch.cat([{text}])" + ".sort().values" * place.sort

    def owners(self, at: Sequence[Expr | None], side: SideName, tokens: str = "") -> str:
        """Returns the positions of one rank, or of each rank along axes; of all or some tokens."""
        coordinates, loops = list[str](), list[str]()
        for axis, e in enumerate(at):
            if e is None:
                name = self.axes[axis][0]
                coordinates.append(name)
                loops.append(f" for {name} in range({self.sizes[axis]})")
            else:
                coordinates.append(self.coordinate(e, axis))
        function = "kv_positions" if self.form.separate_kv and side == "kv" else "positions"
        self.used.update(["seq"] if self.form.any_length else [])
        arguments = f"{self.rank_number(coordinates)}{', seq' * self.form.any_length}"
        index = f"[{tokens}]" if tokens else ""
        return f"{function}({arguments}){index}{''.join(loops)}"

    def order(self, message: Message, back: bool = False) -> str:
        """Returns the index that sorts gathered tokens by position, or its inverse."""
        of, route = message.exchanged, message.route
        assert of
        assert isinstance(route, Exchange)
        at = tuple(None if n == route.axis else e for n, e in enumerate(self.own_coordinates()))
        positions = self.owners(at, of.side)
        if of.value != OWN:  # ranks send tokens gathered along another axis
            inner = tuple(
                None if n == self.axis_of(of) else e for n, e in enumerate(self.own_coordinates())
            )
            group = f"torch.cat([{self.owners(inner, of.side)}]).sort().values"
            positions = f"{group} for {self.axes[route.axis]} in range({self.sizes[route.axis]})"
        return self.order_name(message, f"torch.cat([{positions}]).argsort()") + ".argsort()" * back

    # ---- messages

    def group(self, axis: int) -> str:
        """Returns the group of the ranks along an axis."""
        if len(self.mesh) == 1:
            self.used.add("group")
            return "group"
        self.used.add("axis_groups")
        return f"axis_groups[{axis}]"

    def hop(self, message: Message, route: Hop, sent: str) -> tuple[Lines, str]:
        """Returns the lines before a message between two ranks, and the call that starts it."""
        to, source = (self.peer_coordinates(self.words, route.by, sign) for sign in (1, -1))
        self.used.add("group")
        call = f"exchange({sent}, {self.rank_number(to)}, {self.rank_number(source)}, group"
        if not (ranks := ranks_of(message.on)):
            return [], f"{call})"
        ends = (to, self.axes) if message.of_receiver else (self.axes, source)
        self.used.update(self.axes)
        short = tuple(name[0] for name in self.axes)
        words = self.words.for_rank(short, self.rank_number(short))
        ranks_of_ends = ", ".join(f"({', '.join(x)})" if len(x) > 1 else x[0] for x in ends)
        on = f"on = [{words.condition(ranks)} for {', '.join(short)} in ({ranks_of_ends})]"
        return [on], f"{call}, *on)"

    def when(self, message: Message) -> str:
        """Returns the condition after a call that only runs in some steps."""
        steps = steps_of(message.on)
        return f" if {self.words.condition(steps)} else None" if steps else ""


def settled(program: Program) -> set[Register]:
    """Returns the visiting queries that all ranks receive with statistics and none sends on."""
    ops = [*walk(program.ops)]
    waits = [op for op in ops if isinstance(op, Wait) and op.message.source.register.of == "q"]
    received = {op.into.register for op in waits if "STATS" in op.message.tensors}
    sent = {op.message.source.register for op in ops if isinstance(op, Post | Wait)}
    renamed = {op.into for op in ops if isinstance(op, Let)}
    return received - sent - renamed - {op.into.register for op in waits if op.partial}


def kept_along(program: Program) -> int:
    """Returns the axis of the all-to-alls that delivered the copies kept for the backward pass.

    Raises PlanError if other messages delivered some of them.
    """
    axes = {
        op.message.route.axis
        for op in walk(program.ops)
        if isinstance(op, Wait)
        and op.into.register in program.kept
        and isinstance(op.message.route, Swap)
    }
    if [register.of for register in program.kept] != ["q", "kv"] or len(axes) != 1:
        raise PlanError("the backward pass begins with copies that no all-to-all brought")
    return axes.pop()
