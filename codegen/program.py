"""program   the data of a lowered plan; its grammar stands in `lowering`."""

from dataclasses import dataclass
from typing import Literal

from codegen import layouts
from codegen.rows import Attend, Held, Ints, Move
from planner.masks import And, Blocks, Documents, Mask, Or
from planner.workload import Workload

Node = Attend | Move | Held
Pieces = layouts.Pieces
Kind = Literal["full", "causal", "boxes"]


@dataclass(frozen=True)
class Maker:
    """A layout as a function call: the pieces of `tokens` are function(tokens, *arguments).

    With `group` > 1 the function deals to groups of that many ranks (layouts.in_groups).
    """

    function: str
    grain: int = 1
    group: int = 1

    def pieces(self, tokens: int, ranks: int) -> Pieces:
        """The pieces that the emitted layout functions make."""
        extra = () if self.grain == 1 else (self.grain,)
        found: Pieces = getattr(layouts, self.function)(tokens, ranks // self.group, *extra)
        return layouts.in_groups(found, self.group) if self.group > 1 else found


@dataclass(frozen=True)
class Layout:
    """Pieces with their homes and head slices of both sides; block = piece * slices + slice."""

    maker: Maker | None
    q: Pieces
    kv: Pieces
    q_slices: list[range]
    kv_slices: list[range]


@dataclass(frozen=True)
class Shape:
    """The mask: for "boxes" as disjoint boxes cut by bands (planner.regions), int64 [n, 6]."""

    kind: Kind
    boxes: Ints


@dataclass(frozen=True)
class Schedule:
    """One pass. `rule` names its function where there is one; `nodes` are its rows in any case."""

    rule: str | None
    nodes: list[Node]
    exchanges: dict[int, str]

    @property
    def tensors(self) -> set[str]:
        """Every tensor that travels or is held away from home."""
        return {t for n in self.nodes if not isinstance(n, Attend) for t in n.tensors}


@dataclass(frozen=True)
class Program:
    """A plan, or a (forward, backward) pair, lowered."""

    name: str
    work: Workload
    ranks: int
    layout: Layout
    layout_name: str
    mask: Shape
    forward: Schedule
    backward: Schedule | None

    @property
    def group(self) -> int:
        """Ranks among which heads are dealt; 1 where every block has every head."""
        return self.layout.maker.group if self.layout.maker else 1

    @property
    def passes(self) -> tuple[Schedule, ...]:
        """The schedules there are, forward first."""
        return (self.forward, self.backward) if self.backward else (self.forward,)

    @property
    def fixed_length(self) -> bool:
        """True if the program is good for its own lengths only, because a table or its mask is."""
        tables = self.layout.maker is None or any(s.rule is None for s in self.passes)
        return tables or _names_positions(self.work.mask)

    @property
    def call_rule(self) -> str:
        """The function of `calls` that finds the kernel calls of every rectangle."""
        if self.mask.kind == "full":
            return "full_calls"
        pieces = [p for side in (self.layout.q, self.layout.kv) for p, _ in side]
        plain = all(len(p) <= 1 for p in pieces)
        one_step = len({p[0].step for p in pieces if p and len(p[0]) > 1}) <= 1
        return "causal_calls" if self.mask.kind == "causal" and plain and one_step else "mask_calls"


def _names_positions(mask: Mask) -> bool:
    """Whether a mask was made for one length, as documents and grids of blocks are."""
    if isinstance(mask, And | Or):
        return _names_positions(mask.left) or _names_positions(mask.right)
    return isinstance(mask, Documents | Blocks)
