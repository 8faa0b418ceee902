"""Documents: packed sequences that do not see each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import PlanError
from planner.masks.areas import LIMIT
from planner.masks.mask import Mask, Names, whole
from planner.masks.regions import FAR, Ints, Region
from planner.parse import tokens


@dataclass(frozen=True, repr=False)
class Documents(Mask):
    """A query meets the keys of its own document.

    `lengths` are the documents' keys. Without `q_lengths` a query belongs to the document of its
    aligned position; with them, query number r belongs to the document that r falls in when the
    queries are divided by `q_lengths`. Raises PlanError for negative or mismatched lengths.
    """

    forms = ("documents:A,B", "documents@FILE")

    lengths: tuple[int, ...]
    q_lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _lengths("Documents", self.lengths))
        if self.q_lengths is not None:
            object.__setattr__(self, "q_lengths", _lengths("Documents queries", self.q_lengths))
            if len(self.q_lengths) != len(self.lengths):
                raise PlanError(
                    f"Documents has {len(self.lengths)} lengths but {len(self.q_lengths)} q_lengths"
                )

    @property
    def expression(self) -> str:
        return f"place(i, {'BOUNDS' if self.q_lengths is None else 'Q_BOUNDS'}) == place(j, BOUNDS)"

    @property
    def names(self) -> Names:
        queries, keys = self.bounds()
        return {"BOUNDS": keys} | ({} if self.q_lengths is None else {"Q_BOUNDS": queries})

    def bounds(self) -> tuple[Ints, Ints]:
        """Returns where documents begin and end, in aligned queries and in keys; [n + 1] each."""
        keys = np.cumsum([0, *self.lengths], dtype=np.int64)
        queries = np.cumsum([0, *(self.q_lengths or self.lengths)], dtype=np.int64)
        return queries + keys[-1] - queries[-1], keys

    def region(self) -> Region:
        q, kv = self.bounds()
        far = np.full(len(self.lengths), FAR)
        return Region.of(np.stack([q[:-1], q[1:], kv[:-1], kv[1:], -far, far], axis=1))

    def check(self, seq: int, kv_seq: int) -> None:
        if sum(self.lengths) != kv_seq:
            raise PlanError(f"documents sum to {sum(self.lengths)} tokens, not to kv_seq {kv_seq}")
        if self.q_lengths is not None and sum(self.q_lengths) != seq:
            raise PlanError(f"q_lengths sum to {sum(self.q_lengths)} tokens, not to seq {seq}")

    @classmethod
    def parse(cls, text: str) -> Mask:
        sides = [tuple(map(tokens, side.split(","))) for side in text.split("/")]
        if len(sides) > 2:
            raise PlanError(f"documents have lengths and query lengths, not {len(sides)} lists")
        return cls(*sides)

    @classmethod
    def parse_file(cls, text: str) -> Mask:
        return cls(tuple(map(tokens, text.replace(",", " ").split())))

    def __str__(self) -> str:
        sides = (self.lengths,) if self.q_lengths is None else (self.lengths, self.q_lengths)
        return "documents:" + "/".join(",".join(map(str, side)) for side in sides)


def _lengths(name: str, values: Sequence[int]) -> tuple[int, ...]:
    lengths = tuple(whole(f"{name} length", value) for value in values)
    if not lengths or sum(lengths) > LIMIT:
        raise PlanError(
            f"{name}: {len(lengths)} lengths sum to {sum(lengths)}, "
            "where at least one length and at most 2**31 tokens make sense"
        )
    return lengths
