"""Prints the layout section of a program, with its function `positions`."""

from collections.abc import Iterator
from dataclasses import dataclass

from ringloom.codegen.frame.layout import Form, Joined, Layout, Named, Ranges
from ringloom.codegen.frame.packed import print_data

RANK = "[*range(RANKS)][rank]"  # raises IndexError for ranks that the plan does not have


def layout_text(layout: Layout, target: str, any_length: bool) -> str:
    """Prints the layout section of a program; `any_length`: it is valid if pieces are equal."""
    text = Text(layout, target, any_length)
    sides = ("q", "kv") if layout.separate_kv else ("q",)
    functions = (line for side in sides for line in text.positions(side))
    return "\n".join([heading(layout), *_data(layout), *functions]) + "\n"


def heading(layout: Layout) -> str:
    """Returns the heading of the section."""
    q, kv = describe_side(layout.q), describe_side(layout.kv)
    first, *others = (
        q if layout.same_formula else [f"queries {q[0]}", *q[1:], f"keys {kv[0]}", *kv[1:]]
    )
    return ";\n# ".join([f"# ---- Layout: {first}", *others]) + "."


def describe_side(form: Form) -> list[str]:
    """Describes a side, as in "of 16 equal pieces, rank r holds piece r and piece 15 - r"."""
    if isinstance(form, Ranges):
        return [f"no formula: the ranges of all {len(form.held)} ranks are listed"]
    if isinstance(form, Joined):
        parts = list[str]()
        for place, part in (("first", form.front), ("next", form.rear)):
            first, *others = describe_side(part)
            parts += [f"the {place} {part.tokens} tokens: {first}", *others]
        return ["in two parts", *parts]
    groups, members = form.groups, form.members
    across = [f"rank r is in group r % {groups}"] * form.across
    if not form.pieces:
        stripes = "single tokens" if form.grain == 1 else f"stripes of {form.grain} tokens"
        if members == 1:
            return [f"{stripes} assigned to the {groups} ranks in turn"]
        shares = f"{stripes} assigned to {groups} groups in turn"
        return [shares, f"each group's tokens are divided among its {members} ranks", *across]
    owner, count = "rank r" if members == 1 else "group g", form.pieces * groups
    equal = "equal" if form.tokens % (count * members) == 0 else "nearly equal"
    last = f" and piece {count - 1} - {owner[-1]}" * (form.pieces > 1)
    pieces = f"of {count} {equal} pieces, {owner} holds piece {owner[-1]}{last}"
    share = f"each of its {members} ranks has one of {members} parts of each"
    return [pieces, *[share, *across] * (members > 1)]


def _data(layout: Layout) -> Iterator[str]:
    """Yields the ranges of each rank if there is no formula."""
    for name, form in (("RANGES", layout.q), ("KV_RANGES", layout.kv)):
        if isinstance(form, Ranges) and not (name == "KV_RANGES" and layout.same_formula):
            held = [tuple((p.start, p.stop, p.step) for p in own) for own in form.held]
            yield from ("", "# start, stop and step of the ranges of each rank")
            yield print_data(name, tuple(held))


@dataclass(frozen=True)
class Text:
    """The functions of a layout, for a target."""

    layout: Layout
    target: str
    any_length: bool

    @property
    def torch(self) -> bool:
        return self.target == "torch"

    @property
    def padded(self) -> bool:
        """True if shards are padded to equal length, as JAX needs."""
        return not self.torch and not self.layout.equal

    def positions(self, side: str) -> Iterator[str]:
        """Prints the function that returns the positions on a rank, of queries or of keys."""
        layout, keys = self.layout, side == "kv"
        seq = "KV_SEQ" if keys else "SEQ"
        array = "Tensor" if self.torch else "np.ndarray"
        kind = "keys" if keys else "queries" if layout.separate_kv else "tokens"
        end = "; -1 is padding" if self.padded else ""
        yield from ("", "")
        yield f"def {'kv_' * keys}positions(rank: int, seq: int = {seq}) -> {array}:"
        yield f'    """Return positions of the {kind} on a rank, in the order of its shard{end}."""'
        form = layout.kv if keys else layout.q
        if self.padded or not isinstance(form, Named):  # works for the plan's length only
            yield f"    if seq != {seq}:"
            yield f'        raise ValueError(f"the layout has {{{seq}}} tokens, not {{seq}}")'
        if self.any_length:
            yield "    if not seq or seq % MULTIPLE:"
            yield '        raise ValueError(f"{seq} tokens are not divisible by {MULTIPLE}")'
        yield from (f"    {line}" for line in self.body(form, keys))

    def body(self, form: Form, keys: bool) -> Iterator[str]:
        """Yields the body of `positions`: a formula, or ranges as data."""
        if isinstance(form, Ranges):
            parts = f"{self.arange('*r')} for r in {'KV_' * keys}RANGES[rank]"
            yield f"return {self.rank_part(form, self.cat(f'{self.arange(0)}, *({parts})'))}"
        elif isinstance(form, Named):
            yield from self.formula(form, "return ")
        else:
            end = f"{form.front.tokens}"
            yield from self.formula(form.front, "front = ", end=end)
            yield from self.formula(form.rear, "rear = ", start=end)
            yield f"return {self.cat('front, rear')}"

    def formula(self, form: Named, into: str, start: str = "", end: str = "seq") -> Iterator[str]:
        """Yields the formula for the tokens from `start` to `end`: pieces or stripes."""
        rank, groups, within = "rank", "RANKS", RANK
        if form.members > 1:
            rank, groups, within = "g", f"{form.groups}", "g"
            names, by = ("h, g", groups) if form.across else ("g, h", form.members)
            yield f"{names} = divmod({RANK}, {by})"
        tokens = self.arange(f"{start}, {end}" if start else end)
        own = self.arange(f"{f'{start} + ' * bool(start)}{within}, {end}, {groups}")
        if form.pieces > 1:
            count, last = f"2 * {groups}", f"2 * {groups} - 1 - {rank}"
            if form.members > 1:
                count, last = f"{2 * form.groups}", f"{2 * form.groups - 1} - {rank}"
            yield f"pieces = {self.pieces(tokens, count)}"
            parts = ", ".join(
                self.rank_part(form, f"pieces{n}") for n in ("[:RANKS][rank]", f"[{last}]")
            )
            if form.members > 1:
                parts = f"{self.rank_part(form, 'pieces[i]')} for i in ({rank}, {last})"
            yield f"{into}{self.cat(parts)}"
            return
        if form.pieces:
            own = f"{self.pieces(tokens, groups)}[{rank}]"
        elif form.grain > 1:
            yield f"tokens = {tokens}"
            place = f"(tokens - {start})" if start else "tokens"
            own = f"tokens[{place} // {form.grain} % {groups} == {within}]"
        yield f"{into}{self.rank_part(form, own)}"

    def arange(self, arguments: object) -> str:
        return f"{'torch' if self.torch else 'np'}.arange({arguments})"

    def cat(self, parts: str) -> str:
        return f"{'torch.cat' if self.torch else 'np.concatenate'}([{parts}])"

    def pieces(self, code: str, parts: object) -> str:
        """Returns code for nearly equal parts, of which the first are longer."""
        return f"{code}.tensor_split({parts})" if self.torch else f"np.array_split({code}, {parts})"

    def rank_part(self, form: Form, code: str) -> str:
        """Returns code for a rank's part of a piece, stripe or ranges, padded if needed."""
        if form.members > 1:
            code = f"{self.pieces(code, form.members)}[h]"
        if not self.padded:
            return code
        longest = max(map(len, form.shards()))
        if form.pieces > 1:
            longest = -(-form.tokens // (form.pieces * self.layout.ranks))  # of a piece
        return f"pad_positions({code}, {max(1, longest)})"
