"""print_pass(program, ...)   prints a pass as a PyTorch function, a line or two for each op.

Every op is one call of a function under `parts/vocabulary`. The printer makes no decisions beyond
the form of an op, and reads no text that it has printed.
"""

from collections.abc import Iterable
from typing import assert_never

from ringloom.codegen.conditions import ranks_of
from ringloom.codegen.expressions import Form, Lines, has_several_heads, indent
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

PARAMETERS = "q: Tensor, k: Tensor, v: Tensor", "name: str, settings: str, problem: str, seq: int"
HEADS = {
    "forward": [
        '    """Return output and log-sum-exp of the local queries."""',
        "    check_agreement(group_named(name), q, k, settings, problem, seq)",
    ],
    "backward": [
        '    """Return gradients of the local queries, keys and values."""',
    ],
}


def print_pass(program: Program, form: Form) -> Lines:
    """Prints the operator of a pass."""
    return _Printer(program, form).function()


class _Printer(Operands):
    """The lines of one pass."""

    def function(self) -> Lines:
        """Prints the whole function, with its decorator."""
        body = [*self.lines(self.program.ops), *self.ending()]
        return [
            f'@operator("attention{"_backward" * self.backward}")',
            "@no_type_check",
            self.head(),
            *HEADS[self.program.pass_],
            *indent([*self.opening(), *body]),
        ]

    def head(self) -> str:
        """Prints the line with the name and the parameters."""
        if self.backward:
            return "def backward(dout: Tensor, saved: list[Tensor], name: str) -> list[Tensor]:"
        parameters = (", sinks: Tensor, " if self.form.sinks else ", ").join(PARAMETERS)
        return f"def forward({parameters}) -> list[Tensor]:"

    def lines(self, ops: Iterable[Op]) -> Lines:
        """Prints ops in order."""
        return [line for op in ops for line in self.op(op)]

    def op(self, op: Op) -> Lines:
        """Prints an op."""
        match op:
            case Let(into, source):
                return [f"{self.names[into]} = {self.part(source, sent=True)}"]
            case Zero(sums):
                return [f"{self.names[sums]} = {self.zero(op)}"]
            case Clear(sums):
                if sums.register.of == "OUT":
                    raise PlanError("only some tokens of a partial output are sent")
                return [f"clear({self.part(sums)})"]
            case Post(message):
                before, call = self.message(message)
                return [*before, f"{self.names[message.handle]} = {call}"]
            case Wait():
                return self.wait(op)
            case Attend():
                call, *arguments = self.attend_call(op)
                return [f"{call}({', '.join(arguments)})"]
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
        """Prints a loop over steps."""
        self.words = self.frame(op.steps, True)
        return [f"for step in range({self.ends(op.steps)}):", *indent(self.lines(op.body))]

    def zero(self, op: Zero) -> str:
        """Returns the call that makes new accumulators."""
        if op.sums.of == "OUT":
            return f"zero_output({self.whole_register(op.like)})"
        if op.sums.of == "DKV":
            return f"zeros({self.whole_register(op.like)})"
        if op.like.value == OWN:
            return "zeros(saved[:1])" if self.keeps else "zeros([q])"
        return "zeros([q])" if self.keeps else f"zeros({self.whole_register(op.like)}[1:2])"

    # ---- messages

    def message(self, message: Message) -> tuple[Lines, str]:
        """Returns the lines before a message, and the call that starts it."""
        before, sent, route = Lines(), self.sent_arrays(message), message.route
        if message.complete and not isinstance(route, Reduce) and self.keeps and not self.backward:
            name = self.names[message.source.register]  # also a result of the forward pass
            before, sent = [f"{name} = {sent}"], name
        if isinstance(route, Hop):
            on, call = self.hop(message, route, sent)
            return [*before, *on], call + self.when(message)
        if ranks_of(message.on):
            raise PlanError("some ranks take no part in a collective")
        return before, self.exchange_call(message, route, sent) + self.when(message)

    def wait(self, op: Wait) -> Lines:
        """Prints the lines that assign an arrival to a name or add it to accumulators."""
        register, route = op.into.register, op.message.route
        before, started = Lines(), self.names[op.message.handle]
        if op.starts:
            before, started = self.message(op.message)
        arrival = self.received_arrays(op, f"wait({started})")
        arrival = f"with_output({arrival})" if register in self.settled else arrival
        if has_several_heads(op.into):
            function = "merge_heads" if register.of == "OUT" else "add_heads"
            heads = self.slice_of_heads(op.into)
            return [*before, f"{function}({self.whole_register(register)}, {heads}, {arrival})"]
        into = self.part(op.into)
        if not register.accumulates or op.replaces:
            return [*before, f"{into} = {arrival}{f' or {into}' * op.partial}"]
        if register.of != "OUT":
            return [*before, f"add({into}, {arrival})"]
        if isinstance(route, Reduce):
            return [*before, f"merge_all({into}, {arrival}, {self.mesh[route.axis]})"]
        if op.partial:
            return [*before, f"if arrival := {arrival}:", f"    merge(*{into}, *arrival)"]
        return [*before, f"merge(*{into}, *{arrival})"]

    # ---- the ends of a function

    def opening(self) -> Lines:
        """Prints the names that the following lines read, each after the names it needs."""
        mesh = len(self.mesh) > 1
        self.used.update(self.axes if mesh and self.orders else ())
        needs_group = self.used & {"group", "rank", "axis_groups", *self.axes}
        lines = [*self.saved(), *["group = group_named(name)"] * bool(needs_group)]
        if mesh and self.used & {*self.axes, "axis_groups"}:
            lines.append("axis_groups, at = along_axes(group)")
        at = [f"at[{n}]" for n in range(len(self.mesh))] if mesh else ["group.rank()"]
        definitions = {
            **dict(zip(self.axes, at, strict=True)),
            "rank": "group.rank()",
            **self.lengths(),
            "delta": "(dout * out.to(accum_dtype(q))).sum(-1, keepdim=True)",
            **self.orders,
        }
        return [
            *lines,
            *(f"{name} = {definitions[name]}" for name in definitions if name in self.used),
        ]

    def saved(self) -> Lines:
        """Prints the names of the tensors that the forward pass saved."""
        if not self.backward:
            return []
        sinks, logits = self.form.sinks, "_, " * (self.form.sinks and not self.keeps)
        lines = [f"{'*_, ' * bool(self.keeps)}q, k, v, {logits}out, lse = saved"]
        return [*lines, *["dsinks = sink_gradient(dout, *saved[3:6])"] * sinks]

    def ending(self) -> Lines:
        """Prints the lines that return the results."""
        if self.backward:
            dq, dkv = (self.names[Register(x, OWN)] for x in ("DQ", "DKV"))
            gradients = f"narrow([*{dq}, *{dkv}], q)"
            return [f"return [*{gradients}, dsinks]" if self.form.sinks else f"return {gradients}"]
        output, sinks = Register("OUT", OWN), self.form.sinks
        name, narrow = self.names[output], self.narrow(output)
        lines = [f"{name} = apply_sinks(*{name}, sinks)"] * sinks
        if not self.keeps:
            return [*lines, f"return {narrow}"]
        axis = kept_along(self.program)
        results = self.names[Register("OUT", self.program.kept[0].value)]
        if sinks:
            self.used.add(self.axes[axis])
            results = f"apply_sinks(*{results}, sinks.chunk({self.sizes[axis]})[{self.axes[axis]}])"
        kept = (self.names[register] for register in self.program.kept)
        values = ", ".join(f"*{x}" for x in (narrow, *kept, results))
        return [*lines, f"return [{values}]"]
