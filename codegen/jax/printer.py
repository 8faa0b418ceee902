"""Printer   prints a pass as a JAX function, an assignment for each op of its program.

Every op is one call of a function under `parts/vocabulary`. The printer makes no decisions beyond
the form of an op, and reads no text that it has printed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import assert_never

from ringloom.codegen.conditions import Condition, ranks_of, steps_of
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
    Slice,
    Wait,
    Zero,
    writes,
)
from ringloom.codegen.jax.operands import Operands
from ringloom.codegen.liveness import carried_registers, required_before, results
from ringloom.codegen.rolling import can_roll
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import OWN, Root

Guarded = tuple[str, str]  # a condition that Python evaluates, "" for none, and a line
HEADS = {
    "forward": (
        "def forward(q, k, v, axis):",
        '    """Return output and residuals, with names for checkpoint policies."""',
    ),
    "backward": (
        "def backward(axis, saved, dout):",
        '    """Return gradients of a device\'s queries, keys and values."""',
    ),
}
SAVED = ("q", "k", "v", "out", "lse")  # by the forward pass, if the backward pass reads them
HELD = {"q": ("held_q", "held_out", "held_lse"), "kv": ("held_k", "held_v")}
ONE_SLICE = {"forward": "merge_one_slice", "backward": "add_one_slice"}  # of the heads


class Printer(Operands):
    """The lines of one pass; `saved` are the names of saved arrays that the pass reads."""

    def __init__(self, program: Program, form: Form) -> None:
        super().__init__(program, form)
        self.after = frozenset[Register]()  # read after a loop
        self.bound = set[Register]()  # written before a loop
        self.body = self.lines(program.ops)
        if self.backward:
            dq, dkv = (self.names[Register(x, OWN)] for x in ("DQ", "DKV"))
            self.body.append(f"return tuple(narrow([*{dq}, *{dkv}], dout))")
            self.used.update(["out"] if "delta" in self.used else [])
            self.used.update(["k"] if "kv_size" in self.used else [])
        self.saved = tuple(name for name in SAVED if name in self.used)

    def function(self, saved: Sequence[str] = ()) -> Lines:
        """Prints the whole function; a forward pass saves these inputs and results."""
        ending = [] if self.backward else self.ending(saved)
        return [*HEADS[self.program.pass_], *indent([*self.opening(), *self.body, *ending])]

    def lines(self, ops: Sequence[Op]) -> Lines:
        """Prints ops in order; consecutive lines with the same condition share an `if`."""
        guarded, after = list[Guarded](), self.after
        for n, op in enumerate(ops):
            if isinstance(op, For | At):
                self.after = results(self.program) | required_before(ops[n + 1 :])
            guarded += self.op(op)
            self.bound.update(writes(op))
        self.after = after
        lines = Lines()
        for condition, group in groupby(guarded, lambda x: x[0]):
            block = [line for _, line in group]
            lines += [f"if {condition}:", *indent(block)] if condition else block
        return lines

    def op(self, op: Op) -> list[Guarded]:
        """Prints an op."""
        match op:
            case For():
                lines = self.loop(op)
            case At(step, body):
                self.words = self.frame(range(step, step + 1), False)
                lines = self.lines(body)
            case Choose(cases) if self.by_python(cases[0][0]):
                lines = self.branches(cases, self.plain(self.axes))
            case Post(message) | Wait(message):
                condition = self.plain(self.axes).condition(steps_of(message.on))
                return [(condition, self.assignment(op))]
            case _:
                lines = [self.assignment(op)]
        return [("", line) for line in lines]

    # ---- loops and cases

    def loop(self, op: For) -> Lines:
        """Prints a loop, rolled by JAX or unrolled by Python, with the state that it carries."""
        state, after, used = carried_registers(op, self.after), self.after, "step" in self.used
        if not state or not self.bound.issuperset(state):
            raise PlanError("a loop changes no value, or a value that is undefined before it")
        self.words, self.rolling = self.frame(op.steps, True), can_roll(op)
        self.used.discard("step")
        body = self.lines(op.body)
        step = "step" if "step" in self.used else "_"
        self.used.update(["step"] * used)
        names = [self.names[register] for register in state]
        kept = ", ".join(self.names[r] if r in after else "_" for r in state)
        single, joined = len(names) == 1, ", ".join(names)
        parameter = joined if single else "state"
        function = [
            "",
            f"def one_step({step}, {parameter}):",
            *indent([] if single else [f"{joined} = state"]),
            *indent([*body, f"return {joined}"]),
            "",
        ]
        if self.rolling:
            start, ends = joined if single else f"({joined})", self.ends(op.steps, "0, ")
            self.rolling = False
            return [*function, f"{kept} = lax.fori_loop({ends}, one_step, {start})"]
        loop = [f"for step in range({self.ends(op.steps)}):"]
        loop.append(f"    {parameter} = one_step(step, {parameter})")
        return (
            [*function, *loop]
            if single
            else [*function, f"state = {joined}", *loop, f"{kept} = state"]
        )

    def by_python(self, condition: Condition) -> bool:
        """Returns True for a condition on a step that is a Python number."""
        return bool(condition) and not self.rolling and condition == steps_of(condition)

    def choice(self, op: Choose) -> str:
        """Returns lax.cond(...) of all cases; values stay the same where no case applies."""
        targets = writes(op)
        if any(writes(case) != targets for _, case in op.cases):
            raise PlanError("the cases of a choice assign different values")
        names = [self.names[register] for register in targets]
        choice = names[0] if len(names) == 1 else f"({', '.join(names)})"
        for tests, case in reversed(op.cases):
            value, condition = self.value(case), self.words.condition(tests)
            otherwise = f"lambda: {choice}"
            choice = f"lax.cond({condition}, lambda: {value}, {otherwise})" if tests else value
        return choice

    # ---- assignments

    def assignment(self, op: Op) -> str:
        """Returns the line that assigns the values of an op to its registers."""
        if isinstance(op, Post):
            return f"{self.names[op.message.handle]} = {self.value(op)}"
        return f"{', '.join(self.names[register] for register in writes(op))} = {self.value(op)}"

    def value(self, op: Op) -> str:
        """Returns the expression of the values that an op writes."""
        match op:
            case Let(_, source):
                return self.part(source)
            case Zero():
                return self.zero(op)
            case Clear(sums):
                if sums.register.of == "OUT":
                    raise PlanError("only some tokens of a partial output are sent")
                if sums.pieces is None or sums.heads is not None:
                    raise PlanError("only some heads of partial gradients are sent")
                return f"clear({self.names[sums.register]}, {self.tokens(sums)})"
            case Post(message):
                return self.message(message)
            case Wait():
                return self.wait(op)
            case Attend():
                return self.attend(op)
            case Choose():
                return self.choice(op)
            case For() | At():
                raise PlanError("a case contains a loop")
            case _:
                assert_never(op)

    def zero(self, op: Zero) -> str:
        """Returns the call that makes new accumulators."""
        if op.sums.of == "OUT":
            self.used.add("v")
            return f"zero_output({self.whole_register(op.like)}, v)"
        if op.sums.of == "DKV":
            return f"zeros({self.whole_register(op.like)})"
        if op.like.value == OWN:
            return f"zeros({self.arguments('q')})"
        held = "q" in self.keeps
        return (
            f"zeros({self.arguments('held_q')})"
            if held
            else f"zeros({self.whole_register(op.like)}[:1])"
        )

    # ---- messages

    def message(self, message: Message, other: str = "") -> str:
        """Returns the call that sends a message; `other`: the value without arrival."""
        sent, route = self.sent_arrays(message), message.route
        if isinstance(route, Hop):
            return self.hop(message, route, sent, other)
        outputs = message.source.register.of == "OUT"
        if isinstance(route, Root) and (len(self.mesh) > 1 or outputs):
            raise PlanError("JAX cannot broadcast or reduce within a group of ranks, or outputs")
        return self.exchange_call(message, route, sent)

    def wait(self, op: Wait) -> str:
        """Returns the expression of a received value, or of sums with the value added."""
        register, route, into = op.into.register, op.message.route, self.names[op.into.register]
        other = into if op.partial and not register.accumulates else ""
        arrival = self.message(op.message, other) if op.starts else self.names[op.message.handle]
        if other and not op.starts and isinstance(route, Hop) and ranks_of(op.message.on):
            return f"receive({arrival}, {other}, axis, {self.pairs(op.message, route)})"
        arrival = self.received_arrays(op, arrival)
        if not register.accumulates or op.replaces:
            return arrival
        where, sums = self.tokens(op.into), self.select_heads(op.into, into)
        if isinstance(route, Reduce) and register.of == "OUT":
            total = f"merge_all({sums}, {arrival}, {self.mesh[route.axis]})"
        else:
            function = "merge_output" if register.of == "OUT" else "add"
            total = f"{function}({sums}, {arrival}{f', {where}' * bool(where)})"
        if not op.into.heads:
            return total
        prefix = "some_" * has_several_heads(op.into)
        return f"with_{prefix}heads({into}, {total}, {self.slice_of_heads(op.into)})"

    def attend_call(self, op: Attend) -> list[str]:
        """Returns a call and its arguments; tiles also need the size of pieces."""
        if op.kind != "tiles" or not self.form.runs:
            return super().attend_call(op)
        self.used.add("piece")
        return [*super().attend_call(op), "piece=piece"]

    def attend(self, op: Attend) -> str:
        """Returns the call of an attend, with the accumulators to which it adds."""
        first, *others = op.sums
        if any(x.heads for x in others):
            raise PlanError("an attend adds to the gradients of only some KV heads")
        if not first.heads:
            call, *arguments = self.attend_call(op)
            return f"{call}({', '.join(arguments)})"
        if first.heads != op.q.heads or has_several_heads(op.q):
            raise PlanError("an attend of some heads adds to the sums of others")
        q, sums = replace(op.q, heads=None), (Slice(first.register), *others)
        call, *arguments = self.attend_call(replace(op, q=q, sums=sums))
        arguments = [call, self.slice_of_heads(first), *arguments]
        return f"{ONE_SLICE[self.program.pass_]}({', '.join(arguments)})"

    # ---- the ends of a function

    def opening(self) -> Lines:
        """Prints the names that the following lines read, each after the names it needs."""
        lines, axes = Lines(), len(self.mesh)
        pieces = self.program.pieces_of(Register("q", OWN))
        if self.backward:
            held = [name for side in ("q", "kv") if side in self.keeps for name in HELD[side]]
            names = [x if x in self.used else "_" for x in (*self.saved, *held)]
            lines += [f"{', '.join(names)}{',' * (len(names) == 1)} = saved"] * bool(names)
        coordinates = [name for name in self.axes if name in self.used and axes > 1]
        if coordinates or "rank" in self.used:
            lines.append("rank = lax.axis_index(axis)")
        if coordinates:
            at = "divmod(rank, INNER)" if axes == 2 else "jnp.unravel_index(rank, MESH)"
            names = [name if name in self.used else "_" for name in self.axes]
            lines.append(f"{', '.join(names)} = {at}")
        definitions = {
            **self.lengths(),
            "piece": f"{self.own[0]}.shape[2]{f' // {pieces}' * (pieces > 1)}",
            "delta": "(dout.astype(accum_dtype(dout)) * out).sum(-1, keepdims=True)",
            **self.orders,
        }
        return [
            *lines,
            *(f"{name} = {definitions[name]}" for name in definitions if name in self.used),
        ]

    def ending(self, saved: Sequence[str]) -> Lines:
        """Prints the lines that name and return the results."""
        output = self.names[Register("OUT", OWN)]
        kept = [
            f"*{self.names[r]}"
            for register in sorted(self.program.kept, key=lambda r: r.of != "q")
            for r in (register, *[Register("OUT", register.value)] * (register.of == "q"))
        ]
        results = ("out", "lse") if "lse" in saved else ("out", "_")
        lines = [f"{', '.join(results)} = {output}"]
        lines += [f'{x} = checkpoint_name({x}, "attention_{x}")' for x in results if x != "_"]
        if kept:
            lines.append(f'kept = checkpoint_name([{", ".join(kept)}], "attention_kept")')
        residuals = ", ".join([*saved, *["*kept"] * bool(kept)])
        return [*lines, f"return out.astype(q.dtype), [{residuals}]"]
