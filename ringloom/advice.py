"""Recommends a schedule of a comparison and explains why others take longer."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringloom.rows import Row
from ringloom.views.units import seconds, times

SAME = 1.005  # times whose ratio is below this count as equal
CLOSE = 1.05  # without intervals, times whose ratio is below this are too close to call


@dataclass(frozen=True)
class Recommendation:
    """The schedule to use, those too close to call, and why; `reason` states all three."""

    schedule: str
    reason: str
    close_to: tuple[str, ...] = ()
    answer: str = ""

    def __repr__(self) -> str:
        close = f", {len(self.close_to)} too close to call" if self.close_to else ""
        return f"<Recommendation {self.schedule}{close}>"


def recommend(rows: Sequence[Row], unvalidated: str = "") -> Recommendation:
    """Recommends the fastest schedule and compares it with the next one that is clearly slower.

    Of schedules with the same time, to three digits, it is the one that sends the fewest bytes,
    then the one that needs the least memory. A schedule is too close to call if the interval of the
    ratio of both times contains 1, with the constants of the hardware varied for both together.
    `unvalidated` is added to the answer whenever there are several schedules.
    """
    if not any(row.makespan_s for row in rows):
        same = tuple(row.schedule for row in rows[1:])
        return Recommendation(rows[0].schedule, why(rows), same, why(rows))
    best, *others = sorted(rows, key=lambda row: row.order)
    near = [row for row in others if _close(row, best)]
    close, slower = tuple(row.schedule for row in near), [row for row in others if row not in near]
    tied = [row for row in near if row.order[0] == best.order[0]]
    answer = f"Use {best.schedule}: {seconds(best.makespan_s)}.{_tie(best, tied)}"
    if unsure := [row.schedule for row in near if row not in tied]:
        answer += f" Too close to call: {', '.join(unsure)}."
    if unvalidated and others:
        answer += f" {unvalidated}"
    reason = f"{answer} {why([best, *slower[:1]])}" if slower or not others else answer
    return Recommendation(best.schedule, reason, close, answer)


def _tie(best: Row, tied: Sequence[Row]) -> str:
    """Names the schedules that take the same time, and why another one is preferred to them."""
    if not tied:
        return ""
    cause = ""
    if any(row.max_bytes_sent > best.max_bytes_sent for row in tied):
        cause = f"; {best.schedule} sends the fewest bytes"
    elif any(row.peak_bytes > best.peak_bytes for row in tied):
        cause = f"; {best.schedule} needs the least memory"
    return f" Tied with {', '.join(row.schedule for row in tied)}{cause}."


def _close(row: Row, best: Row) -> bool:
    if row.ratio_interval is None or best.interval_s is None:
        return row.makespan_s <= CLOSE * best.makespan_s
    return row.ratio_interval[0] <= 1


def why(rows: Sequence[Row]) -> str:
    """Returns one sentence that explains the difference between fastest and slowest."""
    slow, fast = max(rows, key=lambda r: r.makespan_s), min(rows, key=lambda r: r.makespan_s)
    if not fast.makespan_s:
        return "The mask allows no query-key pair: there is nothing to compute."
    ratio = slow.makespan_s / fast.makespan_s
    idle = f"ranks are idle {slow.idle_fraction:.0%} of the time"
    if ratio < SAME:
        spread = f"{fast.schedule} takes" if len(rows) == 1 else "All schedules take the same time,"
        over = seconds(fast.makespan_s)
        if fast.bound_ratio is not None:
            over = f"{times(fast.bound_ratio)} the lower bound of {seconds(fast.bound_s)}"
        elif fast.compute_bound_ratio is not None:
            least = seconds(fast.compute_bound_s)
            over = f"{times(fast.compute_bound_ratio)} the bound of compute and memory, {least}"
        return f"{spread} {over}, and {idle}."
    spread = f"{slow.schedule} takes {times(ratio)} as long as {fast.schedule}"
    spread += ", too close to call" if _close(slow, fast) else ""
    waits = slow.exposed_comm_s - fast.exposed_comm_s
    if waits > 0.5 * (slow.makespan_s - fast.makespan_s):
        return (
            f"{spread}: its ranks wait up to {seconds(slow.exposed_comm_s)} for transfers"
            f" ({seconds(fast.exposed_comm_s)} in {fast.schedule})."
        )
    if slow.busiest.share > 1.1 * fast.busiest.share:
        return (
            f"{spread}: rank {slow.busiest.rank} computes {times(slow.busiest.share)} the average"
            f" work, rank {slow.lightest.rank} only {times(slow.lightest.share)}, and {idle}; in"
            f" {fast.schedule} the busiest rank computes {times(fast.busiest.share)} the average."
        )
    if slow.imbalance > 1.1 * fast.imbalance:
        return (
            f"{spread}: the busiest ranks of its rounds compute {times(slow.imbalance)} the average"
            f" work ({times(fast.imbalance)} in {fast.schedule}), and {idle}."
        )
    busy, other = (r.makespan_s * (1 - r.idle_fraction) for r in (slow, fast))
    if busy > 1.1 * other:
        return (
            f"{spread}: its kernels and merges take {times(busy / other)} as long for the same"
            f" pairs, {seconds(busy)} on a rank rather than {seconds(other)}."
        )
    if slow.idle_fraction > fast.idle_fraction:
        return f"{spread}: {idle} ({fast.idle_fraction:.0%} in {fast.schedule})."
    return f"{spread}."
