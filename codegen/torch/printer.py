"""print_pass(program, ...)   a pass as a torch function: a line or two for each op of its program.

Every op is one call of the vocabulary under `parts/vocabulary`. Nothing is decided here but how an
op is written; nothing that was printed is read.
"""

from collections.abc import Iterable
from typing import assert_never

from ringloom.codegen.conditions import ranks_of
from ringloom.codegen.expressions import Form, Lines, indented, several
from ringloom.codegen.ir import (
    At,
    Attend,
    Choose,
    Clear,
    For,
    Hop,
    Let,
    Message,
    Op,
    Post,
    Program,
    Reduce,
    Register,
    Wait,
    Zero,
)
from ringloom.codegen.torch.operands import Operands, kept_along
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import OWN

GIVEN = "q: Tensor, k: Tensor, v: Tensor", "name: str, about: str, wrong: str, seq: int"
HEADS = {
    "forward": [
        '    """Output and log-sum-exp of the local queries."""',
        "    agree(group_named(name), q, k, about, wrong, seq)",
    ],
    "backward": [
        '    """Gradients of the local queries, keys and values."""',
    ],
}


def print_pass(program: Program, form: Form) -> Lines:
    """The operator of a pass."""
    return _Printer(program, form).function()


class _Printer(Operands):
    """The lines of one pass."""

    def function(self) -> Lines:
        """The whole function, with its decorator."""
        body = [*self.lines(self.program.ops), *self.ending()]
        return [
            f'@operator("attention{"_backward" * self.backward}")',
            "@no_type_check",
            self.head(),
            *HEADS[self.program.pass_],
            *indented([*self.opening(), *body]),
        ]

    def head(self) -> str:
        """The line with its name and what it is given."""
        if self.backward:
            return "def backward(dout: Tensor, saved: list[Tensor], name: str) -> list[Tensor]:"
        given = ", sinks: Tensor, ".join(GIVEN) if self.form.sinks else ", ".join(GIVEN)
        return f"def forward({given}) -> list[Tensor]:"

    def lines(self, ops: Iterable[Op]) -> Lines:
        """The lines of ops, one after the other."""
        return [line for op in ops for line in self.op(op)]

    def op(self, op: Op) -> Lines:
        """The lines of an op."""
        match op:
            case Let(into, source):
                return [f"{self.names[into]} = {self.part(source, sent=True)}"]
            case Zero(sums):
                return [f"{self.names[sums]} = {self.zero(op)}"]
            case Clear(sums):
                if sums.register.of == "OUT":
                    raise PlanError("a part of partial outputs leaves")
                return [f"clear({self.part(sums)})"]
            case Post(message):
                before, call = self.message(message)
                return [*before, f"{self.names[message.handle]} = {call}"]
            case Wait():
                return self.wait(op)
            case Attend():
                call, *given = self.attended(op)
                return [f"{call}({', '.join(given)})"]
            case Choose(cases):
                return self.branches(cases, self.words)
            case For():
                return self.loop(op)
            case At(step, body):
                self.words = self.frame(range(step, step + 1), False)
                return self.lines(body)
            case _:
                assert_never(op)

    def loop(self, op: For) -> Lines:
        """A loop over steps."""
        self.words = self.frame(op.steps, True)
        return [f"for step in range({self.ends(op.steps)}):", *indented(self.lines(op.body))]

    def zero(self, op: Zero) -> str:
        """New accumulators."""
        if op.sums.of == "OUT":
            return f"zero_output({self.whole(op.like)})"
        if op.sums.of == "DKV":
            return f"zeros({self.whole(op.like)})"
        if op.like.value == OWN:
            return "zeros(saved[:1])" if self.keeps else "zeros([q])"
        return "zeros([q])" if self.keeps else f"zeros({self.whole(op.like)}[1:2])"

    # ---- messages

    def message(self, message: Message) -> tuple[Lines, str]:
        """Lines before a message, and the call that starts it."""
        before, sent, route = Lines(), self.sent(message), message.route
        if message.complete and not isinstance(route, Reduce) and self.keeps and not self.backward:
            name = self.names[message.source.register]  # which the forward pass returns, too
            before, sent = [f"{name} = {sent}"], name
        if isinstance(route, Hop):
            on, call = self.hop(message, route, sent)
            return [*before, *on], call + self.when(message)
        if ranks_of(message.on):
            raise PlanError("ranks are left out of a message of all")
        return before, self.exchanged(message, route, sent) + self.when(message)

    def wait(self, op: Wait) -> Lines:
        """Bind what comes, or add it."""
        register, route = op.into.register, op.message.route
        before, started = Lines(), self.names[op.message.handle]
        if op.starts:
            before, started = self.message(op.message)
        came = self.arrived(op, f"wait({started})")
        came = f"with_output({came})" if register in self.settled else came
        if several(op.into):
            verb = "merge_heads" if register.of == "OUT" else "add_heads"
            which = self.slice_of_heads(op.into)
            return [*before, f"{verb}({self.whole(register)}, {which}, {came})"]
        into = self.part(op.into)
        if not register.accumulates or op.replaces:
            return [*before, f"{into} = {came}{f' or {into}' * op.partial}"]
        if register.of != "OUT":
            return [*before, f"add({into}, {came})"]
        if isinstance(route, Reduce):
            return [*before, f"merge_all({into}, {came}, {self.mesh[route.axis]})"]
        if op.partial:
            return [*before, f"if came := {came}:", f"    merge(*{into}, *came)"]
        return [*before, f"merge(*{into}, *{came})"]

    # ---- the ends of a function

    def opening(self) -> Lines:
        """The names that the lines below read, each after what it needs itself."""
        mesh = len(self.mesh) > 1
        self.used.update(self.axes if mesh and self.orders else ())
        asked = self.used & {"group", "rank", "axis_groups", *self.axes}
        lines = [*self.saved(), *["group = group_named(name)"] * bool(asked)]
        if mesh and self.used & {*self.axes, "axis_groups"}:
            lines.append("axis_groups, at = along_axes(group)")
        at = [f"at[{n}]" for n in range(len(self.mesh))] if mesh else ["group.rank()"]
        known = {
            **dict(zip(self.axes, at, strict=True)),
            "rank": "group.rank()",
            **self.lengths(),
            "delta": "(dout * out.to(accum_dtype(q))).sum(-1, keepdim=True)",
            **self.orders,
        }
        return [*lines, *(f"{name} = {known[name]}" for name in known if name in self.used)]

    def saved(self) -> Lines:
        """The names of what the forward pass has left."""
        if not self.backward:
            return []
        sinks, logits = self.form.sinks, "_, " * (self.form.sinks and not self.keeps)
        lines = [f"{'*_, ' * bool(self.keeps)}q, k, v, {logits}out, lse = saved"]
        return [*lines, *["slope = sink_gradient(dout, *saved[3:6])"] * sinks]

    def ending(self) -> Lines:
        """The lines that return the results."""
        if self.backward:
            dq, dkv = (self.names[Register(x, OWN)] for x in ("DQ", "DKV"))
            gradients = f"narrow([*{dq}, *{dkv}], q)"
            return [f"return [*{gradients}, slope]" if self.form.sinks else f"return {gradients}"]
        output, sinks = Register("OUT", OWN), self.form.sinks
        name, narrow = self.names[output], self.narrowed(output)
        lines = [f"{name} = apply_sinks(*{name}, sinks)"] * sinks
        if not self.keeps:
            return [*lines, f"return {narrow}"]
        axis = kept_along(self.program)
        results = self.names[Register("OUT", self.program.kept[0].value)]
        if sinks:
            self.used.add(self.axes[axis])
            results = f"apply_sinks(*{results}, sinks.chunk({self.sizes[axis]})[{self.axes[axis]}])"
        kept = (self.names[register] for register in self.program.kept)
        given = ", ".join(f"*{x}" for x in (narrow, *kept, results))
        return [*lines, f"return [{given}]"]
