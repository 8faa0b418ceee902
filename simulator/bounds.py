"""Lower bounds on the time of a workload on given ranks and hardware, for a class of plans.

The class. A plan computes every allowed (query, key) pair once. One rank owns a token for all of
its heads, and no rank owns more than ceil(seq / ranks) queries or ceil(kv_seq / ranks) keys. Under
a plain causal mask with as many keys as queries, the query and the key of a token have the same
owner. A forward pass starts without copies. A backward pass may start with copies of Q, KV and OUT
on any rank, but not of DOUT and STATS. Results end at their owners, at least in the model's dtype.

The machine. A pair takes at least its flop at the full rate of the kernels. Kernels read inputs
from memory and write results to memory, at the bandwidth of the memory. A message occupies each
link of its route for bytes / bandwidth and arrives one latency after its last byte; links are full
duplex. Nothing else takes time.

compute   All pairs, divided by the sum of the ranks' speeds.
memory    Each key that a query sees, and each query that sees a key, is read once on some rank, and
          their results are written once in the model's dtype. All these bytes are divided by the
          same sum.
link      The pairs that a group of ranks computes need a bounding box of rows (Loomis and Whitney):
          with k keys and, averaged over the query heads of a KV head, q queries, the group computes
          at most q k pairs per query head. For a query that it does not own, the group receives Q
          and sends OUT (backward: DOUT and DQ); for a key that it does not own, it receives KV
          (backward: it sends DKV). Divide all ranks into groups. A partial sum that leaves one
          group enters another, so all these bytes enter some group. The bytes are linear in q and k
          and the pairs are bilinear, so the least bytes of a group for its pairs, averaged over
          heads, lie on the lower convex hull of four corners: owned or all queries, owned or all
          keys. Under a plain causal mask, o owned tokens have only o (o + 1) / 2 pairs with each
          other, so o (o - 1) / 2 pairs of the box do not exist. The groups that compute the pairs
          are unknown; the bytes are fewest if pairs are assigned along the flattest edges of all
          hulls first. The links into all groups carry these bytes together, and the division with
          the largest time counts. The time is an average: some group needs at least this time, but
          a given group may need less. The least latency of a message is added; if the latency is
          the larger part, the cause is `latency`.

The link bound ignores packing and the shape of a mask. If a few rows are enough for the share of a
rank (windows, short documents), or few ranks share few links, the bound is that of compute or
memory. It is loose where no plan reaches the full rate (docs/predictions.md lists such cases).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from ringloom.planner.ir import TENSORS, Pass, Plan
from ringloom.planner.layouts import owners_of_tokens
from ringloom.planner.masks import Causal
from ringloom.planner.masks.areas import count_pairs, count_positions
from ringloom.planner.masks.regions import FAR, Ints, Region
from ringloom.planner.workload import Workload
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.network.routes import Routes
from ringloom.simulator.network.topology import Place
from ringloom.simulator.scenario import Scenario

Why = Literal["compute", "memory", "link", "latency"]
# The tensors sent for a row that another rank computes, of queries and of keys.
AWAY: dict[Pass, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "forward": (("Q", "OUT"), ("KV",)),
    "backward": (("DOUT", "DQ"), ("DKV",)),
}
Hull = list[tuple[float, float]]  # pairs and bytes at the corners, both ascending


@dataclass(frozen=True, slots=True)
class Bounds:
    """A lower bound in seconds, its cause, and the kind of group to which it applies.

    The groups are all ranks together, single ranks, nodes, or halves of a torus.
    """

    seconds: float
    why: Why
    group: str

    def __add__(self, other: "Bounds") -> "Bounds":
        """Returns the bound of two passes in sequence, with the cause of the longer pass."""
        longer = max(self, other, key=lambda bound: bound.seconds)
        return Bounds(self.seconds + other.seconds, longer.why, longer.group)


class Group(NamedTuple):
    """A number of ranks, and the bandwidth in bytes/s of all links into the group."""

    ranks: int
    bandwidth: float


def lower_bound(
    work: Workload,
    ranks: int,
    pass_: Pass,
    hardware: Hardware,
    scenario: Scenario = Scenario(),  # noqa: B008  frozen, so one shared instance is safe
) -> Bounds:
    """Returns a lower bound on the time of any plan in the class.

    The scenario's speeds, links and topology count. Raises RingloomError if they do not fit.
    """
    bound, pairs = compute_bound(work, ranks, pass_, hardware, scenario), _total_pairs(work)
    routes = scenario.routes(hardware, ranks)
    for name, groups in _divisions(routes):
        seconds = _transfer_seconds(work, ranks, pass_, pairs, groups)
        alpha = _least_alpha(routes) if seconds else 0.0
        if seconds + alpha > bound.seconds:
            bound = Bounds(seconds + alpha, "link" if seconds > alpha else "latency", name)
    return bound


def compute_bound(
    work: Workload,
    ranks: int,
    pass_: Pass,
    hardware: Hardware,
    scenario: Scenario = Scenario(),  # noqa: B008  frozen, so one shared instance is safe
) -> Bounds:
    """Returns a lower bound on the time of any exact plan, from compute and memory alone."""
    kernels, speed = Kernels(hardware, work, pass_), float(scenario.speed(ranks).sum())
    visible = _visible_tokens(work, work.mask.region())
    times: dict[Why, float] = {  # of one query head on one rank
        "compute": _total_pairs(work) * kernels.seconds_per_pair,
        "memory": sum(kernels.traffic(*visible)) / hardware["memory.bandwidth"],
    }
    why = max(times, key=times.__getitem__)
    return Bounds(times[why] * work.heads / speed, why, "all ranks")


def _total_pairs(work: Workload) -> int:
    """Returns the number of allowed pairs of one query head."""
    queries = range(work.offset, work.kv_seq)
    return int(count_pairs(work.mask.region(), [(queries,)], [(range(work.kv_seq),)])[0, 0])


def _visible_tokens(work: Workload, region: Region) -> tuple[int, int]:
    """Returns the number of queries that see any key, and of keys that any query sees."""
    first, end = work.offset, work.kv_seq
    box = np.array([[first, first, 0, 0, -FAR, -FAR], [end, end, end, end, FAR, FAR]])
    pieces = Region.of(region.pieces.clip(*box)).pieces
    return _union_size(*pieces.T[:2]), _union_size(*pieces.T[2:4])


def _union_size(low: Ints, high: Ints) -> int:
    """Returns the size of the union of some intervals [low, high)."""
    order = np.argsort(low)
    low, high = low[order], np.maximum.accumulate(high[order])
    return int(np.maximum(high - np.maximum(low, np.append(low[:1], high[:-1])), 0).sum())


def least_bytes(work: Workload, ranks: int, pass_: Pass) -> int:
    """Returns a lower bound on the bytes of all messages of any plan in the class."""
    return int(_bytes_into_groups(work, ranks, pass_, _total_pairs(work), Counter({1: ranks})))


def _bytes_into_groups(
    work: Workload, ranks: int, pass_: Pass, pairs: int, counts: Mapping[int, int]
) -> float:
    """Returns the least bytes into groups for all pairs; `counts`: groups by number of ranks."""
    hull = _sum_hulls([(_hull(work, ranks, size, pass_), count) for size, count in counts.items()])
    corner_pairs, corner_bytes = np.array(hull).T
    return float(np.interp(pairs, corner_pairs, corner_bytes))


def _transfer_seconds(
    work: Workload, ranks: int, pass_: Pass, pairs: int, groups: Counter[Group]
) -> float:
    """Returns the seconds in which the links into all groups carry the bytes for all pairs."""
    counts = Counter[int]()
    for group, count in groups.items():
        counts[group.ranks] += count
    size = _bytes_into_groups(work, ranks, pass_, pairs, counts)
    rate = sum(group.bandwidth * count for group, count in groups.items())
    return size / rate if rate else size and float("inf")


def _owned_and_all(tokens: int, ranks: int, group: int) -> tuple[int, int]:
    """Returns the most of `tokens` that a group of ranks can own, and `tokens`."""
    return min(tokens, group * -(-tokens // ranks)), tokens


def _is_plain_causal(work: Workload) -> bool:
    return work.mask == Causal() and work.seq == work.kv_seq


def _hull(work: Workload, ranks: int, group: int, pass_: Pass) -> Hull:
    """Returns the lower convex hull of (pairs, bytes of all KV heads) at the corners of the box.

    At the first corner, a group of `group` ranks computes only pairs of its own rows, with 0 bytes.
    """
    q, kv = (
        sum(TENSORS[name].bytes_per_token(work, finished=True) for name in side) * work.kv_heads
        for side in AWAY[pass_]
    )
    rows, columns = (_owned_and_all(n, ranks, group) for n in (work.seq, work.kv_seq))
    absent = rows[0] * (rows[0] - 1) / 2 if _is_plain_causal(work) else 0.0
    corners = (
        (height * width - absent, work.group * q * (height - rows[0]) + kv * (width - columns[0]))
        for height in rows
        for width in columns
    )
    hull: Hull = []
    for x, y in sorted(corners):
        while len(hull) > 1 and _slope(hull[-2], (x, y)) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        if not hull or x > hull[-1][0]:
            hull.append((x, y))
    return hull


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _sum_hulls(hulls: Sequence[tuple[Hull, int]]) -> Hull:
    """Returns the hull of several groups together, from pairs of a hull and its number of groups.

    Pairs are assigned along the flattest edges first.
    """
    x, y = (sum(hull[0][axis] * count for hull, count in hulls) for axis in (0, 1))
    pieces = sorted(
        (_slope(a, b), (b[0] - a[0]) * count) for hull, count in hulls for a, b in pairwise(hull)
    )
    total = [(x, y)]
    for slope, width in pieces:
        x, y = x + width, y + slope * width
        total.append((x, y))
    return total


# ---- groups of ranks


def _divisions(routes: Routes) -> Iterator[tuple[str, Counter[Group]]]:
    """Yields the name (rank, node, half) and the counted groups of each division of the ranks.

    Slow links count with their reduced bandwidth, cut links not at all.
    """
    topology = routes.topology
    by_rank: dict[Place, int] = {rank: rank for rank in range(topology.ranks)}
    for name, number in [("rank", by_rank), *topology.divisions]:
        count = max(number.values()) + 1
        members, rates = [0] * count, [0.0] * count
        for place, group in number.items():
            members[group] += isinstance(place, int)
        for a, b, link in routes.graph.edges(data=True):
            target = number.get(b)
            if target is not None and number.get(a) != target:
                rates[target] += link["bandwidth"]
        yield name, Counter(g for g in map(Group, members, rates) if g.ranks)


def _least_alpha(routes: Routes) -> float:
    """Returns the least latency of a message, over a direct link or a first and a last link."""
    infinite = float("inf")
    least = {(True, True): infinite, (True, False): infinite, (False, True): infinite}
    for a, b, link in routes.graph.edges(data=True):
        kind = isinstance(a, int), isinstance(b, int)
        least[kind] = min(least.get(kind, 0.0), link.get("alpha", 0.0))
    alpha = min(least[True, True], least[True, False] + least[False, True])
    return alpha if alpha < infinite else 0.0


# ---- plans outside the class


def reason_outside_class(plan: Plan) -> str | None:
    """Returns why a plan is outside the class of the lower bounds; None if it is inside."""
    copies = {t for copy in plan.start for t in copy.tensors}
    copies -= {"Q", "KV", "OUT"} if plan.pass_ == "backward" else set()
    if copies:
        return f"copies of {', '.join(sorted(copies))} are away from their owners at the start"
    sides = {"query": plan.partition.q, "key": plan.partition.kv}
    for name, side in sides.items():
        full = side.sizes > 0
        chunk, owners, heads = side.chunk[full], side.owners[full], side.head_counts[full]
        owner = np.zeros(len(side.chunks), np.int64)
        owner[chunk] = owners
        if (owner[chunk] != owners).any() or len({*np.bincount(chunk, heads)} - {0}) > 1:
            return f"the heads of a {name} have several owners"
        tokens = count_positions(side.chunks)
        most, fair = int(np.bincount(owner, tokens).max()), -(-int(tokens.sum()) // plan.ranks)
        if most > fair:
            return f"a rank owns {most} tokens of the {name} side, more than {fair}"
    if _is_plain_causal(plan.workload):
        pieces = ([(b.positions, b.home) for b in side.blocks] for side in sides.values())
        q, kv = (owners_of_tokens(side, plan.workload.seq) for side in pieces)
        if (q != kv).any():
            return "the query and the key of a token have different owners"
    return None
