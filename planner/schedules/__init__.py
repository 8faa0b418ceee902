"""The table of schedules: built-in schedules, and schedules that files in subfolders register."""

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
    cache_variants,
    default_variant,
    document_variants,
    head_variants,
    no_variants,
    node_variants,
    settings,
    sparse_variants,
)
from ringloom.planner.workload import Workload

__all__ = [
    "PLAIN_NAMES",
    "SCHEDULES",
    "Schedule",
    "classic_schedules",
    "comparable_schedules",
    "further_schedules",
    "recorded_name",
    "schedule",
]


striped, zigzag = partial(ring, layout="striped"), partial(ring, layout="zigzag")
ulysses = partial(usp, ring=1, layout="contiguous")
ulysses_gather = partial(usp, ring=1, gather=0, keep=0)
decode_a2a = partial(mesh2d, columns=1, layout="contiguous")
pass_q, head_chunks = partial(tokenring, late=1), partial(ulysses_stages, ahead=1)
_newer = partial(Schedule, variants=no_variants, classic=False)
_cached = partial(_newer, variants=cache_variants)
_plain = partial(_newer, variants=default_variant)

ROWS = (
    Schedule("ring", ring, "KV", "one ring", "Ring Attention (Liu et al. 2023)"),
    Schedule("striped", striped, "KV", "ring, striped", "Striped Attention (Brandon et al. 2023)"),
    Schedule("zigzag", zigzag, "KV", "ring, head-tail layout", "common practice"),
    Schedule("balanced", balanced, "KV, Q, OUT", "helpers", "DistFlashAttn (Li et al. 2023)"),
    Schedule("burst", burst, "KV; backward Q", "one ring", "BurstAttention (Sun et al. 2024)"),
    Schedule("allgather", allgather, "KV", "all-gather", "common practice"),
    Schedule("ulysses", ulysses, "heads", "all-to-all", "DeepSpeed-Ulysses (Jacobs et al. 2023)"),
    Schedule(
        *("usp", usp, "heads, KV", "all-to-all, rings", "USP (Fang and Zhao 2024)"),
        variants=head_variants,
    ),
    _newer(
        *("double-ring", double_ring, "KV", "rings in, between nodes", "LoongTrain, BurstEngine"),
        variants=node_variants,
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
        *("group-cast", group_cast, "visible KV", "one message each", "MagiAttention"),
        variants=sparse_variants,
    ),
    _newer("halo", group_cast, "visible KV", "group-cast", "swa_p2p of Megatron-LM"),
    _plain("llama3", llama3, "KV", "all-gather by heads", "Llama 3 (2024)"),
    _plain("ulysses-stages", ulysses_stages, "heads", "all-to-all in stages", "UPipe"),
    _plain("head-chunks", head_chunks, "heads", "ulysses-stages, one ahead", "HCMS"),
    _newer("ulysses-gather", ulysses_gather, "heads, KV", "usp with a gather", "vLLM-Omni"),
    _newer(
        *("groups", groups, "KV", "rings per document", "FlexSP, ByteScale"),
        variants=document_variants,
    ),
)
SCHEDULES |= {row.name: row for row in ROWS}
for _module in walk_packages(__path__, f"{__name__}."):  # each import registers schedules
    import_module(_module.name)


def classic_schedules() -> list[str]:
    """Returns the names of the best-known schedules."""
    return [name for name, row in SCHEDULES.items() if row.classic]


def comparable_schedules(work: Workload, ranks: int, node: int) -> list[str]:
    """Returns the schedules, with parameters, to compare on nodes of `node` ranks."""
    rows = SCHEDULES.values()
    return [f"{row.name}{suffix}" for row in rows for suffix in row.variants(work, ranks, node)]


def further_schedules(work: Workload, ranks: int, node: int) -> list[str]:
    """Returns settings of schedules that are not among the `comparable_schedules`."""
    defaults = {name: SCHEDULES[name].parameters for name in FAMILIES}
    compared = {*comparable_schedules(work, ranks, node)}
    return [name for name in settings(work, ranks, node, defaults) if name not in compared]
