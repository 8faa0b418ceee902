"""Lower bounds on the time of a pass: what no schedule, and what not even this plan, can beat."""

from simulator.costs import Costs
from simulator.recurrence import Sums


def compute_bound(costs: Costs) -> float:
    """Seconds below which no schedule can be on this hardware.

    Every allowed pair is computed once, evenly on all ranks, at the kernels' full efficiency and
    without quantisation, launches or merging; in a backward pass after the prologue, which reads
    and writes the same bytes wherever the rows live.
    """
    pairs = costs.tiles.total_pairs() * costs.seconds_per_pair
    return float((pairs + costs.prologue.sum()) / costs.plan.ranks)


def link_bound(sums: Sums) -> float:
    """Seconds that the busiest port of this plan needs for its bytes at the link's bandwidth."""
    return float(sums.ports.max(initial=0.0))
