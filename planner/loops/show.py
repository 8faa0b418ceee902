"""show(loops)   the loop form as pseudo-code: a section per loop, a line per statement."""

from collections.abc import Iterator
from math import prod

from planner.ir import TENSORS
from planner.loops.form import (
    Attend,
    Ends,
    Exchange,
    Expr,
    Guard,
    Loops,
    Part,
    Return,
    Root,
    Section,
    Send,
    Start,
    Statement,
    Table,
    When,
)

WIDTH = 54  # of a statement, before its conditions
ZERO = Expr()


def show(loops: Loops) -> str:
    """Returns the loops as text, lines joined by newlines, none at the end."""
    axes = names(loops.mesh)
    sizes = " x ".join(f"{a}={n}" for a, n in zip(axes, loops.mesh, strict=True))
    lines = [f"mesh {sizes}"]
    for section in loops.sections():
        a, b = section.first, section.last
        lines.append(f"for t in {a}..{b}:" if b > a else f"step {a}:")
        for s in section.statements:
            when = ", ".join(_when(s.when, section, loops.mesh))
            lines.append(f"    {_statement(s, axes):<{WIDTH}} {when}".rstrip())
    return "\n".join(lines)


def names(mesh: tuple[int, ...]) -> tuple[str, ...]:
    """A letter per axis: r for ranks in a row, else g, h, i, ..."""
    return ("r",) if len(mesh) == 1 else tuple("ghijklm"[: len(mesh)])


def expression(e: Expr, axes: tuple[str, ...]) -> str:
    """An expression as text, "t-1" or "(2t+r)%8"."""
    terms = [*zip(e.axes, axes, strict=False), (e.step, _clock(e))]
    text = ""
    for factor, name in ((k, n) for k, n in terms if k):
        sign = "-" if factor < 0 else "+" if text else ""
        text += f"{sign}{abs(factor) if abs(factor) > 1 else ''}{name}"
    if e.constant or not text:
        text += f"{e.constant:+d}" if text else str(e.constant)
    if e.table:
        return f"TABLE[{text}]"
    if not e.modulo or not any(k for k, _ in terms):
        return text
    return f"{text if text.isalpha() else f'({text})'}%{e.modulo}"


def _clock(e: Expr) -> str:
    if e.period == 1:
        return "t"
    return f"(t{-e.phase:+d})//{e.period}" if e.phase else f"t//{e.period}"


def _statement(s: Statement, axes: tuple[str, ...]) -> str:
    match s:
        case Start():
            return f"{s.name} = {_sums(s.tensors)}{_part(s.part, axes)}"
        case Attend():
            q, kv = (" + ".join(_part(p, axes) for p in parts) for parts in (s.q, s.kv))
            return f"attend {q} x {kv}, {s.kind}"
        case Send():
            parts = " + ".join(_part(p, axes) for p in s.parts)
            what = f"{' '.join(s.tensors)} {_sums(s.tensors)}{parts}"
            into = f" into {_part(s.into, axes)}" if s.into else ""
            return f"{s.name} <- send {what} {_to(s, axes)}{into}"
        case Exchange():
            what, along = f"{' '.join(s.tensors)} {_part(s.part, axes)}", f"along {axes[s.axis]}"
            heads = _slices(Part("", heads=s.heads), axes)
            if s.gathers:
                return f"{s.name} <- gather {what}{f', {heads},' * bool(heads)} {along}"
            return f"{s.name} <- all-to-all {what}, {heads} of receiver, {along}"
        case Return():
            over = s.name + _age(s.lag)
            return f"return {' '.join(s.tensors)} over {over} along {axes[s.axis]}"


def _sums(tensors: tuple[str, ...]) -> str:
    return "sum for " if TENSORS[tensors[0]].accumulates else ""


def _part(p: Part, axes: tuple[str, ...]) -> str:
    return p.value + _age(p.lag) + _slices(p, axes)


def _age(lag: int) -> str:
    return f"@t{-lag:+d}" if lag else ""


def _slices(p: Part, axes: tuple[str, ...]) -> str:
    pieces = f"[{_span(p.pieces, axes)}]" if p.pieces else ""
    return pieces + (f"[heads {_span(p.heads, axes)}]" if p.heads else "")


def _span(ends: Ends, axes: tuple[str, ...]) -> str:
    low, high = (expression(e, axes) for e in ends)
    return low if low == high else f"{low}..{high}"


def _to(s: Send, axes: tuple[str, ...]) -> str:
    match s.hop:
        case Table():
            return "to TO[r]"
        case Root():
            root = f"{axes[s.hop.axis]} = {expression(s.hop.root, axes)}"
            return f"{'to' if s.sums else 'from'} {root}"
    hops = []
    for axis, e in zip(axes, s.hop.by, strict=True):
        text = expression(e, axes)
        if e != ZERO:
            hops.append(f"{axis}{'' if text.startswith('-') else '+'}{text}")
    return f"to {', '.join(hops)}"


def _when(w: When, section: Section, mesh: tuple[int, ...]) -> Iterator[str]:
    first, last = section.first, section.last
    if w.every > 1:
        steps = f" {w.width} steps" if w.width > 1 else ""
        yield f"t in {w.first}..{w.last}, every {w.every}{steps}"
    elif (w.first, w.last) != (first, last):
        yield _between("t", str(w.first), str(w.last), w.first == first, w.last == last)
    yield from _guard(w.guard, mesh)


def _between(name: str, low: str, high: str, no_low: bool, no_high: bool) -> str:
    if low == high:
        return f"{name} = {low}"
    if low.isdecimal() and high.isdecimal() and int(low) > int(high):  # around the end
        return f"({name} >= {low} or {name} <= {high})"
    if no_low:
        return f"{name} <= {high}"
    return f"{name} >= {low}" if no_high else f"{low} <= {name} <= {high}"


def _guard(g: Guard, mesh: tuple[int, ...]) -> Iterator[str]:
    axes = names(mesh)
    for axis, low, high in g.bounds:
        name = "rank" if axis < 0 else axes[axis]
        size = prod(mesh) if axis < 0 else mesh[axis]
        lowest, highest = (expression(e, axes) if e else None for e in (low, high))
        if not low and high == ZERO:
            lowest = highest
        if not high and low == Expr(size - 1):
            highest = lowest
        name = f"to_{name}" if g.receiver else name
        yield _between(name, lowest or "", highest or "", lowest is None, highest is None)
    who = "to_r" if g.receiver else "r"
    if g.spans:
        yield f"FIRST[{who}] <= t <= LAST[{who}]"
    if g.ranks:
        yield f"{who} in {list(g.ranks)}"
