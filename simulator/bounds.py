"""What not even this plan can beat, whatever its order: see `simulator.lower_bounds` for any."""

from simulator.engines.recurrence import Sums


def link_bound(sums: Sums) -> float:
    """Seconds that the busiest port or link of this plan needs for its bytes."""
    return float(sums.ports.max(initial=0.0))
