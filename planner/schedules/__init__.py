"""The table of schedules: a new one is one file in a room beside this and one row here."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from planner.errors import PlanError
from planner.ir import Plan
from planner.schedules.balanced import balanced
from planner.schedules.decode.tree import tree
from planner.schedules.gathers.allgather import allgather
from planner.schedules.gathers.broadcast import broadcast
from planner.schedules.gathers.cast import group_cast
from planner.schedules.gathers.mesh import mesh2d
from planner.schedules.groups import groups
from planner.schedules.heads.stages import ulysses_stages
from planner.schedules.heads.strides import llama3
from planner.schedules.heads.usp import usp
from planner.schedules.rings.bidirectional import bidirectional
from planner.schedules.rings.burst import burst
from planner.schedules.rings.cache import cache_ring
from planner.schedules.rings.double import double_ring
from planner.schedules.rings.multi import multi_ring
from planner.schedules.rings.ring import ring
from planner.schedules.rings.startrail import startrail
from planner.schedules.rings.tokenring import tokenring
from planner.schedules.variants import by_heads, in_nodes, never, once
from planner.workload import Workload


@dataclass(frozen=True)
class Schedule:
    """A named recipe: `build(work, ranks, pass_, **parameters)` ignores the mask.

    `variants(work, ranks, node)` are the parameters that a comparison tries when no schedule is
    named. `classic` marks those that most people know, and that examples show.
    """

    name: str
    build: Callable[..., Plan]
    travels: str
    path: str
    paper: str
    variants: Callable[[Workload, int, int], Iterable[str]] = once
    classic: bool = True

    @property
    def parameters(self) -> dict[str, int | str]:
        """Keyword parameters with their defaults."""
        signature = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}

    def check(self, given: dict[str, int | str]) -> None:
        """Raise PlanError for a parameter that this schedule does not have, or of a wrong type."""
        known = self.parameters
        for name, value in given.items():
            if name not in known:
                have = ", ".join(known) or "none"
                raise PlanError(f"{self.name} has no parameter {name!r}; its parameters: {have}")
            if type(value) is not type(known[name]):
                kind = "a whole number" if isinstance(known[name], int) else "a word"
                raise PlanError(f"{self.name}:{name} takes {kind}, not {value!r}")


striped, zigzag = partial(ring, layout="striped"), partial(ring, layout="zigzag")
ulysses = partial(usp, ring=1, layout="contiguous")
ulysses_gather = partial(usp, ring=1, gather=0, layout="contiguous")
decode_a2a = partial(mesh2d, columns=1, layout="contiguous")
pass_q, head_chunks = partial(tokenring, late=1), partial(ulysses_stages, ahead=1)
_newer = partial(Schedule, variants=never, classic=False)

ROWS = (
    Schedule("ring", ring, "KV", "one ring", "Ring Attention (Liu et al. 2023)"),
    Schedule("striped", striped, "KV", "ring, striped", "Striped Attention (Brandon et al. 2023)"),
    Schedule("zigzag", zigzag, "KV", "ring, head-tail layout", "common practice"),
    Schedule("balanced", balanced, "KV, Q, OUT", "helpers", "DistFlashAttn (Li et al. 2023)"),
    Schedule("burst", burst, "KV; backward Q", "one ring", "BurstAttention (Sun et al. 2024)"),
    Schedule("allgather", allgather, "KV", "all-gather", "common practice", once),
    Schedule("ulysses", ulysses, "heads", "all-to-all", "DeepSpeed-Ulysses (Jacobs et al. 2023)"),
    Schedule("usp", usp, "heads, KV", "all-to-all, rings", "USP (Fang and Zhao 2024)", by_heads),
    _newer(
        *("double-ring", double_ring, "KV", "rings in, between nodes", "LoongTrain, BurstEngine"),
        variants=in_nodes,
    ),
    _newer("bidirectional", bidirectional, "KV", "two opposite rings", "common practice"),
    _newer("multi-ring", multi_ring, "KV", "edge-disjoint rings", "TASP (Wang et al. 2025)"),
    _newer("startrail", startrail, "Q, KV, OUT", "teams, rings of members", "StarTrail, WallFacer"),
    _newer("cache-ring", cache_ring, "KV", "ring, cache in pages", "prefill in tpu-inference"),
    _newer("tokenring", tokenring, "Q, OUT", "one ring, results straight home", "TokenRing"),
    _newer("pass-q", pass_q, "Q, OUT", "one ring, all-to-all of results", "Yang et al. 2024"),
    _newer("mesh2d", mesh2d, "Q, KV, OUT", "gather in columns, ring in rows", "Mesh-Attention"),
    _newer("decode-a2a", decode_a2a, "Q, OUT", "mesh2d of one column", "Helix, vLLM"),
    _newer("tree", tree, "Q, OUT", "binomial trees", "Tree Attention (Shyam et al. 2024)"),
    _newer("broadcast", broadcast, "KV, or Q and OUT", "broadcasts in turn", "ringX"),
    _newer("group-cast", group_cast, "KV that is seen", "one message each", "MagiAttention"),
    _newer("halo", group_cast, "KV that is seen", "group-cast", "swa_p2p of Megatron-LM"),
    _newer("llama3", llama3, "KV", "all-gather by heads", "Llama 3 (2024)", variants=once),
    _newer(
        "ulysses-stages", ulysses_stages, "heads", "all-to-all in stages", "UPipe", variants=once
    ),
    _newer("head-chunks", head_chunks, "heads", "ulysses-stages, one ahead", "HCMS", variants=once),
    _newer("ulysses-gather", ulysses_gather, "heads, KV", "usp with a gather", "vLLM-Omni"),
    _newer("groups", groups, "KV", "rings per document", "FlexSP, ByteScale"),
)
SCHEDULES = {row.name: row for row in ROWS}


def classic() -> list[str]:
    """Returns the names of the schedules that most people know."""
    return [name for name, row in SCHEDULES.items() if row.classic]


def comparable(work: Workload, ranks: int, node: int) -> list[str]:
    """Returns the schedules, with parameters, to compare on a machine of so many ranks per node."""
    return [f"{row.name}{more}" for row in ROWS for more in row.variants(work, ranks, node)]
