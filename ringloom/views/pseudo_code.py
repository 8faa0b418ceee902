"""Prints the loops of a plan as pseudo-code, a line per statement."""

from collections.abc import Iterator
from math import prod

from ringloom.planner.ir import TENSORS
from ringloom.planner.loops.form import (
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
    When,
)

WIDTH = 54  # characters of a statement, before its conditions
ZERO = Expr()


def pseudo_code(loops: Loops) -> str:
    """Returns the loops as text, lines joined by newlines, none at the end."""
    axes = axis_names(loops.mesh)
    sizes = " x ".join(f"{a}={n}" for a, n in zip(axes, loops.mesh, strict=True))
    lines = [f"mesh {sizes}"]
    for section in loops.sections():
        first, last = section.first, section.last
        lines.append(f"for t in {first}..{last}:" if last > first else f"step {first}:")
        for s in section.statements:
            conditions = ", ".join(_conditions(s.when, section, loops.mesh))
            lines.append(f"    {_statement(s, axes):<{WIDTH}} {conditions}".rstrip())
    return "\n".join(lines)


def axis_names(mesh: tuple[int, ...]) -> tuple[str, ...]:
    """Returns a letter per axis: r for a single axis, otherwise g, h, i, ..."""
    return ("r",) if len(mesh) == 1 else tuple("ghijklm"[: len(mesh)])


def expression(e: Expr, axes: tuple[str, ...]) -> str:
    """Returns an expression as text: "t-1" or "(2t+r)%8"."""
    terms = _terms(e, axes)
    text = "".join(_term(factor, name, bool(n)) for n, (factor, name) in enumerate(terms)) or "0"
    if e.table:
        return f"TABLE[{text}]"
    if not (e.modulo and (e.step or any(e.axes))):
        return text
    is_symbol = len(terms) == 1 and terms[0][0] == 1
    return f"{text if is_symbol else f'({text})'}%{e.modulo}"


def _terms(e: Expr, axes: tuple[str, ...]) -> list[tuple[int, str]]:
    """Returns the non-zero terms: coordinates, the clock, the constant."""
    terms = [*zip(e.axes, axes, strict=False), (e.step, _clock(e)), (e.constant, "")]
    return [(factor, name) for factor, name in terms if factor]


def _term(factor: int, name: str, later: bool) -> str:
    sign = "-" if factor < 0 else "+" if later else ""
    return f"{sign}{abs(factor) if abs(factor) > 1 or not name else ''}{name}"


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
            content = f"{' '.join(s.tensors)} {_sums(s.tensors)}{parts}"
            into = f" into {_part(s.into, axes)}" if s.into else ""
            return f"{s.name} <- send {content} {_destination(s, axes)}{into}"
        case Exchange():
            content, along = f"{' '.join(s.tensors)} {_part(s.part, axes)}", f"along {axes[s.axis]}"
            heads = _slices(Part("", heads=s.heads), axes)
            if s.gathers:
                return f"{s.name} <- gather {content}{f', {heads},' * bool(heads)} {along}"
            return f"{s.name} <- all-to-all {content}, {heads} of receiver, {along}"
        case Return():
            exchanged = s.name + _age(s.lag)
            return f"return {' '.join(s.tensors)} over {exchanged} along {axes[s.axis]}"


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


def _destination(s: Send, axes: tuple[str, ...]) -> str:
    match s.hop:
        case Root():
            root = f"{axes[s.hop.axis]} = {expression(s.hop.root, axes)}"
            return f"{'to' if s.sums else 'from'} {root}"
    hops = (_hop(axis, e, axes) for axis, e in zip(axes, s.hop.by, strict=True) if e != ZERO)
    return f"to {', '.join(hops)}"


def _hop(axis: str, e: Expr, axes: tuple[str, ...]) -> str:
    """Returns a coordinate and an offset: "r+1" or "g-1"."""
    backward = not (e.table or e.modulo) and _terms(e, axes)[0][0] < 0
    return f"{axis}{'' if backward else '+'}{expression(e, axes)}"


def _conditions(w: When, section: Section, mesh: tuple[int, ...]) -> Iterator[str]:
    if w.every > 1:
        steps = f" {w.width} steps" if w.width > 1 else ""
        yield f"t in {w.first}..{w.last}, every {w.every}{steps}"
    elif (w.first, w.last) != (section.first, section.last):
        first, last = (Expr(t) for t in (w.first, w.last))
        low = first if w.first > section.first or w.first == w.last else None
        high = last if w.last < section.last or w.first == w.last else None
        yield _between("t", low, high, ())
    yield from _rank_conditions(w.guard, mesh)


def _rank_conditions(g: Guard, mesh: tuple[int, ...]) -> Iterator[str]:
    axes = axis_names(mesh)
    for axis, low, high in g.bounds:
        size = prod(mesh) if axis < 0 else mesh[axis]
        if not low and high == ZERO:
            low = ZERO
        if not high and low == Expr(size - 1):
            high = low
        name = "rank" if axis < 0 else axes[axis]
        yield _between(f"to_{name}" if g.receiver else name, low, high, axes)
    rank = "to_r" if g.receiver else "r"
    if g.spans:
        yield f"FIRST[{rank}] <= t <= LAST[{rank}]"
    if g.ranks:
        yield f"{rank} in {list(g.ranks)}"


def _between(name: str, low: Expr | None, high: Expr | None, axes: tuple[str, ...]) -> str:
    first, last = (expression(e, axes) if e else "" for e in (low, high))
    if low == high:
        return f"{name} = {first}"
    if not (low and high):
        return f"{name} >= {first}" if low else f"{name} <= {last}"
    are_constant = low == Expr(low.constant) and high == Expr(high.constant)
    if are_constant and low.constant > high.constant:  # wraps around the last rank
        return f"({name} >= {first} or {name} <= {last})"
    return f"{first} <= {name} <= {last}"
