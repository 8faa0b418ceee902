"""layout_text   `positions`, `shard` and `unshard` of a program, printed from its layout."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from codegen.layout import Form, Layout, Pieces, Ranges, Stripes, described
from codegen.reflow import WIDTH, reflow
from codegen.text import affine

IMPORTS = {
    "torch": "from collections.abc import Iterable\n\nimport torch\nfrom torch import Tensor\n",
    "jax": "from collections.abc import Iterable\n\n"
    "import jax\nimport jax.numpy as jnp\nimport numpy as np\n",
}
PADDED = '''

def padded(own: np.ndarray, length: int) -> np.ndarray:
    """Positions with -1 behind them."""
    return np.pad(own, (0, length - len(own)), constant_values=-1)
'''
BY_SIDE = 'positions if side == "q" else kv_positions'


def layout_text(layout: Layout, target: str, free: bool) -> str:
    """The layout section of a program; `free`: it takes any length whose pieces are equal."""
    text = Text(layout, target, free)
    functions = reflow([*text.positions("q"), *text.positions("kv")])
    lines = [*heading(layout), *_data(layout), *functions]
    padding = PADDED if text.padded else ""
    cuts = "\n".join([*text.shard(), *text.unshard()])
    return f"{IMPORTS[target]}\n" + "\n".join(lines) + f"\n{padding}{cuts}\n"


def heading(layout: Layout) -> Iterator[str]:
    """The title of the section, in words."""
    q, kv = (described(form, layout.ranks) for form in (layout.q, layout.kv))
    if layout.alike:
        yield from wrapped(f"# ---- Layout: {q}.")
    else:
        yield from wrapped(f"# ---- Layout: queries {q};")
        yield from wrapped(f"# keys {kv}.")


def wrapped(text: str) -> list[str]:
    """A comment on lines that fit."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )


def _data(layout: Layout) -> Iterator[str]:
    """The ranges of each rank, where there is no formula."""
    for name, form in (("RANGES", layout.q), ("KV_RANGES", layout.kv)):
        if isinstance(form, Ranges) and not (name == "KV_RANGES" and layout.alike):
            yield ""
            yield f"{name} = (  # first, end and step of the ranges of each rank"
            for held in form.held:
                yield from _tuple([f"({p.start}, {p.stop}, {p.step})" for p in held])
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


@dataclass(frozen=True)
class Text:
    """The functions of a layout, in the words of a framework."""

    layout: Layout
    target: str
    free: bool

    @property
    def torch(self) -> bool:
        return self.target == "torch"

    @property
    def padded(self) -> bool:
        """True if shards are made equal by padding, as JAX wants them."""
        return not self.torch and not self.layout.equal

    @property
    def apart(self) -> bool:
        """True if the positions of keys are not told by the function of those of queries."""
        longer = self.layout.q.tokens != self.layout.kv.tokens
        return not self.layout.alike or (self.padded and longer)

    # ---- positions

    def positions(self, side: str) -> Iterator[str]:
        """The function that tells the positions on a rank; of keys only where these differ."""
        layout, keys = self.layout, side == "kv"
        if keys and not self.apart and layout.q.tokens == layout.kv.tokens:
            return
        seq = "KV_SEQ" if keys else "SEQ"
        array = "Tensor" if self.torch else "np.ndarray"
        what = "keys" if keys else "queries" if self.apart else "tokens"
        end = "; -1 is padding" if self.padded else ""
        yield from ("", "")
        yield f"def {'kv_' * keys}positions(rank: int, seq: int = {seq}) -> {array}:"
        yield f'    """The positions of the {what} on a rank, in the order of its shard{end}."""'
        if keys and not self.apart:
            yield "    return positions(rank, seq)"
            return
        form = layout.kv if keys else layout.q
        if self.padded or isinstance(form, Ranges):  # other shards may be as long as the plan's
            yield f"    if seq != {seq}:"
            yield f'        raise ValueError(f"a layout of {{{seq}}} tokens, not of {{seq}}")'
        if self.free and not isinstance(form, Ranges):
            multiple = _multiple(form)
            parts = multiple if multiple.isdecimal() else f"{{{multiple.strip('()')}}}"
            said = f'f"{{seq}} tokens do not make {parts} equal parts"'
            yield f"    if not seq or seq % {multiple}:"
            yield f"        raise ValueError({said})"
        body = self.pieces(form) if isinstance(form, Pieces) else self.other(form, keys)
        yield from (f"    {line}" for line in body)

    def arange(self, arguments: str) -> str:
        return f"{'torch' if self.torch else 'np'}.arange({arguments})"

    @property
    def cat(self) -> str:
        return "torch.cat" if self.torch else "np.concatenate"

    def split(self, whole: str, parts: str) -> str:
        """Equal parts where lengths may change; else nearly equal ones, the first ones longer."""
        if self.free:
            return f"{whole}.{self.view}({parts}, -1)"
        return (
            f"{whole}.tensor_split({parts})" if self.torch else f"np.array_split({whole}, {parts})"
        )

    @property
    def view(self) -> str:
        """The method that refuses lengths which make no equal parts."""
        return "view" if self.torch else "reshape"

    def own(self, part: str, longest: int) -> str:
        """Positions, padded where they have to be."""
        return f"padded({part}, {max(1, longest)})" if self.padded else part

    def pieces(self, form: Pieces) -> Iterator[str]:
        """The body of `positions`: which of the pieces, and which part of each."""
        yield from _place(form)
        longest = -(-len(form.pieces[0]) // form.members)
        places, pieces = [*_places(form)], self.split(self.arange("seq"), _count(form))

        def own(whole: str) -> str:
            part = f"{self.split(whole, str(form.members))}[h]" if form.members > 1 else whole
            return self.own(part, longest)

        if len(places) == 1:
            yield f"return {own(f'{pieces}[{places[0]}]')}"
            return
        yield f"pieces = {pieces}"
        each = ", ".join(own(f"pieces[{place}]") for place in places)
        if form.members > 1:
            each = f"{own('pieces[i]')} for i in ({', '.join(places)})"
        yield f"return {self.cat}([{each}])"

    def other(self, form: Form, keys: bool) -> Iterator[str]:
        """The body of `positions`: one stripe in so many, or ranges that are data."""
        longest = max(len(form.positions(rank)) for rank in range(self.layout.ranks))
        if isinstance(form, Stripes):
            group, groups = ("rank", "RANKS") if form.members == 1 else ("g", str(form.groups))
            yield from _place(form)
            own = self.arange(f"{group}, seq, {groups}")
            if self.free:
                stripes = f"{groups}, {form.grain}" if form.grain > 1 else groups
                own = f"{self.arange('seq')}.{self.view}(-1, {stripes})[:, {group}]"
                own += f".{'flatten' if self.torch else 'ravel'}()" * (form.grain > 1)
            elif form.grain > 1:
                yield f"tokens = {self.arange('seq')}"
                own = f"tokens[tokens // {form.grain} % {groups} == {group}]"
            if form.members > 1:
                own = f"{self.split(own, str(form.members))}[h]"
        else:
            data = "KV_RANGES" if keys else "RANGES"
            each = f"{self.arange('*r')} for r in {data}[rank]"
            own = f"{self.cat}([{self.arange('0')}, *({each})])"
        yield f"return {self.own(own, longest)}"

    # ---- cutting whole arrays, and joining parts

    def head(self, name: str, given: str, said: str) -> Iterator[str]:
        """The first lines of `shard` or `unshard`."""
        array, what = ("Tensor", "tensor") if self.torch else ("jax.Array", "array")
        yield from ("", "")
        given = given.format(array)
        yield f'def {name}({given}, axis: int = 2, side: str = "q") -> {array}:'
        yield f'    """{said.format(what)}"""'

    def shard(self) -> Iterator[str]:
        keys = ' of queries, with side="kv" of keys' * self.apart
        keys += "; padding is zero" * self.padded
        yield from self.head("shard", "x: {}, rank: int", f"A rank's part of a whole {{}}{keys}.")
        own = "positions(rank, x.shape[axis])"
        if self.apart:
            own = "own"
            yield f"    own = ({BY_SIDE})(rank, x.shape[axis])"
        if self.padded:  # position -1 takes a zero that is put behind the last token
            yield "    behind = [(0, int(a == axis % x.ndim)) for a in range(x.ndim)]"
            yield f"    return jnp.pad(x, behind).take({own}, axis)"
        elif not self.torch:
            yield f"    return x.take({own}, axis)"
        else:
            yield f"    return x.index_select(axis, {own}.to(x.device))"

    def unshard(self) -> Iterator[str]:
        said = "The whole {} in sequence order, from the parts of all ranks."
        yield from self.head("unshard", "parts: Iterable[{}]", said)
        whole = f"{'torch.cat' if self.torch else 'jnp.concatenate'}(list(parts), axis)"
        if _in_order(self.layout) and not self.padded:
            yield f"    return {whole}"
            return
        yield f"    whole = {whole}"
        if self.apart:
            yield f"    own = {BY_SIDE}"
        given = "rank" if self.padded else "rank, whole.shape[axis]"
        each = f"{'own' if self.apart else 'positions'}({given}) for rank in range(RANKS)"
        yield f"    order = {self.cat}([{each}])"
        if self.padded:
            yield "    return whole.take(np.argsort(order)[(order < 0).sum() :], axis)"
        elif self.torch:
            yield "    return whole.index_select(axis, order.argsort().to(whole.device))"
        else:
            yield "    return whole.take(np.argsort(order), axis)"


def _place(form: Pieces | Stripes) -> Iterator[str]:
    """The group of a rank, and its place in it."""
    if form.members > 1:
        names, by = ("h, g", form.groups) if form.across else ("g, h", form.members)
        yield f"{names} = divmod(rank, {by})"


def _count(form: Pieces) -> str:
    """The number of pieces, by RANKS where it is a multiple of that."""
    width = len(form.places)
    if form.members > 1 or form.count == width:
        return str(form.count)
    return "RANKS" if width == 1 else f"{width} * RANKS"


def _multiple(form: Pieces | Stripes) -> str:
    """The divisor of every length whose shards are equal, by RANKS where it is a multiple."""
    if isinstance(form, Pieces) and form.members == 1:
        count = _count(form)
        return f"({count})" if "*" in count else count
    plain = form.members == 1 and form.multiple == form.groups
    return "RANKS" if plain else str(form.multiple)


def _places(form: Pieces) -> Iterator[str]:
    """The numbers of the pieces of a rank or a group."""
    for a, b in form.places:
        if form.members > 1 or (a, b) != (-1, form.count - 1):
            yield affine([(a, "g" if form.members > 1 else "rank")], b)
        else:
            yield f"{_count(form)} - 1 - rank"


def _in_order(layout: Layout) -> bool:
    """True if the shards, one after the other, are the sequence."""
    form = layout.q
    plain = isinstance(form, Pieces) and form.members == 1 and len(form.places) == 1
    return plain and layout.alike and form.positions(0)[:1].tolist() == [0]
