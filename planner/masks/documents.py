"""Documents and Varlen: packed sequences that do not attend to each other."""

import re
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import parse_tokens, require_integer
from ringloom.planner.masks.areas import LIMIT
from ringloom.planner.masks.mask import Mask, Names, Packed
from ringloom.planner.masks.regions import MOST, Ints
from ringloom.planner.masks.window import Window


@dataclass(frozen=True, repr=False)
class Lengths(Mask):
    """A rule on documents with given numbers of keys and queries.

    Raises PlanError for negative lengths, and for different numbers of lengths.
    """

    restarts = True
    lists = 2

    lengths: tuple[int, ...]
    q_lengths: tuple[int, ...] | None

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "lengths", require_lengths(name, self.lengths))
        if self.q_lengths is not None:
            object.__setattr__(
                self, "q_lengths", require_lengths(f"{name} queries", self.q_lengths)
            )
            if len(self.q_lengths) != len(self.lengths):
                raise PlanError(
                    f"{name} has {len(self.lengths)} lengths but {len(self.q_lengths)} q_lengths"
                )

    def bounds(self) -> tuple[Ints, Ints]:
        """Returns the bounds of documents in aligned queries and in keys: [n + 1] each."""
        keys = np.cumsum([0, *self.lengths], dtype=np.int64)
        queries = np.cumsum([0, *(self.q_lengths or self.lengths)], dtype=np.int64)
        return queries + keys[-1] - queries[-1], keys

    def check(self, seq: int, kv_seq: int) -> None:
        if sum(self.lengths) != kv_seq:
            raise PlanError(f"documents sum to {sum(self.lengths)} tokens, but kv_seq is {kv_seq}")
        if self.q_lengths is not None and sum(self.q_lengths) != seq:
            raise PlanError(f"q_lengths sum to {sum(self.q_lengths)} tokens, but seq is {seq}")


@dataclass(frozen=True, repr=False)
class Documents(Lengths):
    """A query sees the keys of its own document.

    `lengths` are the numbers of keys of the documents, `q_lengths` the numbers of queries. Without
    `q_lengths`, a query belongs to the document at its aligned position.
    """

    forms = ("documents:A,B", "documents@FILE")

    q_lengths: tuple[int, ...] | None = None

    @property
    def expression(self) -> str:
        return f"place(i, {'BOUNDS' if self.q_lengths is None else 'Q_BOUNDS'}) == place(j, BOUNDS)"

    @property
    def names(self) -> Names:
        queries, keys = self.bounds()
        return {"BOUNDS": keys} | ({} if self.q_lengths is None else {"Q_BOUNDS": queries})

    def packed(self) -> Packed:
        return Packed(self.bounds())

    @classmethod
    def parse_file(cls, text: str) -> Mask:
        words = islice(re.finditer(r"[^\s,]+", text), MOST + 1)
        return cls(tuple(parse_tokens(word[0]) for word in words))


@dataclass(frozen=True, repr=False)
class Varlen(Lengths):
    """A query sees keys of its own document, in which the last query is aligned with the last key.

    The query sees `left` keys before its position and `right` keys after it; None is unbounded. Use
    this mask for chunked prefill and decoding of packed documents, as in flash-attn's varlen
    functions.
    """

    forms = ("varlen:A,B/QA,QB", "varlen:A,B/QA,QB/LEFT,RIGHT")

    q_lengths: tuple[int, ...]
    left: int | None = None
    right: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for side, width in vars(Window(self.left, self.right)).items():
            object.__setattr__(self, side, width)

    @property
    def expression(self) -> str:
        if self.left is not None:
            return "near & (j - i >= LEAST[place(j, BOUNDS)])"
        return "near & (j - i <= MOST[place(j, BOUNDS)])" if self.right is not None else "near"

    @property
    def names(self) -> Names:
        """The mask without one of its bounds, and this bound per document, padded at both ends."""
        queries, keys = self.bounds()
        offset, documents = keys[1:] - queries[1:], Documents(self.lengths, self.q_lengths)
        if self.left is not None:
            least = np.pad(offset - self.left, 1)
            return {"near": replace(self, left=None), "BOUNDS": keys, "LEAST": least}
        if self.right is not None:
            return {"near": documents, "BOUNDS": keys, "MOST": np.pad(offset + self.right, 1)}
        return {"near": documents}

    def packed(self) -> Packed:
        left, right = Window(self.left, self.right).reach
        return Packed(self.bounds(), left, right, from_ends=True)


def require_lengths(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """Returns lengths as ints; for anything else, raises PlanError with the name of the mask."""
    if not isinstance(values, Iterable):
        raise PlanError(f"{name} takes a list of lengths, such as (512, 1024), not {brief(values)}")
    if isinstance(values, Sized) and len(values) > MOST:
        raise PlanError(f"{name} takes at most {MOST} lengths, not {len(values)}")
    lengths = tuple(require_integer(f"{name} length", value) for value in values)
    if not lengths or sum(lengths) > LIMIT:
        raise PlanError(
            f"{name}: {len(lengths)} lengths sum to {sum(lengths)}; a mask needs at least one"
            " length, and at most 2**31 tokens"
        )
    return lengths
