"""The Hypothesis strategies of every test, small enough for the slow oracles."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from operator import methodcaller

from hypothesis import strategies as st

from ringloom.planner.errors import PlanError
from ringloom.planner.layouts import BY_MASK, IN_GRAINS, LAYOUTS
from ringloom.planner.masks import (
    MASKS,
    BlockCausal,
    Blocks,
    Causal,
    Chunks,
    Documents,
    Full,
    Mask,
    Slices,
    Tree,
    Varlen,
    Window,
)
from ringloom.planner.masks.slices import KINDS
from ringloom.planner.schedules import SCHEDULES, classic_schedules
from ringloom.planner.workload import Workload

ranks = st.integers(1, 9)
CLASSIC = classic_schedules()  # what products of masks, dtypes and programs are tried with
OTHERS = [name for name in SCHEDULES if name not in CLASSIC]


@st.composite
def parts(draw: st.DrawFn, total: int, count: int) -> tuple[int, ...]:
    """`count` lengths, zeros among them, that sum to `total`."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=count - 1, max_size=count - 1)))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


@st.composite
def documents(draw: st.DrawFn, seq: int, kv_seq: int) -> Documents:
    """Documents over kv_seq keys, with or without lengths for the queries."""
    count = draw(st.integers(1, 5))
    lengths = draw(parts(kv_seq, count))
    return Documents(lengths, draw(parts(seq, count)) if draw(st.booleans()) else None)


@st.composite
def blocks(draw: st.DrawFn, kv_seq: int) -> Blocks:
    """Grids that cover kv_seq positions, or a little more."""
    size = draw(st.integers(max(1, kv_seq // 6), kv_seq + 2))
    least = -(-kv_seq // size)
    row = st.lists(st.booleans(), min_size=least, max_size=least)
    extra = draw(st.integers(0, 1))
    grid = draw(st.lists(row, min_size=least + extra, max_size=least + extra))
    return Blocks(tuple(map(tuple, grid)), size)


@st.composite
def slices(draw: st.DrawFn, seq: int, kv_seq: int) -> Slices:
    """Rectangles of every kind that lie within the lengths, those left out that would overlap."""
    query, key = st.integers(kv_seq - seq, kv_seq), st.integers(0, kv_seq)
    rows = list[tuple[int, int, int, int, str]]()
    for _ in range(draw(st.integers(1, 5))):
        q0, q1 = sorted((draw(query), draw(query)))
        k0, k1 = sorted((draw(key), draw(key)))
        rows.append((q0, q1, k0, k1, draw(st.sampled_from([*KINDS]))))
        with suppress(PlanError):
            kept = Slices(tuple(rows))
            continue
        rows.pop()
    return kept


@st.composite
def varlen(draw: st.DrawFn, seq: int, kv_seq: int) -> Varlen:
    """Documents of any queries and keys, with any window that counts from their ends."""
    count, side = draw(st.integers(1, 4)), st.none() | st.integers(0, kv_seq + 2)
    lengths, q_lengths = draw(parts(kv_seq, count)), draw(parts(seq, count))
    return Varlen(lengths, q_lengths, draw(side), draw(side))


@st.composite
def trees(draw: st.DrawFn, kv_seq: int) -> Tree:
    """Up to five nodes in any order, empty ones among them, with one root or several."""
    lengths = draw(parts(kv_seq, draw(st.integers(1, 5))))
    order = draw(st.permutations(range(len(lengths))))
    parents: list[int | None] = [None] * len(lengths)
    for at, node in enumerate(order[1:], 1):
        parents[node] = draw(st.none() | st.sampled_from(order[:at]))
    return Tree(lengths, tuple(parents))


def masks(seq: int, kv_seq: int, depth: int = 2, ended: bool = True) -> st.SearchStrategy[Mask]:
    """Every mask that fits the lengths, `&` and `|` nested up to `depth`.

    `ended`: chunks know where the keys end, as in a workload.
    """
    number, size = st.integers(0, kv_seq + 2), st.integers(1, kv_seq + 2)
    side = st.none() | number
    end = methodcaller("up_to", kv_seq + 3)
    chunked = [st.builds(mask, size) for mask in (Chunks, BlockCausal)]
    numbered = [mask for mask in MASKS.values() if {f.type for f in fields(mask)} <= {int, "int"}]
    leaves: st.SearchStrategy[Mask] = st.one_of(
        *(st.builds(mask, *[number] * len(fields(mask))) for mask in numbered),
        st.builds(Window, side, side),
        documents(seq, kv_seq),
        blocks(kv_seq),
        # Ends beyond the keys: the region is compared with the expression there, too.
        *(chunks.map(end) if ended else chunks for chunks in chunked),
        slices(seq, kv_seq),
        varlen(seq, kv_seq),
        trees(kv_seq),
    )
    if not depth:
        return leaves
    inner = masks(seq, kv_seq, depth - 1, ended)
    pairs = st.tuples(inner, inner)
    return leaves | pairs.map(lambda p: p[0] & p[1]) | pairs.map(lambda p: p[0] | p[1])


@st.composite
def range_sets(draw: st.DrawFn, limit: int) -> tuple[range, ...]:
    """Disjoint ranges within [0, limit), some strided, some backwards, some empty."""
    result = []
    cuts = sorted(draw(st.lists(st.integers(0, limit), max_size=4)))
    for low, high in zip([0, *cuts], [*cuts, limit], strict=True):
        step = draw(st.integers(1, 7))
        one = range(low + draw(st.integers(0, 3)), high, step)
        result.append(one[::-1] if draw(st.booleans()) else one)
        # Two strides of one interval interlace, as the stripes of a partition do.
        if step > 1 and draw(st.booleans()):
            result.append(range(one.start + 1, high, step))
    kept = draw(st.lists(st.booleans(), min_size=len(result), max_size=len(result)))
    return tuple(r for r, keep in zip(result, kept, strict=True) if keep)


def _workload(
    draw: st.DrawFn, seq: int, kv_seq: int, kv_heads: int, mask: st.SearchStrategy[Mask], dtype: str
) -> Workload:
    """Any head groups, dimensions and scales, one or two batch rows."""
    return Workload(
        seq=seq,
        kv_seq=kv_seq,
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 5)),
        batch=draw(st.integers(1, 2)),
        dtype=dtype,
        mask=draw(mask),
        scale=draw(st.none() | st.sampled_from([-0.5, 0.0, 1.5])),
    )


@st.composite
def workloads(draw: st.DrawFn, dtype: str = "float64", longest: int = 33) -> Workload:
    """Any lengths (fewer tokens than ranks too), masks, head groups, one or two batch rows."""
    seq = draw(st.integers(1, longest))
    kv_seq = draw(st.just(seq) | st.integers(1, longest))
    return _workload(draw, seq, kv_seq, draw(st.integers(1, 5)), masks(seq, kv_seq), dtype)


@st.composite
def any_workloads(draw: st.DrawFn, dtype: str = "float64", longest: int = 33) -> Workload:
    """The same, with values of any dimension, with and without sinks."""
    work = draw(workloads(dtype, longest))
    return replace(work, v_head_dim=draw(st.integers(1, 5)), sinks=draw(st.booleans()))


@st.composite
def divided_workloads(draw: st.DrawFn, ranks: int, dtype: str = "float64") -> Workload:
    """Lengths that the ranks divide, and mostly heads too: what loops are printed from."""
    each = st.sampled_from([1, 2, 3, 4, 6]).map(lambda n: n * ranks)
    seq = draw(each)
    kv_seq = draw(st.just(seq) | each)
    kv_heads = draw(st.just(ranks) | st.just(ranks) | st.integers(1, 4))
    mask = st.sampled_from([Full(), Causal()]) | masks(seq, kv_seq)
    return _workload(draw, seq, kv_seq, kv_heads, mask, dtype)


def parameters(name: str, ranks: int) -> dict[str, list[int | str]]:
    """Values of a schedule's parameters that go with so many ranks, whatever the heads."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    given = SCHEDULES[name].parameters
    values: dict[str, list[int | str]] = {
        "layout": [*LAYOUTS, *([] if name in ("cache-ring", "groups") else BY_MASK)],
        "grain": [1, 2, 3],
        "keep": [0, 1],
        "late": [0, 1],
        "ahead": [0, 1],
        "side": ["q", "kv"],
        "order": ["heads", "context"],
        "node": list(divisors),
        "columns": list(divisors),
        "team": [n for n in divisors if ranks % (n * n) == 0],
        "stages": [0, 1, 2, 3] if name == "group-cast" else [0, 1],
        "stride": [0, 1, 2, 3],
        "page": [1, 3, 16],
        "ulysses": list(divisors) if 0 in (given.get("ring"), given.get("gather")) else [0],
    }
    return {parameter: values[parameter] for parameter in given if parameter in values}


@st.composite
def schedules(draw: st.DrawFn, ranks: int, among: Sequence[str] = tuple(SCHEDULES)) -> str:
    """A schedule of the table as it is written, some of its parameters set, nodes among them."""
    name = draw(st.sampled_from(sorted(among)))
    chosen = {
        parameter: draw(st.sampled_from(values))
        for parameter, values in parameters(name, ranks).items()
        if draw(st.booleans())
    }
    if chosen.get("layout", SCHEDULES[name].parameters.get("layout")) not in IN_GRAINS:
        chosen.pop("grain", None)
    if name == "usp" and chosen.get("ulysses") and draw(st.booleans()):  # three degrees
        groups = ranks // int(chosen["ulysses"])
        chosen["gather"] = draw(
            st.sampled_from([n for n in range(1, groups + 1) if groups % n == 0])
        )
    return ":".join([name, *(f"{p}={value}" for p, value in chosen.items())])
