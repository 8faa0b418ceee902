"""print_pass(program, ...)   a pass as a torch function: a line or two for each op of its program.

Every op is one call of the vocabulary under `parts/vocabulary`. Nothing is decided here but how an
op is written; nothing that was printed is read.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import assert_never

from codegen.conditions import Condition, Every, Steps
from codegen.ir import (
    At,
    Attend,
    Choose,
    Clear,
    For,
    Gather,
    Hop,
    Let,
    Message,
    Op,
    Post,
    Program,
    Reduce,
    Register,
    Slice,
    Swap,
    SwapBack,
    Wait,
    Zero,
    walk,
)
from codegen.torch.operands import Form, Operands, kept_along
from planner.errors import PlanError
from planner.loops.form import OWN, Expr, Root

Lines = list[str]
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
            *(f"    {line}" for line in (*self.opening(), *body)),
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
            case Zero():
                return [f"{self.names[op.sums]} = {self.zero(op)}"]
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
                return [self.attend(op)]
            case Choose(cases):
                return self.choose(cases)
            case For(steps, body):
                return self.loop(steps, body)
            case At(step, body):
                self.words = self.frame(range(step, step + 1), False)
                return self.lines(body)
            case _:
                assert_never(op)

    def loop(self, steps: range, body: Sequence[Op]) -> Lines:
        """A loop over steps."""
        self.words = self.frame(steps, True)
        start = f"{steps.start}, " * (steps.start > 0)
        stop = "RANKS" if steps.stop == prod(self.mesh) > 3 else str(steps.stop)
        return [f"for step in range({start}{stop}):", *indented(self.lines(body))]

    def choose(self, cases: Sequence[tuple[Condition, Op]]) -> Lines:
        """if ...: elif ...: else: ..."""
        lines = Lines()
        for n, (case, alike) in enumerate(groupby(cases, itemgetter(1))):
            each = [tests for tests, _ in alike]
            asked = [self.words.condition(tests) for tests in each]
            if len(each) > 1:
                asked = [f"({x})" if len(y) > 1 else x for x, y in zip(asked, each, strict=True)]
            head = f"{'el' * (n > 0)}if {' or '.join(asked)}:" if all(asked) else "else:"
            lines += [head, *indented(self.op(case))]
        return lines

    def zero(self, op: Zero) -> str:
        """New accumulators."""
        own = op.like.value == OWN
        match op.sums.of:
            case "OUT":
                return f"zero_output({self.whole(op.like)})"
            case "DKV":
                return f"zeros({self.whole(op.like)})"
            case _:
                if own:
                    return "zeros([q])" if not self.keeps else "zeros(saved[:1])"
                return "zeros([q])" if self.keeps else f"zeros({self.whole(op.like)}[1:2])"

    # ---- messages

    def message(self, message: Message) -> tuple[Lines, str]:
        """Lines before a message, and the call that starts it."""
        sent = self.part(message.source, message.tensors, sent=True)
        before, route = Lines(), message.route
        if message.complete and not isinstance(route, Reduce):
            sent = self.narrowed(message.source.register)
            if self.keeps and not self.backward:
                name = self.names[message.source.register]
                before, sent = [f"{name} = {sent}"], name
        match route:
            case Hop():
                return self.hop(message, sent)
            case Root():
                verb = "reduce_to" if message.source.register.accumulates else "broadcast"
                call = f"{verb}({sent}, {self.words.number(route.root)}, {self.group(route.axis)})"
            case Gather():
                call = f"gather({sent}, {self.group(route.axis)})"
            case Swap():
                sent = f"repeat_heads({sent}, {route.copies})" if route.copies > 1 else sent
                call = f"swap({sent}, 1, 2, {self.group(route.axis)})"
            case Reduce() | SwapBack():
                if route.sort:
                    sent = f"tokens({sent}, {self.order(message)}.argsort())"
                group = self.group(route.axis)
                call = f"swap({sent}, 2, 1, {group})"
                if isinstance(route, Reduce):
                    merged = message.source.register.of == "OUT"
                    call = f"swap({sent}, 2, 0, {group})" if merged else f"reduce({sent}, {group})"
            case _:
                assert_never(route)
        if not steps_only(message.on):
            raise PlanError("ranks are left out of a message of all")
        return before, call + self.when(message.on)

    def when(self, on: Condition) -> str:
        """The end of a call that runs in some steps."""
        return f" if {self.words.condition(on)} else None" if on else ""

    def group(self, axis: int) -> str:
        """The group of the ranks along an axis."""
        if len(self.mesh) == 1:
            self.used.add("group")
            return "group"
        self.used.add("axis_groups")
        return f"axis_groups[{axis}]"

    def hop(self, message: Message, sent: str) -> tuple[Lines, str]:
        """A message between pairs of ranks."""
        assert isinstance(message.route, Hop)
        to, source = (self.far(message.route.by, sign) for sign in (1, -1))
        self.used.add("group")
        call = f"exchange({sent}, {self.joined(to)}, {self.joined(source)}, group"
        if steps_only(message.on):
            return [], f"{call}){self.when(message.on)}"
        ends = (to, self.axes) if message.of_receiver else (self.axes, source)
        self.used.update(self.axes)
        short = tuple(name[0] for name in self.axes)
        words = self.words.of(short, self.joined(short))
        each = ", ".join(f"({', '.join(x)})" if len(x) > 1 else x[0] for x in ends)
        steps = tuple(test for test in message.on if isinstance(test, Steps | Every))
        ranks = tuple(test for test in message.on if test not in steps)
        on = f"on = [{words.condition(ranks)} for {', '.join(short)} in ({each})]"
        return [on], f"{call}, *on){self.when(steps)}"

    def far(self, by: Sequence[Expr], sign: int) -> tuple[str, ...]:
        """The coordinates of the rank so far ahead, or behind."""
        texts = list[str]()
        for axis, (e, name, size) in enumerate(zip(by, self.axes, self.sizes, strict=True)):
            if any(e.axes) or e.table:
                raise PlanError("how far a message goes depends on the rank")
            unit = tuple(int(n == axis) for n in range(len(by)))
            end = Expr(sign * e.constant, sign * e.step, unit, 0, (), e.period, e.phase)
            number = self.words.number(end)
            texts.append(name if e == Expr() else f"({number}) % {size}")
        return tuple(texts)

    def order(self, message: Message) -> str:
        """The name of the order that brings gathered tokens into that of the sequence."""
        of, route = message.exchanged, message.route
        assert of
        assert isinstance(route, Gather | Swap | Reduce | SwapBack)
        name = "order" if len(self.mesh) == 1 else f"order_{route.axis}"
        at = tuple(None if n == route.axis else e for n, e in enumerate(self.here()))
        each = self.owners(at, of.side)
        if of.value != OWN:  # ranks along this axis give what they gathered along another
            inner = tuple(None if n == self.axis_of(of) else e for n, e in enumerate(self.here()))
            group = f"torch.cat([{self.owners(inner, of.side)}]).sort().values"
            each = f"{group} for {self.axes[route.axis]} in range({self.sizes[route.axis]})"
        name = f"kv_{name}" if self.form.apart and of.side == "kv" else name
        text = f"torch.cat([{each}]).argsort()"
        if self.orders.setdefault(name, text) != text:
            raise PlanError("tokens are exchanged in two orders along an axis")
        self.used.add(name)
        return name

    def axis_of(self, register: Register) -> int:
        """The axis along which inputs were gathered."""
        for op in walk(self.program.ops):
            if isinstance(op, Wait) and op.into.register == register:
                route, of = op.message.route, op.message.exchanged
                if isinstance(route, Gather | Swap) and of and of.value == OWN:
                    return route.axis
        raise PlanError("tokens are exchanged that came in several exchanges")

    def wait(self, op: Wait) -> Lines:
        """Bind what comes, or add it."""
        before, started = Lines(), self.names[op.message.handle]
        if op.starts:
            before, started = self.message(op.message)
        came, route = f"wait({started})", op.message.route
        if isinstance(route, SwapBack) and route.copies > 1:
            came = f"add_repeated({came}, {route.copies})"
        if isinstance(route, Gather | Swap) and route.sort:
            came = f"tokens({came}, {self.order(op.message)})"
        came = f"with_output({came})" if op.into.register in self.settled else came
        register, heads = op.into.register, op.into.heads
        if heads and heads[0] != heads[1]:
            verb = "merge_heads" if register.of == "OUT" else "add_heads"
            whole, slices = self.whole(register), self.several(op.into)
            return [*before, f"{verb}({whole}, {slices}, {came})"]
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

    # ---- attends

    def attend(self, op: Attend) -> str:
        """One call, with the accumulators that it adds to."""
        whole = [Slice(s.register, None, s.heads) for s in (*op.sums, op.kv)]
        *sums, kv = (self.part(s) for s in whole)
        given = ", ".join([*sums, self.queries(op.q), kv])
        rows, cols = self.tokens(op.q), self.tokens(op.kv)
        call = "add_gradients" if self.backward else "merge_attention"
        if op.kind == "strict" and (rows or cols):
            raise PlanError("pieces of a value are attended without their diagonal")
        if op.kind == "strict":
            return f"{call}({given}, True, slice(1, None), slice(-1))"
        cut = "".join(f", {n}={x}" for n, x in (("rows", rows), ("cols", cols)) if x)
        if op.kind != "tiles":
            return f"{call}({given}, {op.kind == 'causal'}{cut})"
        assert op.places
        q_place, kv_place = op.places
        at = f"{self.positions(q_place, 'q')}, {self.positions(kv_place, 'kv')}"
        call = "add_tile_gradients" if self.backward else "merge_tiles"
        return f"{call}({given}, {at}{cut})"

    # ---- the ends of a function

    def opening(self) -> Lines:
        """The names that the lines below read, each after what it needs itself."""
        own, several = ("dout" if self.backward else "q"), len(self.mesh) > 1
        unit = f" * {self.program.unit}" * (self.program.unit > 1)
        keys = "saved[1]" if self.other(Register("kv", OWN)) else "k"
        count, kv_count = (self.program.pieces_of(Register(side, OWN)) for side in ("q", "kv"))
        self.used.update(self.axes if several and self.orders else ())
        asked = self.used & {"group", "rank", "axis_groups", *self.axes}
        lines = [*self.saved(), *["group = group_named(name)"] * bool(asked)]
        if several and self.used & {*self.axes, "axis_groups"}:
            lines.append("axis_groups, at = along_axes(group)")
        at = [f"at[{n}]" for n in range(len(self.mesh))] if several else ["group.rank()"]
        known = {
            **dict(zip(self.axes, at, strict=True)),
            "rank": "group.rank()",
            "size": f"{own}.shape[2]{unit} // {count}",
            "kv_size": f"{keys}.shape[2]{unit} // {kv_count}",
            "seq": f"{own}.shape[2] * RANKS",
            "delta": "(dout * out.to(wide(q))).sum(-1, keepdim=True)",
            **self.orders,
        }
        used = (name for name in known if name in self.used)
        return [*lines, *(f"{name} = {known[name]}" for name in used)]

    def saved(self) -> Lines:
        """The names of what the forward pass has left."""
        if not self.backward:
            return []
        sinks, logits = self.form.sinks, "_, " * (self.form.sinks and not self.keeps)
        lines = [f"{'*_, ' * self.keeps}q, k, v, {logits}out, lse = saved"]
        return [*lines, *["slope = sink_gradient(dout, *saved[3:6])"] * sinks]

    def ending(self) -> Lines:
        """The lines that return the results."""
        if self.backward:
            dq, dkv = (self.names[Register(x, OWN)] for x in ("DQ", "DKV"))
            gradients = f"narrow([*{dq}, *{dkv}], q)"
            return [f"return [*{gradients}, slope]" if self.form.sinks else f"return {gradients}"]
        output = Register("OUT", OWN)
        name, sinks = self.names[output], self.form.sinks
        lines = [f"{name} = sunk(*{name}, sinks)"] * sinks
        if not self.keeps:
            return [*lines, f"return {self.narrowed(output)}"]
        axis = kept_along(self.program)
        results = self.names[Register("OUT", self.program.kept[0].value)]
        if sinks:
            self.used.add(self.axes[axis])
            results = f"sunk(*{results}, sinks.chunk({self.sizes[axis]})[{self.axes[axis]}])"
        kept = (self.names[register] for register in self.program.kept)
        given = ", ".join(f"*{x}" for x in (self.narrowed(output), *kept, results))
        return [*lines, f"return [{given}]"]


def indented(lines: Iterable[str]) -> Lines:
    """The lines of a block."""
    return [f"    {line}" for line in lines]


def steps_only(on: Condition) -> bool:
    """True for a condition that is the same on all ranks."""
    return all(isinstance(test, Steps | Every) for test in on)
