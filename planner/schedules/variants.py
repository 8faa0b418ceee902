"""Parameters of schedules that comparisons try, on nodes of `node` ranks.

*_variants   functions (work, ranks, node) that yield suffixes of a schedule's name, one per row
*_choices    functions (work, ranks, node) that yield values of a parameter
FAMILIES     the parameters of each schedule that a comparison chooses
settings     yields all combinations of these parameters, as text without defaults
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product

from ringloom.planner.layouts import independent_parts
from ringloom.planner.masks import Causal, Full
from ringloom.planner.workload import Workload

Setting = Mapping[str, int | str]
Choices = Callable[[Workload, int, int], Iterator[Setting]]
TILE = 128  # rows of a kernel's tile; layouts with shorter pieces leave tiles half empty
LARGEST_CUT = 256  # on more ranks, cutting tokens by work takes longer than planning


def no_variants(_: Workload, __: int, ___: int) -> Iterator[str]:
    """Yields no variant, for a schedule that is compared only when named explicitly."""
    yield from ()


def default_variant(_: Workload, __: int, ___: int) -> Iterator[str]:
    """Yields the schedule without parameters."""
    yield ""


def cache_variants(work: Workload, _: int, __: int) -> Iterator[str]:
    """Yields the schedule, which does not move keys, if there are more keys than queries."""
    if work.seq < work.kv_seq:
        yield ""


def document_variants(work: Workload, _: int, __: int) -> Iterator[str]:
    """Yields the schedule, which divides parts of the mask among ranks, if there are several."""
    if len(independent_parts(work)) > 1:
        yield ""


def sparse_variants(work: Workload, _: int, __: int) -> Iterator[str]:
    """Yields the schedule if the mask is neither full nor causal; it sends only visible keys."""
    if work.mask.fixed_length:
        yield ""


def node_variants(_: Workload, ranks: int, node: int) -> Iterator[str]:
    """Yields the number of ranks per node, if there are several nodes."""
    if 1 < node < ranks and ranks % node == 0:
        yield f":node={node}"


def head_variants(work: Workload, ranks: int, node: int) -> Iterator[str]:
    """Yields the Ulysses degrees that divide ranks and KV heads; across nodes, in both orders."""
    for degree in _degrees(work, ranks):
        yield f":ulysses={degree}"
        if ranks > node:
            yield f":ulysses={degree}:order=context"


def _degrees(work: Workload, ranks: int) -> list[int]:
    return [d for d in range(2, ranks) if ranks % d == 0 and work.kv_heads % d == 0]


def layout_choices(work: Workload, ranks: int, _: int) -> Iterator[Setting]:
    """Yields layouts that may balance the work or reduce communication under the mask."""
    if work.mask in (Full(), Causal()):
        yield {"layout": "zigzag"}
        return
    yield from ({"layout": name} for name in ("zigzag", "contiguous"))
    if ranks <= LARGEST_CUT:
        yield {"layout": "even-work"}
    documents = len(independent_parts(work))
    if documents > 1 and min(work.seq, work.kv_seq) >= 2 * ranks * TILE * documents:
        yield {"layout": "per-document"}


def keep_choices(_: Workload, __: int, ___: int) -> Iterator[Setting]:
    """Yields settings that gather keys again in the backward pass, or keep them."""
    yield from ({"keep": keep} for keep in (0, 1))


def basic_layout_choices(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Yields the zigzag layout and, for masks other than full and causal, contiguous shards."""
    yield {"layout": "zigzag"}
    if work.mask not in (Full(), Causal()):
        yield {"layout": "contiguous"}


def document_layout_choices(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Yields contiguous shards within each document, if there are several documents."""
    if len(independent_parts(work)) > 1:
        yield {"layout": "contiguous"}


def round_choices(_: Workload, ranks: int, __: int) -> Iterator[Setting]:
    """Yields settings that fetch all keys in one round, in two, or in a round per distance."""
    yield from ({"stages": stages} for stages in (1, 2, 0) if stages < ranks)


def stride_choices(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Yields strides of 1, 2, 4, ... KV heads, below the number of KV heads."""
    yield from ({"stride": 2**n} for n in range(work.kv_heads.bit_length()) if 2**n < work.kv_heads)


def stage_choices(work: Workload, ranks: int, _: int) -> Iterator[Setting]:
    """Yields 2, 4, 8, ... stages, up to one per head of a rank."""
    heads = work.heads // ranks
    yield from ({"stages": 2**n} for n in range(1, heads.bit_length()) if 2**n <= heads)


def gather_choices(work: Workload, ranks: int, node: int) -> Iterator[Setting]:
    """Yields all Ulysses degrees with rings, gathers or both; across nodes, in both orders."""
    for degree in _degrees(work, ranks):
        groups = ranks // degree
        for gather in (g for g in range(1, groups + 1) if groups % g == 0):
            yield {"ulysses": degree, "gather": gather}
            if ranks > node:
                yield {"ulysses": degree, "gather": gather, "order": "context"}


FAMILIES: Mapping[str, tuple[Choices, ...]] = {
    "allgather": (layout_choices, keep_choices),
    "llama3": (stride_choices, layout_choices),
    "group-cast": (round_choices, layout_choices),
    "usp": (gather_choices, basic_layout_choices),
    "ulysses-stages": (stage_choices,),
    "head-chunks": (stage_choices,),
    "groups": (document_layout_choices,),
    "bidirectional": (basic_layout_choices,),
    "startrail": (),
}


def settings(
    work: Workload, ranks: int, node: int, defaults: Mapping[str, Mapping[str, int | str]]
) -> Iterator[str]:
    """Yields every setting of the families; `defaults` has the parameters of each schedule."""
    for name, families in FAMILIES.items():
        for choices in product(*(family(work, ranks, node) for family in families)):
            values = {key: value for choice in choices for key, value in choice.items()}
            suffixes = (f":{k}={v}" for k, v in values.items() if defaults[name][k] != v)
            yield name + "".join(suffixes)
