"""The table of schedules: built-in rows, and those that files in subfolders register."""

from functools import partial
from importlib import import_module
from pkgutil import walk_packages

from ringloom.planner.schedules.decode.tree import tree
from ringloom.planner.schedules.gathers.allgather import allgather
from ringloom.planner.schedules.gathers.broadcast import broadcast
from ringloom.planner.schedules.gathers.cast import group_cast
from ringloom.planner.schedules.gathers.mesh import mesh2d
from ringloom.planner.schedules.heads.stages import ulysses_stages
from ringloom.planner.schedules.heads.strides import llama3
from ringloom.planner.schedules.heads.usp import usp
from ringloom.planner.schedules.rings.balanced import balanced
from ringloom.planner.schedules.rings.bidirectional import bidirectional
from ringloom.planner.schedules.rings.burst import burst
from ringloom.planner.schedules.rings.cache import cache_ring
from ringloom.planner.schedules.rings.double import double_ring
from ringloom.planner.schedules.rings.groups import groups
from ringloom.planner.schedules.rings.multi import multi_ring
from ringloom.planner.schedules.rings.ring import ring
from ringloom.planner.schedules.rings.startrail import startrail
from ringloom.planner.schedules.rings.tokenring import tokenring
from ringloom.planner.schedules.table import (
    PLAIN_NAMES,
    SCHEDULES,
    Schedule,
    recorded_name,
    schedule,
)
from ringloom.planner.schedules.variants import (
    FAMILIES,
    by_heads,
    in_nodes,
    no_variants,
    plain,
    settings,
    under_documents,
    under_sparse,
    with_cache,
)
from ringloom.planner.workload import Workload

__all__ = [
    "PLAIN_NAMES",
    "SCHEDULES",
    "Schedule",
    "classic",
    "comparable",
    "further",
    "recorded_name",
    "schedule",
]


striped, zigzag = partial(ring, layout="striped"), partial(ring, layout="zigzag")
ulysses = partial(usp, ring=1, layout="contiguous")
ulysses_gather = partial(usp, ring=1, gather=0, keep=0)
decode_a2a = partial(mesh2d, columns=1, layout="contiguous")
pass_q, head_chunks = partial(tokenring, late=1), partial(ulysses_stages, ahead=1)
_newer = partial(Schedule, variants=no_variants, classic=False)
_cached = partial(_newer, variants=with_cache)

ROWS = (
    Schedule("ring", ring, "KV", "one ring", "Ring Attention (Liu et al. 2023)"),
    Schedule("striped", striped, "KV", "ring, striped", "Striped Attention (Brandon et al. 2023)"),
    Schedule("zigzag", zigzag, "KV", "ring, head-tail layout", "common practice"),
    Schedule("balanced", balanced, "KV, Q, OUT", "helpers", "DistFlashAttn (Li et al. 2023)"),
    Schedule("burst", burst, "KV; backward Q", "one ring", "BurstAttention (Sun et al. 2024)"),
    Schedule("allgather", allgather, "KV", "all-gather", "common practice", plain),
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
    _newer("tokenring", tokenring, "Q, OUT", "one ring, results to owners", "TokenRing"),
    _cached("pass-q", pass_q, "Q, OUT", "one ring, all-to-all of results", "Yang et al. 2024"),
    _newer("mesh2d", mesh2d, "Q, KV, OUT", "gather in columns, ring in rows", "Mesh-Attention"),
    _cached("decode-a2a", decode_a2a, "Q, OUT", "mesh2d of one column", "Helix, vLLM"),
    _cached("tree", tree, "Q, OUT", "binomial trees", "Tree Attention (Shyam et al. 2024)"),
    _newer("broadcast", broadcast, "KV, or Q and OUT", "broadcasts in turn", "ringX"),
    _newer(
        *("group-cast", group_cast, "KV that is seen", "one message each", "MagiAttention"),
        variants=under_sparse,
    ),
    _newer("halo", group_cast, "KV that is seen", "group-cast", "swa_p2p of Megatron-LM"),
    _newer("llama3", llama3, "KV", "all-gather by heads", "Llama 3 (2024)", variants=plain),
    _newer(
        "ulysses-stages",
        ulysses_stages,
        "heads",
        "all-to-all in stages",
        "UPipe",
        variants=plain,
    ),
    _newer(
        "head-chunks", head_chunks, "heads", "ulysses-stages, one ahead", "HCMS", variants=plain
    ),
    _newer("ulysses-gather", ulysses_gather, "heads, KV", "usp with a gather", "vLLM-Omni"),
    _newer(
        *("groups", groups, "KV", "rings per document", "FlexSP, ByteScale"),
        variants=under_documents,
    ),
)
SCHEDULES |= {row.name: row for row in ROWS}
for _module in walk_packages(__path__, f"{__name__}."):  # importing a file registers its schedules
    import_module(_module.name)


def classic() -> list[str]:
    """Returns the names of the best-known schedules."""
    return [name for name, row in SCHEDULES.items() if row.classic]


def comparable(work: Workload, ranks: int, node: int) -> list[str]:
    """Returns the schedules, with parameters, to compare on nodes of `node` ranks."""
    rows = SCHEDULES.values()
    return [f"{row.name}{more}" for row in rows for more in row.variants(work, ranks, node)]


def further(work: Workload, ranks: int, node: int) -> list[str]:
    """Returns more settings of schedules than `comparable`; some may be faster."""
    defaults = {name: SCHEDULES[name].parameters for name in FAMILIES}
    usual = {*comparable(work, ranks, node)}
    return [name for name in settings(work, ranks, node, defaults) if name not in usual]
