"""layout_text   `positions`, `shard` and `unshard` of a program, printed from its layout."""

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codegen.layout import Form, Layout, Pieces, Ranges, Stripes, affine, described, piece

WIDTH = 100


@dataclass(frozen=True)
class Words:
    """What a framework calls things."""

    library: str  # what `arange` and `cat` are functions of
    cat: str
    array: str  # the type of positions
    tensor: str  # the type of what is cut into shards
    split: Callable[[str, str], str]  # (whole, parts) -> nearly equal parts, the first ones longer
    imports: tuple[str, ...]


TORCH = Words(
    "torch",
    "torch.cat",
    "Tensor",
    "Tensor",
    lambda x, n: f"{x}.tensor_split({n})",
    ("from collections.abc import Iterable", "", "import torch", "from torch import Tensor"),
)
JAX = Words(
    "np",
    "np.concatenate",
    "np.ndarray",
    "jax.Array",
    lambda x, n: f"np.array_split({x}, {n})",
    (
        *("from collections.abc import Iterable", ""),
        *("import jax", "import jax.numpy as jnp", "import numpy as np"),
    ),
)
TARGETS = {"torch": TORCH, "jax": JAX}


def layout_text(layout: Layout, target: str) -> str:
    """The layout section of a program, as a module text."""
    words = TARGETS[target]
    padded = target == "jax" and not layout.equal
    lines = [*words.imports, "", *heading(layout), *_data(layout)]
    lines += _positions(layout.q, layout, words, "positions", padded)
    if _apart(layout, padded):
        lines += _positions(layout.kv, layout, words, "kv_positions", padded)
    elif layout.q.tokens != layout.kv.tokens:
        lines += [*_head("kv_positions", words, "KV_SEQ"), f"    {_said('keys', padded)}"]
        lines += ["    return positions(rank, seq)"]
    if padded:
        lines += PADDED
    lines += _shard(layout, target, padded) + _unshard(layout, target, padded)
    return "\n".join(lines) + "\n"


def _apart(layout: Layout, padded: bool) -> bool:
    """True if the positions of keys are not told by the function that tells those of queries."""
    return not layout.alike or (padded and layout.q.tokens != layout.kv.tokens)


PADDED = [
    "",
    "",
    "def padded(own: np.ndarray, length: int) -> np.ndarray:",
    '    """Positions with -1 behind them."""',
    "    return np.pad(own, (0, length - len(own)), constant_values=-1)",
]


def heading(layout: Layout) -> Iterator[str]:
    """The title of the section, in words."""
    same = layout.alike
    q = described(layout.q, layout.ranks)
    said = f"# ---- Layout: {q}" if same else f"# ---- Layout: queries {q}"
    yield from wrapped(said + ("." if same else ";"))
    if not same:
        yield from wrapped(f"# keys {described(layout.kv, layout.ranks)}.")


def wrapped(text: str) -> list[str]:
    """A comment on lines that fit."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )


def _data(layout: Layout) -> Iterator[str]:
    """The ranges of each rank, where there is no formula."""
    sides = {"RANGES": layout.q, "KV_RANGES": layout.kv}
    for name, form in sides.items():
        if isinstance(form, Ranges):
            yield ""
            yield f"{name} = (  # first, end and step of the ranges of each rank"
            for held in form.held:
                cells = [f"({p.start}, {p.stop}, {p.step})" for p in held]
                yield from _tuple(cells)
            yield ")"


def _tuple(cells: list[str]) -> Iterator[str]:
    """A tuple as an element of another, on one line or one line per element."""
    comma = "," if len(cells) == 1 else ""
    line = f"    ({', '.join(cells)}{comma}),"
    if len(line) <= WIDTH:
        yield line
    else:
        yield "    ("
        yield from (f"        {cell}," for cell in cells)
        yield "    ),"


def _head(name: str, words: Words, seq: str) -> list[str]:
    return ["", "", f"def {name}(rank: int, seq: int = {seq}) -> {words.array}:"]


def _said(what: str, padded: bool) -> str:
    end = "; -1 is padding" if padded else ""
    return f'"""The positions of the {what} on a rank, in the order of its shard{end}."""'


def _positions(form: Form, layout: Layout, words: Words, name: str, padded: bool) -> list[str]:
    keys, apart = name != "positions", _apart(layout, padded)
    seq, data = ("KV_SEQ", "KV_RANGES") if keys else ("SEQ", "RANGES")
    lines = _head(name, words, seq)
    lines += [f"    {_said('keys' if keys else 'queries' if apart else 'tokens', padded)}"]
    match form:
        case Pieces():
            body = _pieces(form, words, padded)
        case Stripes():
            body = _stripes(form, words, padded)
        case _:
            body = _ranges(form, words, padded, data, seq)
    return lines + [f"    {line}" for line in body]


def _pieces(form: Pieces, words: Words, padded: bool) -> Iterator[str]:
    """The body of `positions`: which of the pieces, and which part of each."""
    if form.members > 1:
        yield f"g, h = divmod(rank, {form.members})"
    places = list(_places(form))
    pieces = words.split(f"{words.library}.arange(seq)", _count(form))
    if len(places) == 1:
        yield f"return {_own(f'{pieces}[{places[0]}]', form, words, padded)}"
        return
    yield f"pieces = {pieces}"
    if form.members == 1:
        each = ", ".join(_own(f"pieces[{place}]", form, words, padded) for place in places)
    else:
        each = f"{_own('pieces[i]', form, words, padded)} for i in ({', '.join(places)})"
    yield f"return {words.cat}([{each}])"


def _count(form: Pieces) -> str:
    """The number of pieces, by RANKS where it is a multiple of that."""
    width = len(form.places)
    if form.members > 1 or form.count == width:
        return str(form.count)
    return "RANKS" if width == 1 else f"{width} * RANKS"


def _places(form: Pieces) -> Iterator[str]:
    """The numbers of the pieces of a rank or a group."""
    for a, b in form.places:
        if form.members > 1 or (a, b) != (-1, form.count - 1):
            yield affine(a, b, "g" if form.members > 1 else "rank")
        else:
            yield f"{_count(form)} - 1 - rank"


def _own(whole: str, form: Pieces, words: Words, padded: bool) -> str:
    """A rank's part of a piece."""
    part = f"{words.split(whole, str(form.members))}[h]" if form.members > 1 else whole
    longest = max(1, len(piece(len(piece(form.tokens, form.count, 0)), form.members, 0)))
    return f"padded({part}, {longest})" if padded else part


def _stripes(form: Stripes, words: Words, padded: bool) -> Iterator[str]:
    """The body of `positions`: one stripe in so many, and which part of these."""
    group, groups = ("rank", "RANKS") if form.members == 1 else ("g", str(form.groups))
    if form.members > 1:
        yield f"g, h = divmod(rank, {form.members})"
    if form.grain == 1:
        own = f"{words.library}.arange({group}, seq, {groups})"
    else:
        yield f"tokens = {words.library}.arange(seq)"
        own = f"tokens[tokens // {form.grain} % {groups} == {group}]"
    if form.members > 1:
        own = f"{words.split(own, str(form.members))}[h]"
    longest = max(len(form.positions(g * form.members)) for g in range(form.groups))
    yield f"return padded({own}, {max(1, longest)})" if padded else f"return {own}"


def _ranges(form: Ranges, words: Words, padded: bool, data: str, seq: str) -> Iterator[str]:
    """The body of `positions` where the layout is data."""
    yield f"if seq != {seq}:"
    yield f'    raise ValueError(f"a layout of {{{seq}}} tokens, not of {{seq}}")'
    empty, each = f"{words.library}.arange(0)", f"{words.library}.arange(*r) for r in {data}[rank]"
    own = f"{words.cat}([{empty}, *({each})])"
    longest = max(sum(map(len, held)) for held in form.held)
    yield f"return padded({own}, {max(1, longest)})" if padded else f"return {own}"


# ---- cutting whole arrays, and joining parts


def _shard(layout: Layout, target: str, padded: bool) -> list[str]:
    words, apart = TARGETS[target], _apart(layout, padded)
    tensor, what = words.tensor, "tensor" if target == "torch" else "array"
    keys = ' of queries, with side="kv" of keys' if apart else ""
    keys += "; padding is zero" if padded else ""
    lines = [
        *["", ""],
        f"def shard(x: {tensor}, rank: int, axis: int = 2, side: str = {QUOTED}) -> {tensor}:",
        f'    """A rank\'s part of a whole {what}{keys}."""',
    ]
    if apart:
        lines += [f"    own = ({BY_SIDE})(rank, x.shape[axis])"]
    own = "own" if apart else "positions(rank, x.shape[axis])"
    if padded:
        return [*lines, *_from_padded(own)]
    if target == "jax":
        return [*lines, f"    return x.take({own}, axis)"]
    if _in_order(layout):
        return [*lines, "    return x.tensor_split(RANKS, axis)[rank].contiguous()"]
    return [*lines, f"    return x.index_select(axis, {own}.to(x.device))"]


QUOTED = '"q"'
BY_SIDE = 'positions if side == "q" else kv_positions'


def _from_padded(own: str) -> Iterator[str]:
    """Position -1 takes a zero that is put behind the last token."""
    yield "    behind = [(0, int(a == axis % x.ndim)) for a in range(x.ndim)]"
    yield f"    return jnp.pad(x, behind).take({own}, axis)"


def _unshard(layout: Layout, target: str, padded: bool) -> list[str]:
    words, apart = TARGETS[target], _apart(layout, padded)
    tensor, what = words.tensor, "tensor" if target == "torch" else "array"
    parts = f"Iterable[{tensor}]"
    lines = [
        *["", ""],
        f"def unshard(parts: {parts}, axis: int = 2, side: str = {QUOTED}) -> {tensor}:",
        f'    """The whole {what} in sequence order, from the parts of all ranks."""',
    ]
    cat = "torch.cat" if target == "torch" else "jnp.concatenate"
    if _in_order(layout) and not padded:
        return [*lines, f"    return {cat}(list(parts), axis)"]
    lines += [f"    whole = {cat}(list(parts), axis)"]
    if apart:
        lines += [f"    own = {BY_SIDE}"]
    function = "own" if apart else "positions"
    if padded:
        lines += [f"    order = np.concatenate([{function}(rank) for rank in range(RANKS)])"]
        return [*lines, "    return whole.take(np.argsort(order)[(order < 0).sum() :], axis)"]
    each = f"{function}(rank, whole.shape[axis]) for rank in range(RANKS)"
    lines += [f"    order = {words.cat}([{each}])"]
    if target == "jax":
        return [*lines, "    return whole.take(np.argsort(order), axis)"]
    return [*lines, "    return whole.index_select(axis, order.argsort().to(whole.device))"]


def _in_order(layout: Layout) -> bool:
    """True if the shards, one after the other, are the sequence."""
    form = layout.q
    plain = isinstance(form, Pieces) and form.members == 1 and len(form.places) == 1
    return plain and layout.alike and form.positions(0)[:1].tolist() == [0]
