"""Settings of schedules that comparisons try when none is named, for ranks in nodes of `node`.

usual      functions (work, ranks, node): texts that follow a schedule's name, a row of each
FAMILIES   per schedule the parameters that are free, of which the best is shown
settings   the texts of all their settings; a setting that is the default is not written
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product

from ringloom.planner.layouts import parts
from ringloom.planner.masks import Causal, Full
from ringloom.planner.workload import Workload

Setting = Mapping[str, int | str]
Free = Callable[[Workload, int, int], Iterator[Setting]]
TILE = 128  # rows of a kernel's tile: layouts whose pieces are shorter leave tiles half empty
MOST = 256  # ranks up to which cutting tokens by work takes less time than planning


def never(_: Workload, __: int, ___: int) -> Iterator[str]:
    """None: the schedule is compared only where it is named."""
    yield from ()


def once(_: Workload, __: int, ___: int) -> Iterator[str]:
    """The schedule as it is."""
    yield ""


def beside_a_cache(work: Workload, _: int, __: int) -> Iterator[str]:
    """The schedule as it is, where keys outnumber queries: it leaves them where they are."""
    if work.seq < work.kv_seq:
        yield ""


def under_documents(work: Workload, _: int, __: int) -> Iterator[str]:
    """The schedule as it is, where parts of the mask are independent: it shares them out."""
    if len(parts(work)) > 1:
        yield ""


def under_sparse(work: Workload, _: int, __: int) -> Iterator[str]:
    """The schedule as it is, under masks other than full and causal: it sends what is seen."""
    if work.mask.fixed_length:
        yield ""


def in_nodes(_: Workload, ranks: int, node: int) -> Iterator[str]:
    """Nodes as the machine has them, where there are several."""
    if 1 < node < ranks and ranks % node == 0:
        yield f":node={node}"


def by_heads(work: Workload, ranks: int, node: int) -> Iterator[str]:
    """Every degree of Ulysses that divides ranks and KV heads; across nodes, in both orders."""
    for degree in _degrees(work, ranks):
        yield f":ulysses={degree}"
        if ranks > node:
            yield f":ulysses={degree}:order=context"


def _degrees(work: Workload, ranks: int) -> list[int]:
    return [d for d in range(2, ranks) if ranks % d == 0 and work.kv_heads % d == 0]


# ---- free parameters


def layouts(work: Workload, ranks: int, _: int) -> Iterator[Setting]:
    """Layouts that are even, or local, under the mask; under a full one all are alike."""
    if work.mask in (Full(), Causal()):
        yield {"layout": "zigzag"}
        return
    yield from ({"layout": name} for name in ("zigzag", "contiguous"))
    if ranks <= MOST:
        yield {"layout": "even-work"}
    documents = len(parts(work))
    if documents > 1 and min(work.seq, work.kv_seq) >= 2 * ranks * TILE * documents:
        yield {"layout": "per-document"}


def kept(_: Workload, __: int, ___: int) -> Iterator[Setting]:
    """Keys are gathered again in the backward pass, or kept from the forward pass."""
    yield from ({"keep": keep} for keep in (0, 1))


def plain_layouts(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Head-tail, or contiguous under masks that are neither full nor causal."""
    yield {"layout": "zigzag"}
    if work.mask not in (Full(), Causal()):
        yield {"layout": "contiguous"}


def grouped(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """Contiguous shares of each document, where there are several: head-tail is usual."""
    if len(parts(work)) > 1:
        yield {"layout": "contiguous"}


def rounds(_: Workload, ranks: int, __: int) -> Iterator[Setting]:
    """All keys at once, in two rounds, or from each distance in turn."""
    yield from ({"stages": stages} for stages in (1, 2, 0) if stages < ranks)


def strides(work: Workload, _: int, __: int) -> Iterator[Setting]:
    """One KV head at a time, and twice as many up to half of them."""
    yield from ({"stride": 2**n} for n in range(work.kv_heads.bit_length()) if 2**n < work.kv_heads)


def stages(work: Workload, ranks: int, _: int) -> Iterator[Setting]:
    """Two stages of the heads of a rank, and twice as many up to one per head."""
    most = work.heads // ranks
    yield from ({"stages": 2**n} for n in range(1, most.bit_length()) if 2**n <= most)


def gathers(work: Workload, ranks: int, node: int) -> Iterator[Setting]:
    """Every degree of Ulysses, with rings, gathers or both; across nodes, in both orders."""
    for degree in _degrees(work, ranks):
        rest = ranks // degree
        for gather in (g for g in range(1, rest + 1) if rest % g == 0):
            yield {"ulysses": degree, "gather": gather}
            if ranks > node:
                yield {"ulysses": degree, "gather": gather, "order": "context"}


FAMILIES: Mapping[str, tuple[Free, ...]] = {
    "allgather": (layouts, kept),
    "llama3": (strides, layouts),
    "group-cast": (rounds, layouts),
    "usp": (gathers, plain_layouts),
    "ulysses-stages": (stages,),
    "head-chunks": (stages,),
    "groups": (grouped,),
    "bidirectional": (plain_layouts,),
    "startrail": (),
}


def settings(
    work: Workload, ranks: int, node: int, defaults: Mapping[str, Mapping[str, int | str]]
) -> Iterator[str]:
    """Yield every setting of the families, `defaults` being each schedule's parameters."""
    for name, free in FAMILIES.items():
        for settings in product(*(each(work, ranks, node) for each in free)):
            given = {key: value for one in settings for key, value in one.items()}
            words = (f":{k}={v}" for k, v in given.items() if defaults[name][k] != v)
            yield name + "".join(words)
