"""Parameters of schedules that comparisons try when none is named, for ranks in nodes of `node`.

Each function (work, ranks, node) gives texts that follow the name of a schedule.
"""

from collections.abc import Iterator

from planner.layouts import parts
from planner.workload import Workload


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
    for degree in range(2, ranks):
        if ranks % degree == 0 and work.kv_heads % degree == 0:
            yield f":ulysses={degree}"
            if ranks > node:
                yield f":ulysses={degree}:order=context"
