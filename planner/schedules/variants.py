"""Settings of schedules that comparisons try if none is named, for nodes of `node` ranks.

usual      functions (work, ranks, node) that yield suffixes of the schedule's name, one per row
FAMILIES   the free parameters of each schedule, of which the best setting is shown
settings   all combinations of free parameters, as text without defaults
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product

from ringloom.planner.layouts import parts
from ringloom.planner.masks import Causal, Full
from ringloom.planner.workload import Workload

Setting = Mapping[str, int | str]
Free = Callable[[Workload, int, int], Iterator[Setting]]
TILE = 128  # rows of a kernel's tile: layouts whose pieces are shorter leave tiles half empty
MOST = 256  # on more ranks, cutting tokens by work takes longer than planning


def no_variants(_: Workload, __: int, ___: int) -> Iterator[str]:
    """Yields no variant: the schedule is compared only when named explicitly."""
    yield from ()


def plain(_: Workload, __: int, ___: int) -> Iterator[str]:
    """Yields the schedule without parameters."""
    yield ""


def with_cache(work: Workload, _: int, __: int) -> Iterator[str]:
    """Yields the schedule if keys outnumber queries: it does not move them."""
    if work.seq < work.kv_seq:
        yield ""


def under_documents(work: Workload, _: int, __: int) -> Iterator[str]:
    """Yields the schedule if the mask has independent parts, which it divides among ranks."""
    if len(parts(work)) > 1:
        yield ""


def under_sparse(work: Workload, _: int, __: int) -> Iterator[str]:
    """Yields the schedule for masks other than full and causal: it sends only visible keys."""
    if work.mask.fixed_length:
        yield ""


def in_nodes(_: Workload, ranks: int, node: int) -> Iterator[str]:
    """Yields the machine's nodes, if there are several."""
    if 1 < node < ranks and ranks % node == 0:
        yield f":node={node}"


def by_heads(work: Workload, ranks: int, node: int) -> Iterator[str]:
    """Yields all Ulysses degrees that divide ranks and KV heads; across nodes, in both orders."""
    for degree in _degrees(work, ranks):
        yield f":ulysses={degree}"
        if ranks > node:
            yield f":ulysses={degree}:order=context"


def _degrees(work: Workload, ranks: int) -> list[int]:
    return [d for d in range(2, ranks) if ranks % d == 0 and work.kv_heads % d == 0]


# ---- free parameters


def layouts(work: Workload, ranks: int, _: int) -> Iterator[Setting]:
    """Yields layouts that may be balanced, or local, under the mask."""
    if work.mask in (Full(), Causal()):
        yield {"layout": "zigzag"}
        return
    yield from ({"layout": name} for name in ("zigzag", "contiguous"))
    if ranks <= MOST:
        yield {"layout": "even-work"}
    documents = len(parts(work))
    if documents > 1 and min(work.seq, work.kv_seq) >= 2 * ranks * TILE * documents:
        yield {"layout": "per-document"}


def keep_choices(_: Workload, __: int, ___: int) -> Iterator[Setting]:
    """Yields gathering keys again in the backward pass, and keeping them from the forward pass."""
    yield from ({"keep": keep} for keep in (0, 1))


def plain_layouts(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Yields head-tail and, for masks that are neither full nor causal, contiguous layouts."""
    yield {"layout": "zigzag"}
    if work.mask not in (Full(), Causal()):
        yield {"layout": "contiguous"}


def document_layouts(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Yields contiguous shards within each document, if there are several; default: head-tail."""
    if len(parts(work)) > 1:
        yield {"layout": "contiguous"}


def rounds(_: Workload, ranks: int, __: int) -> Iterator[Setting]:
    """Yields fetching all keys at once, in two rounds, or in one round per distance."""
    yield from ({"stages": stages} for stages in (1, 2, 0) if stages < ranks)


def strides(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Yields strides of 1, 2, 4, ... KV heads, fewer than all of them."""
    yield from ({"stride": 2**n} for n in range(work.kv_heads.bit_length()) if 2**n < work.kv_heads)


def stages(work: Workload, ranks: int, _: int) -> Iterator[Setting]:
    """Yields 2, 4, 8, ... stages, up to one per head of a rank."""
    most = work.heads // ranks
    yield from ({"stages": 2**n} for n in range(1, most.bit_length()) if 2**n <= most)


def gathers(work: Workload, ranks: int, node: int) -> Iterator[Setting]:
    """Yields all Ulysses degrees with rings, gathers or both; across nodes, in both orders."""
    for degree in _degrees(work, ranks):
        rest = ranks // degree
        for gather in (g for g in range(1, rest + 1) if rest % g == 0):
            yield {"ulysses": degree, "gather": gather}
            if ranks > node:
                yield {"ulysses": degree, "gather": gather, "order": "context"}


FAMILIES: Mapping[str, tuple[Free, ...]] = {
    "allgather": (layouts, keep_choices),
    "llama3": (strides, layouts),
    "group-cast": (rounds, layouts),
    "usp": (gathers, plain_layouts),
    "ulysses-stages": (stages,),
    "head-chunks": (stages,),
    "groups": (document_layouts,),
    "bidirectional": (plain_layouts,),
    "startrail": (),
}


def settings(
    work: Workload, ranks: int, node: int, defaults: Mapping[str, Mapping[str, int | str]]
) -> Iterator[str]:
    """Yield every setting of the families; `defaults` has the parameters of each schedule."""
    for name, families in FAMILIES.items():
        for settings in product(*(family(work, ranks, node) for family in families)):
            values = {key: value for setting in settings for key, value in setting.items()}
            words = (f":{k}={v}" for k, v in values.items() if defaults[name][k] != v)
            yield name + "".join(words)
