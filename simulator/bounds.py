"""Lower bounds on the time of a workload on given ranks and hardware, for a class of plans.

The class. A plan computes every allowed (query, key) pair once. A token has one owner for all of
its heads, and no rank owns more than ceil(seq / ranks) queries or ceil(kv_seq / ranks) keys; under
a plain causal mask over as many keys as queries, a token's query and its key have the same owner.
A forward pass starts without copies. A backward pass may start with copies of Q, KV and OUT
anywhere, not of DOUT and STATS. Results end at their owners, in the model's dtype at least.

The machine. A pair takes at least its flop at the kernels' full rate; a kernel reads its inputs
from memory and writes its results to it, at the memory's bandwidth; a message takes each link on
its way for bytes / bandwidth, links are full duplex, and it arrives a latency after its last byte.
Nothing else takes time.

compute   all pairs, over the sum of the ranks' speeds
memory    each key that a query sees and each query that sees a key is read once, on some rank, and
          their results are written once, in the model's dtype: all these bytes, over the same sum
link      A group of ranks that computes some pairs needs a bounding box of rows for them (Loomis
          and Whitney): with k keys and, in the mean over query heads that share a KV head, q
          queries, it computes q k pairs per query head at the most. Of a query that it does not
          own, Q comes in (backward: DOUT) and OUT goes out (DQ); of a key that it does not own, KV
          comes in (backward: DKV goes out). Divide all ranks into groups. Each partial sum goes to
          one rank, so what goes out of one group comes into another: over all groups together, all
          of these bytes come in. They are linear in q and k, the pairs bilinear, so the least bytes
          of a group for its pairs, in the mean over heads, lie on the lower convex hull of the four
          corners of own to all queries x own to all keys. Own tokens of a plain causal mask meet in
          o (o + 1) / 2 pairs only, so o (o - 1) / 2 of the box are not computed. Nobody knows which
          group computes which pairs: the bytes are fewest where pairs are given out along the
          flattest edges of all hulls. The links into all groups, together, carry them; of all
          divisions the largest time counts. It is a mean: some group has it at least, but a given
          one may have less. To it comes the least latency of a message. Where that is the larger
          part, it is `latency`.

Neither packing nor a mask's shape counts for links: where a few rows are enough for a share
(windows, short documents), or few ranks are on few links, the bound is that of compute or memory,
and loose where no plan reaches full rate (docs/predictions.md lists where).
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
# What travels for a row that is computed away from its owner, on the query side and the key side.
AWAY: dict[Pass, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "forward": (("Q", "OUT"), ("KV",)),
    "backward": (("DOUT", "DQ"), ("DKV",)),
}
Hull = list[tuple[float, float]]  # pairs and bytes at the corners, both rising


@dataclass(frozen=True, slots=True)
class Bounds:
    """A lower bound in seconds, its cause, and the group of ranks to which it applies.

    The group: all ranks together, or each rank, node, or half of a torus by itself.
    """

    seconds: float
    why: Why
    group: str

    def __add__(self, other: "Bounds") -> "Bounds":
        """Returns the bound of both passes in turn, with the cause of the longer one."""
        longer = max(self, other, key=lambda bound: bound.seconds)
        return Bounds(self.seconds + other.seconds, longer.why, longer.group)


class Group(NamedTuple):
    """Ranks of a group, and bytes/s of all links into it together."""

    ranks: int
    into: float


def lower_bound(
    work: Workload,
    ranks: int,
    pass_: Pass,
    hardware: Hardware,
    scenario: Scenario = Scenario(),  # noqa: B008  frozen, so one shared instance is safe
) -> Bounds:
    """Returns a lower bound on the time of any plan in the class.

    Of a scenario, speeds, links and topology count. Raises RingloomError where they do not fit.
    """
    bound, pairs = compute_bound(work, ranks, pass_, hardware, scenario), _pairs(work)
    routes = scenario.routes(hardware, ranks)
    for name, groups in _divisions(routes):
        seconds = _transfer(work, ranks, pass_, pairs, groups)
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
    seen = _seen(work, work.mask.region())
    times: dict[Why, float] = {  # of one query head on one rank
        "compute": _pairs(work) * kernels.seconds_per_pair,
        "memory": sum(kernels.traffic(*seen)) / hardware["memory.bandwidth"],
    }
    why = max(times, key=times.__getitem__)
    return Bounds(times[why] * work.heads / speed, why, "all ranks")


def _pairs(work: Workload) -> int:
    """Returns the allowed pairs of one query head."""
    queries = range(work.offset, work.kv_seq)
    return int(count_pairs(work.mask.region(), [(queries,)], [(range(work.kv_seq),)])[0, 0])


def _seen(work: Workload, region: Region) -> tuple[int, int]:
    """Returns how many queries see a key, and how many keys a query sees."""
    first, end = work.offset, work.kv_seq
    box = np.array([[first, first, 0, 0, -FAR, -FAR], [end, end, end, end, FAR, FAR]])
    pieces = Region.of(region.pieces.clip(*box)).pieces
    return _covered(*pieces.T[:2]), _covered(*pieces.T[2:4])


def _covered(low: Ints, high: Ints) -> int:
    """Returns the size of the union of some intervals [low, high)."""
    order = np.argsort(low)
    low, high = low[order], np.maximum.accumulate(high[order])
    return int(np.maximum(high - np.maximum(low, np.append(low[:1], high[:-1])), 0).sum())


def least_bytes(work: Workload, ranks: int, pass_: Pass) -> int:
    """Returns a lower bound on the bytes of all messages of any plan in the class."""
    return int(_least(work, ranks, pass_, _pairs(work), Counter({1: ranks})))


def _least(work: Workload, ranks: int, pass_: Pass, pairs: int, counts: Mapping[int, int]) -> float:
    """Returns the least bytes into groups for all pairs; `counts` are groups by number of ranks."""
    hull = _sum([(_hull(work, ranks, size, pass_), count) for size, count in counts.items()])
    most, sizes = np.array(hull).T  # pairs and bytes at the corners
    return float(np.interp(pairs, most, sizes))


def _transfer(work: Workload, ranks: int, pass_: Pass, pairs: int, groups: Counter[Group]) -> float:
    """Returns the seconds in which the links into all groups carry what all pairs need."""
    counts = Counter[int]()
    for group, count in groups.items():
        counts[group.ranks] += count
    size = _least(work, ranks, pass_, pairs, counts)
    rate = sum(group.into * count for group, count in groups.items())
    return size / rate if rate else size and float("inf")


def _box(tokens: int, ranks: int, group: int) -> tuple[int, int]:
    """Returns the most tokens of a side that a group can own, and the tokens of the side."""
    return min(tokens, group * -(-tokens // ranks)), tokens


def _plain(work: Workload) -> bool:
    return work.mask == Causal() and work.seq == work.kv_seq


def _hull(work: Workload, ranks: int, group: int, pass_: Pass) -> Hull:
    """Returns the lower convex hull of pairs and bytes, of all KV heads, at a box's four corners.

    The first corner is that of rows that the group of so many ranks owns: they take no bytes.
    """
    q, kv = (
        sum(TENSORS[name].bytes_per_token(work, finished=True) for name in side) * work.kv_heads
        for side in AWAY[pass_]
    )
    rows, columns = _box(work.seq, ranks, group), _box(work.kv_seq, ranks, group)
    own = rows[0] * (rows[0] - 1) / 2 if _plain(work) else 0.0
    corners = (
        (height * width - own, work.group * q * (height - rows[0]) + kv * (width - columns[0]))
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


def _sum(hulls: Sequence[tuple[Hull, int]]) -> Hull:
    """Returns the least bytes of all pairs of several groups, given hulls and their counts.

    Pairs are given out along the flattest edges first.
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
    """Yields each division of the ranks into groups, with the name of a group: rank, node, half.

    Groups that are alike are counted. Slow and cut links count as they are.
    """
    topology = routes.topology
    every: dict[Place, int] = {rank: rank for rank in range(topology.ranks)}
    for name, number in [("rank", every), *topology.divisions]:
        count = max(number.values()) + 1
        members, into = [0] * count, [0.0] * count
        for place, group in number.items():
            members[group] += isinstance(place, int)
        for a, b, link in routes.graph.edges(data=True):
            target = number.get(b)
            if target is not None and number.get(a) != target:
                into[target] += link["bandwidth"]
        yield name, Counter(g for g in map(Group, members, into) if g.ranks)


def _least_alpha(routes: Routes) -> float:
    """Returns the least latency of any message: of a direct link, or of a first and a last link."""
    infinite = float("inf")
    least = {(True, True): infinite, (True, False): infinite, (False, True): infinite}
    for a, b, link in routes.graph.edges(data=True):
        kind = isinstance(a, int), isinstance(b, int)
        least[kind] = min(least.get(kind, 0.0), link.get("alpha", 0.0))
    alpha = min(least[True, True], least[True, False] + least[False, True])
    return alpha if alpha < infinite else 0.0


# ---- plans outside the class


def outside(plan: Plan) -> str | None:
    """Returns why a plan is outside the class of the lower bounds; None if it is inside."""
    early = {t for copy in plan.start for t in copy.tensors}
    early -= {"Q", "KV", "OUT"} if plan.pass_ == "backward" else set()
    if early:
        return f"copies of {', '.join(sorted(early))} are away from their owners at the start"
    sides = {"query": plan.partition.q, "key": plan.partition.kv}
    for name, side in sides.items():
        full = side.sizes > 0
        chunk, home, heads = side.chunk[full], side.owners[full], side.head_counts[full]
        owner = np.zeros(len(side.chunks), np.int64)
        owner[chunk] = home
        if (owner[chunk] != home).any() or len({*np.bincount(chunk, heads)} - {0}) > 1:
            return f"the heads of a {name} have several owners"
        tokens = count_positions(side.chunks)
        most, fair = int(np.bincount(owner, tokens).max()), -(-int(tokens.sum()) // plan.ranks)
        if most > fair:
            return f"a rank owns {most} tokens of the {name} side, more than {fair}"
    if _plain(plan.workload):
        pieces = ([(b.positions, b.home) for b in side.blocks] for side in sides.values())
        q, kv = (owners_of_tokens(side, plan.workload.seq) for side in pieces)
        if (q != kv).any():
            return "the query and the key of a token have different owners"
    return None
