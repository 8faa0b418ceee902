"""The base class of masks: a mask determines which query i may attend to which key j.

    mask ::= word | mask & mask | mask "|" mask

Each mask is a class with its command-line forms and two descriptions of its pairs: an expression in
i and j, which the oracle evaluates and programs print, and boxes cut by bands, whose areas are
counted in closed form.

Query positions are aligned, i + kv_seq - seq, so the last query has the position of the last key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import parse_tokens, require_integer
from ringloom.planner.masks.areas import LIMIT, Ranges, count_pairs
from ringloom.planner.masks.regions import FAR, Ints, Region
from ringloom.planner.one_line import OneLine, python
from ringloom.planner.parse import from_json

Positions = range | Sequence[int] | NDArray[np.integer]
Allowed = NDArray[np.bool_]
Names: TypeAlias = "Mapping[str, Ints | Allowed | Mask]"
SideName = Literal["q", "kv"]  # queries; keys and values
ALL = (-FAR, FAR)
NO_ENTRY, NO_NUMBER = "-", "inf"  # None in a list, and None elsewhere
MASKS: dict[str, type[Mask]] = {}  # by the start of the form: causal, window:, documents@


class Packed(NamedTuple):
    """Consecutive documents, in which -left <= j - i <= right.

    sides      bounds of documents in aligned queries and in keys, [documents + 1] each; None if the
               sequence is a single document
    from_ends  True: i and j count from the last query and the last key of each document
    """

    sides: tuple[Ints, Ints] | None = None
    left: int = FAR
    right: int = FAR
    from_ends: bool = False

    def origins(self, side: SideName) -> tuple[Ints, Ints] | None:
        """Returns the first position of each document, and the position that counts as 0."""
        if self.sides is None:
            return None
        q, k = self.sides
        return (q[:-1], q[1:] - np.diff(k)) if side == "q" else (k[:-1], k[:-1])

    def region(self) -> Region:
        """Returns the allowed pairs as boxes cut by bands."""
        if self.sides is None:
            return Region.of([(*ALL, *ALL, -self.left, self.right)])
        q, k = self.sides
        offset = k[1:] - q[1:] if self.from_ends else 0
        low = -FAR if self.left == FAR else offset - self.left
        high = FAR if self.right == FAR else offset + self.right
        return Region.boxes(q[:-1], q[1:], k[:-1], k[1:], low, high)


@dataclass(frozen=True, repr=False)
class Mask(OneLine):
    """A rule for which pairs of query and key positions are allowed.

    A subclass is a frozen dataclass of integers, unless it checks its fields itself. Its
    command-line form is its name, followed by its fields in order; `parse` knows every subclass.

    forms         command-line forms, such as "causal", "window:4096" or "documents@FILE"
    definition    the expression, with fields in braces; or override `expression`
    from_zero     True: queries before position 0 see nothing, and the expression ignores them
    fixed_length  False: the region contains no position, so a program may work for any length
    restarts      True: positions restart at 0 in each packed document
    lists         the number of leading fields that are tuples of numbers
    least         the smallest value allowed in the fields
    example       the error message for a file with invalid content
    """

    forms: ClassVar[tuple[str, ...]] = ()
    definition: ClassVar[str]
    from_zero: ClassVar[bool] = False
    fixed_length: ClassVar[bool] = True
    restarts: ClassVar[bool] = False
    lists: ClassVar[int] = 0
    least: ClassVar[int] = 0
    example: ClassVar[str] = "expected JSON"

    def __init_subclass__(cls) -> None:
        for form in vars(cls).get("forms", ()):
            start = re.split(r"(?<=[:@])", form)[0]
            known = MASKS.setdefault(start, cls)
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise PlanError(
                    f"{start} is already a form of {known.__module__}.{known.__qualname__}"
                )
            MASKS[start] = cls

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None or field.default is not None:
                number = require_integer(f"{type(self).__name__} {field.name}", value, self.least)
                object.__setattr__(self, field.name, min(number, LIMIT - 1))  # beyond all positions

    @property
    def expression(self) -> str:
        """The definition as an array expression in i, j and the entries of `names`.

        i and j are arrays that broadcast to [queries, keys], so & and | mean `and` and `or`;
        `place(x, BOUNDS)` counts the bounds <= x.
        """
        return self.definition.format_map(vars(self))

    @property
    def names(self) -> Names:
        """Arrays and masks that the expression refers to: bounds, lookup tables, other masks."""
        return {}

    def region(self) -> Region:
        """Returns the allowed pairs as a disjoint union of boxes cut by bands."""
        return self.packed().region()

    def check(self, seq: int, kv_seq: int) -> None:
        """Raises PlanError if the mask does not fit `seq` queries and `kv_seq` keys."""

    def up_to(self, tokens: int) -> Mask:
        """Returns the mask of a sequence of `tokens` keys; only some masks depend on the length.

        Raises PlanError if the region of the mask would have more than `MOST` pieces.
        """
        return self

    def packed(self) -> Packed:
        """Returns the mask as consecutive documents with the same band.

        Raises PlanError for masks that have no such form.
        """
        raise PlanError(f"cumulative lengths cannot express {self}")

    def origins(self, side: SideName) -> tuple[Ints, Ints] | None:
        """Returns the first position of each document, and the position that counts as 0.

        Both are int64 [documents], in aligned queries or in keys; None for masks without documents.
        Raises PlanError if only some tokens belong to a document.
        """
        return self.packed().origins(side) if self.restarts else None

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        """Evaluates the expression for aligned query and key positions: bool [len(q), len(kv)].

        Positions must lie within the lengths that `check` accepts.
        """
        i, j = (np.asarray(positions, np.int64) for positions in (q, kv))
        i, j = i[:, None], j[None, :]
        scope: dict[str, Any] = {
            name: value.allowed(q, kv) if isinstance(value, Mask) else value
            for name, value in self.names.items()
        }
        scope |= {"i": i.clip(0) if self.from_zero else i, "j": j, "place": _count_bounds}
        pairs = eval(self.expression, {"__builtins__": {}}, scope)
        return np.asarray(pairs & (i >= 0) if self.from_zero else pairs)

    def pairs(self, q: Ranges, kv: Ranges) -> int:
        """Returns the exact number of allowed pairs between two sets of positions."""
        return int(count_pairs(self.region(), [q], [kv])[0, 0])

    @classmethod
    def init_fields(cls) -> tuple[Field[Any], ...]:
        """Returns the fields that callers set and `str` prints."""
        return tuple(field for field in fields(cls) if field.init)

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Parses the text after the name and colon: lists separated by /, then numbers."""
        parts = text.split("/") if text else []
        values: list[Any] = [_parse_numbers(part, NO_ENTRY) for part in parts[: cls.lists]]
        values += [
            number for part in parts[cls.lists :] for number in _parse_numbers(part, NO_NUMBER)
        ]
        settable = cls.init_fields()
        least = sum(field.default is MISSING for field in settable)
        if not least <= len(values) <= len(settable) or len(parts) > cls.lists + 1:
            raise PlanError(f"the numbers do not fit {' or '.join(cls.forms)}")
        return cls(*values)

    @classmethod
    def parse_file(cls, text: str) -> Mask:
        """Parses the content of a file, for forms such as blocks@FILE: JSON, fields by name."""
        values, names = from_json(text, cls.example), {field.name for field in cls.init_fields()}
        with suppress(TypeError):
            if isinstance(values, dict) and values.keys() == names:
                return cls(**values)
        raise PlanError(cls.example)

    def __and__(self, other: Mask) -> And:
        return And(self, other)

    def __or__(self, other: Mask) -> Or:
        return Or(self, other)

    def __str__(self) -> str:
        """Returns the command-line form."""
        values = self._arguments()
        parts = [_join_numbers(part, NO_ENTRY) for part in values[: self.lists]]
        parts += [_join_numbers(values[self.lists :], NO_NUMBER)] * (len(values) > self.lists)
        return ":".join(filter(None, (re.split("[:@]", self.forms[0])[0], "/".join(parts))))

    @property
    def python(self) -> str:
        """The Python that builds the mask."""
        return f"{type(self).__name__}({', '.join(map(repr, self._arguments()))})"

    def _arguments(self) -> list[Any]:
        """Returns the values of the fields, without defaults at the end."""
        values = [(getattr(self, field.name), field.default) for field in self.init_fields()]
        while values and values[-1][0] == values[-1][1]:
            values.pop()
        return [value for value, _ in values]


@dataclass(frozen=True, repr=False)
class Pair(Mask):
    """Two masks joined by an operator."""

    left: Mask
    right: Mask
    sign: ClassVar[str]
    precedence: ClassVar[int]

    def __post_init__(self) -> None:
        """Raises PlanError unless both fields are masks."""
        for part in (self.left, self.right):
            check_mask(part)

    @property
    def expression(self) -> str:
        return f"left {self.sign} right"

    @property
    def names(self) -> Names:
        return {"left": self.left, "right": self.right}

    def check(self, seq: int, kv_seq: int) -> None:
        self.left.check(seq, kv_seq)
        self.right.check(seq, kv_seq)

    def up_to(self, tokens: int) -> Mask:
        return replace(self, left=self.left.up_to(tokens), right=self.right.up_to(tokens))

    def __str__(self) -> str:
        return self._join_texts(str)

    @property
    def python(self) -> str:
        return self._join_texts(python)

    def _join_texts(self, leaf: Callable[[Mask], str]) -> str:
        """Joins the texts of both masks, with parentheses only where parsing needs them."""
        left, right = leaf(self.left), leaf(self.right)
        if isinstance(self.left, Pair) and self.left.precedence < self.precedence:
            left = f"({left})"
        if isinstance(self.right, Pair) and self.right.precedence <= self.precedence:
            right = f"({right})"
        return f"{left} {self.sign} {right}"


@dataclass(frozen=True, repr=False)
class And(Pair):
    """The pairs that both masks allow."""

    sign = "&"
    precedence = 2

    def region(self) -> Region:
        return self.left.region().intersect(self.right.region())

    def packed(self) -> Packed:
        a, b = self.left.packed(), self.right.packed()
        if Packed() in (a, b):
            return a if b == Packed() else b
        if a.sides and b.sides:
            raise no_documents_error(self)
        for mask, part in ((self.left, a), (self.right, b)):
            if part.from_ends:
                raise PlanError(f"cumulative lengths cannot express {mask}, a part of {self}")
        return Packed(a.sides or b.sides, min(a.left, b.left), min(a.right, b.right))

    def origins(self, side: SideName) -> tuple[Ints, Ints] | None:
        left, right = self.left.origins(side), self.right.origins(side)
        if left and right:
            raise no_documents_error(self)
        return left or right


@dataclass(frozen=True, repr=False)
class Or(Pair):
    """The pairs that either mask allows."""

    sign = "|"
    precedence = 1

    def region(self) -> Region:
        return self.left.region().union(self.right.region())

    def packed(self) -> Packed:
        raise no_documents_error(self)

    def origins(self, side: SideName) -> tuple[Ints, Ints] | None:
        if self.left.origins(side) or self.right.origins(side):
            raise no_documents_error(self)
        return None


def check_mask(mask: object) -> Mask:
    """Returns the given mask; raises PlanError for anything else."""
    if not isinstance(mask, Mask):
        raise PlanError(f"the mask must be a Mask such as Causal(), not {brief(mask)}")
    return mask


def no_documents_error(mask: Mask) -> PlanError:
    """Returns the error for a mask that does not assign every token to a document."""
    return PlanError(f"{mask!s:.200} does not divide queries and keys into consecutive documents")


def _parse_numbers(part: str, none: str) -> tuple[int | None, ...]:
    return tuple(None if word.strip() == none else parse_tokens(word) for word in part.split(","))


def _join_numbers(part: Sequence[int | None], none: str) -> str:
    return ",".join(none if number is None else str(number) for number in part)


def _count_bounds(x: Ints, bounds: Ints) -> Ints:
    return np.searchsorted(bounds, x, side="right")
