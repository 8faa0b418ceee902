"""print_pass(program, ...)   a pass as a JAX function: an assignment for each op of its program.

Every op is one call of the vocabulary under `parts/vocabulary`. Nothing is decided here but how an
op is written; nothing that was printed is read.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import assert_never

from ringloom.codegen.conditions import Condition, ranks_of, steps_of
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

Asked = tuple[str, str]  # a test of the step that Python asks, "" for none, and a line
HEADS = {
    "forward": (
        "def forward(q, k, v, axis):",
        '    """Output, and what the backward pass needs, named for checkpoint policies."""',
    ),
    "backward": (
        "def backward(axis, saved, dout):",
        '    """Gradients of a device\'s queries, keys and values."""',
    ),
}
SAVED = ("q", "k", "v", "out", "lse")  # by the forward pass, as far as it is read
HELD = {"q": ("held_q", "held_out", "held_lse"), "kv": ("held_k", "held_v")}
ONE_SLICE = {"forward": "merge_one_slice", "backward": "add_one_slice"}  # of heads


class Printer(Operands):
    """The lines of one pass; `saved` are the names that it reads of what the other one saves."""

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
        """The whole function; a forward pass saves these of its inputs and results."""
        ending = [] if self.backward else self.ending(saved)
        return [*HEADS[self.program.pass_], *indented([*self.opening(), *self.body, *ending])]

    def lines(self, ops: Sequence[Op]) -> Lines:
        """The lines of ops, one after the other; those of a test of the step below it."""
        asked, after = list[Asked](), self.after
        for n, op in enumerate(ops):
            if isinstance(op, For | At):
                self.after = results(self.program) | required_before(ops[n + 1 :])
            asked += self.op(op)
            self.bound.update(writes(op))
        self.after = after
        made = Lines()
        for test, group in groupby(asked, lambda x: x[0]):
            lines = [line for _, line in group]
            made += [f"if {test}:", *indented(lines)] if test else lines
        return made

    def op(self, op: Op) -> list[Asked]:
        """The lines of an op."""
        match op:
            case For():
                lines = self.loop(op)
            case At(step, body):
                self.words = self.frame(range(step, step + 1), False)
                lines = self.lines(body)
            case Choose(cases) if self.python(cases[0][0]):
                lines = self.branches(cases, self.plain(self.axes))
            case Post(message) | Wait(message):
                test = self.plain(self.axes).condition(steps_of(message.on))
                return [(test, self.assigned(op))]
            case _:
                lines = [self.assigned(op)]
        return [("", line) for line in lines]

    # ---- loops and cases

    def loop(self, op: For) -> Lines:
        """A loop, rolled by JAX or unrolled by Python, with what it has from step to step."""
        state, after, used = carried_registers(op, self.after), self.after, "step" in self.used
        if not state or not self.bound.issuperset(state):
            raise PlanError("a loop changes nothing, or what has no value before it")
        self.words, self.rolling = self.frame(op.steps, True), can_roll(op)
        self.used.discard("step")
        body = self.lines(op.body)
        step = "step" if "step" in self.used else "_"
        self.used.update(["step"] * used)
        names = [self.names[register] for register in state]
        left = ", ".join(self.names[r] if r in after else "_" for r in state)
        one, joined = len(names) == 1, ", ".join(names)
        given = joined if one else "state"
        function = [
            "",
            f"def one_step({step}, {given}):",
            *indented([] if one else [f"{joined} = state"]),
            *indented([*body, f"return {joined}"]),
            "",
        ]
        if self.rolling:
            start, ends = joined if one else f"({joined})", self.ends(op.steps, "0, ")
            self.rolling = False
            return [*function, f"{left} = lax.fori_loop({ends}, one_step, {start})"]
        loop = [f"for step in range({self.ends(op.steps)}):"]
        loop.append(f"    {given} = one_step(step, {given})")
        return (
            [*function, *loop]
            if one
            else [*function, f"state = {joined}", *loop, f"{left} = state"]
        )

    def python(self, tests: Condition) -> bool:
        """True for tests of a step that Python counts."""
        return bool(tests) and not self.rolling and tests == steps_of(tests)

    def chosen(self, op: Choose) -> str:
        """Prints lax.cond(...) of all cases; the last one may leave values unchanged."""
        targets = writes(op)
        if any(writes(case) != targets for _, case in op.cases):
            raise PlanError("cases change different values")
        names = [self.names[register] for register in targets]
        same = names[0] if len(names) == 1 else f"({', '.join(names)})"
        text = f"lambda: {same}"
        for tests, case in reversed(op.cases):
            value, asked = self.value(case), self.words.condition(tests)
            made = f"lax.cond({asked}, lambda: {value}, {text})" if tests else value
            text = f"lambda: {made}"
        return made

    # ---- assignments

    def assigned(self, op: Op) -> str:
        """The line that gives what an op writes a value."""
        if isinstance(op, Post):
            return f"{self.names[op.message.handle]} = {self.value(op)}"
        return f"{', '.join(self.names[register] for register in writes(op))} = {self.value(op)}"

    def value(self, op: Op) -> str:
        """The value that an op gives its registers."""
        match op:
            case Let(_, source):
                return self.part(source)
            case Zero():
                return self.zero(op)
            case Clear(sums):
                if sums.register.of == "OUT":
                    raise PlanError("a part of partial outputs leaves")
                return f"clear({self.names[sums.register]}, {self.tokens(sums)})"
            case Post(message):
                return self.message(message)
            case Wait():
                return self.wait(op)
            case Attend():
                return self.attend(op)
            case Choose():
                return self.chosen(op)
            case For() | At():
                raise PlanError("a case contains a loop")
            case _:
                assert_never(op)

    def zero(self, op: Zero) -> str:
        """New accumulators."""
        if op.sums.of == "OUT":
            self.used.add("v")
            return f"zero_output({self.whole(op.like)}, v)"
        if op.sums.of == "DKV":
            return f"zeros({self.whole(op.like)})"
        if op.like.value == OWN:
            return f"zeros({self.given('q')})"
        held = "q" in self.keeps
        return f"zeros({self.given('held_q')})" if held else f"zeros({self.whole(op.like)}[:1])"

    # ---- messages

    def message(self, message: Message, other: str = "") -> str:
        """The call that sends a message; `other`: what a rank has to which nothing comes."""
        sent, route = self.sent(message), message.route
        if isinstance(route, Hop):
            return self.hop(message, route, sent, other)
        outputs = message.source.register.of == "OUT"
        if isinstance(route, Root) and (len(self.mesh) > 1 or outputs):
            raise PlanError("a root of a part of the ranks, or of outputs, has no call in JAX")
        return self.exchanged(message, route, sent)

    def wait(self, op: Wait) -> str:
        """Returns the expression of a received value, or of sums with that value added."""
        register, route, into = op.into.register, op.message.route, self.names[op.into.register]
        other = into if op.partial and not register.accumulates else ""
        came = self.message(op.message, other) if op.starts else self.names[op.message.handle]
        if other and not op.starts and isinstance(route, Hop) and ranks_of(op.message.on):
            return f"receive({came}, {other}, axis, {self.pairs(op.message, route)})"
        came = self.arrived(op, came)
        if not register.accumulates or op.replaces:
            return came
        where, sums = self.tokens(op.into), self.of_heads(op.into, into)
        if isinstance(route, Reduce) and register.of == "OUT":
            total = f"merge_all({sums}, {came}, {self.mesh[route.axis]})"
        else:
            verb = "merge_output" if register.of == "OUT" else "add"
            total = f"{verb}({sums}, {came}{f', {where}' * bool(where)})"
        if not op.into.heads:
            return total
        which = "some_" * several(op.into)
        return f"with_{which}heads({into}, {total}, {self.slice_of_heads(op.into)})"

    def attended(self, op: Attend) -> list[str]:
        """Prints the piece size for tiles, since kernels for pieces take no mask."""
        if op.kind != "tiles" or not self.form.runs:
            return super().attended(op)
        self.used.add("piece")
        return [*super().attended(op), "piece=piece"]

    def attend(self, op: Attend) -> str:
        """One call, with the accumulators that it adds to."""
        first, *others = op.sums
        if any(x.heads for x in others):
            raise PlanError("gradients of some heads of keys are added to others")
        if not first.heads:
            call, *given = self.attended(op)
            return f"{call}({', '.join(given)})"
        if first.heads != op.q.heads or several(op.q):
            raise PlanError("sums of some heads are added to by others")
        q, sums = replace(op.q, heads=None), (Slice(first.register), *others)
        call, *given = self.attended(replace(op, q=q, sums=sums))
        of_heads = [call, self.slice_of_heads(first), *given]
        return f"{ONE_SLICE[self.program.pass_]}({', '.join(of_heads)})"

    # ---- the ends of a function

    def opening(self) -> Lines:
        """The names that the lines below read, each after what it needs itself."""
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
        known = {
            **self.lengths(),
            "piece": f"{self.own[0]}.shape[2]{f' // {pieces}' * (pieces > 1)}",
            "delta": "(dout.astype(accum_dtype(dout)) * out).sum(-1, keepdims=True)",
            **self.orders,
        }
        return [*lines, *(f"{name} = {known[name]}" for name in known if name in self.used)]

    def ending(self, saved: Sequence[str]) -> Lines:
        """The lines that name and return the results."""
        output = self.names[Register("OUT", OWN)]
        kept = [
            f"*{self.names[r]}"
            for register in sorted(self.program.kept, key=lambda r: r.of != "q")
            for r in (register, *[Register("OUT", register.value)] * (register.of == "q"))
        ]
        results = ("out", "lse") if "lse" in saved else ("out", "_")
        lines = [f"{', '.join(results)} = {output}"]
        named = [x for x in results if x != "_"]
        lines += [f'{x} = checkpoint_name({x}, "attention_{x}")' for x in named]
        if kept:
            lines.append(f'kept = checkpoint_name([{", ".join(kept)}], "attention_kept")')
        both = ", ".join([*saved, *["*kept"] * bool(kept)])
        return [*lines, f"return out.astype(q.dtype), [{both}]"]
