"""Messages as JAX expressions: a call of the vocabulary for each route."""

from typing import assert_never

from codegen.conditions import Condition, Every, Steps
from codegen.ir import Gather, Hop, Message, Reduce, Register, Swap, SwapBack, Wait, walk
from codegen.jax.operands import Operands
from planner.errors import PlanError
from planner.loops.form import OWN, Expr, Root


class Messages(Operands):
    """The calls that send the messages of one pass."""

    def message(self, message: Message, other: str = "") -> str:
        """The call that sends a message; `other`: what a rank has to which nothing comes."""
        sent, route = self.part(message.source, message.tensors), message.route
        if message.complete and not isinstance(route, Reduce):
            sent = self.narrowed(message.source.register)
        match route:
            case Hop():
                return self.hop(message, route, sent, other)
            case Root():
                return self.rooted(message, route, sent)
            case Gather():
                return f"gather({sent}, axis{self.group(route.axis)})"
            case Swap():
                sent = f"repeat_heads({sent}, {route.copies})" if route.copies > 1 else sent
                return f"swap({sent}, 1, 2, axis{self.group(route.axis)})"
            case Reduce() | SwapBack():
                if route.sort:
                    sent = f"tokens({sent}, {self.order(message, True)})"
                group = self.group(route.axis)
                if isinstance(route, SwapBack):
                    came = f"swap({sent}, 2, 1, axis{group})"
                    return f"add_repeated({came}, {route.copies})" if route.copies > 1 else came
                merged = message.source.register.of == "OUT"
                return (
                    f"swap({sent}, 2, 0, axis{group})" if merged else f"reduce({sent}, axis{group})"
                )
            case _:
                assert_never(route)

    def rooted(self, message: Message, route: Root, sent: str) -> str:
        """A message from a root to all, or of sums to it."""
        if len(self.mesh) > 1 or message.source.register.of == "OUT":
            raise PlanError("a root of a part of the ranks, or of outputs, has no call in JAX")
        verb = "reduce_to" if message.source.register.accumulates else "broadcast"
        return f"{verb}({sent}, {self.words.number(route.root)}, axis)"

    def hop(self, message: Message, route: Hop, sent: str, other: str) -> str:
        """A message between pairs of ranks."""
        on, pairs = ranks_of(message.on), self.pairs(message, route)
        if on and message.source.register.of == "OUT":
            return f"exchange_output({sent}, axis, {pairs})"
        return f"exchange({sent}, axis, {pairs}{f', {other}' * bool(on and other)})"

    def pairs(self, message: Message, route: Hop) -> str:
        """Pairs of sender and receiver: a constant, unless these change with the step."""
        on, short, used = ranks_of(message.on), self.short(), "step" in self.used
        self.used.discard("step")
        words, sign = self.plain(short), -1 if message.of_receiver else 1
        ends = list[str]()
        for n, (e, x, size) in enumerate(zip(route.by, short, self.sizes, strict=True)):
            if any(e.axes) or e.table:
                raise PlanError("how far a message goes depends on the rank")
            unit = tuple(int(axis == n) for axis in range(len(short)))
            end = Expr(sign * e.constant, sign * e.step, unit, 0, (), e.period, e.phase)
            ends.append(x if e == Expr() else f"({words.number(end)}) % {size}")
        own, other = self.joined(short), self.joined(ends)
        pair = f"({other}, {own})" if message.of_receiver else f"({own}, {other})"
        asked = f" if {words.condition(on)}" if on else ""
        text = f"[{pair} {self.over(short)}{asked}]"
        if "step" in self.used:
            return text
        self.used.update(["step"] * used)
        titles = {Expr(1): "NEXT", Expr(-1): "PREVIOUS"}
        plain = len(route.by) == 1 and not on
        return self.constant(titles.get(route.by[0], "PAIRS") if plain else "PAIRS", text)

    def group(self, axis: int) -> str:
        """The argument of exchanges along one axis of several."""
        if len(self.mesh) == 1:
            return ""
        short = self.short()
        others = [x for n, x in enumerate(short) if n != axis]
        inner = f"[{self.joined(short)} {self.over([short[axis]])}]"
        return f", {self.constant(f'ALONG_{self.sizes[axis]}', f'[{inner} {self.over(others)}]')}"

    def order(self, message: Message, back: bool = False) -> str:
        """The order that brings gathered tokens into that of the sequence, or back."""
        of, route, short = message.exchanged, message.route, self.short()
        assert of
        assert isinstance(route, Gather | Swap | Reduce | SwapBack)
        axes, each = [route.axis], self.positions_of(short, of.side)
        if of.value != OWN:  # ranks along this axis give what they gathered along another
            inner = self.axis_of(of)
            each = f"np.sort(np.concatenate([{each} {self.over([short[inner]])}]))"
            axes.append(inner)
        text = f"np.argsort(np.concatenate([{each} {self.over([short[route.axis]])}]))"
        others = [n for n in range(len(short)) if n not in axes]
        for n in reversed(others):
            text = f"[{text} {self.over([short[n]])}]"
        if others:
            self.used.update(self.axes[n] for n in others)
            text = f"jnp.array({text})[{', '.join(self.axes[n] for n in others)}]"
        name = "order" if len(self.mesh) == 1 else f"order_{route.axis}"
        if self.form.apart and of.side == "kv":
            name = f"kv_{name}"
        if self.orders.setdefault(name, text) != text:
            raise PlanError("tokens are exchanged in two orders along an axis")
        return f"{'jnp' if others else 'np'}.argsort({name})" if back else name

    def axis_of(self, register: Register) -> int:
        """The axis along which inputs were gathered."""
        for op in walk(self.program.ops):
            if isinstance(op, Wait) and op.into.register == register:
                route, of = op.message.route, op.message.exchanged
                if isinstance(route, Gather | Swap) and of and of.value == OWN:
                    return route.axis
        raise PlanError("tokens are exchanged that came in several exchanges")


def steps_of(on: Condition) -> Condition:
    """The tests that are the same on all ranks."""
    return tuple(test for test in on if isinstance(test, Steps | Every))


def ranks_of(on: Condition) -> Condition:
    """The tests that are not the same on all ranks."""
    return tuple(test for test in on if not isinstance(test, Steps | Every))
