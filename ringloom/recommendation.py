"""Recommends a schedule of a comparison and explains why others take longer."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringloom.rows import Row
from ringloom.views.units import seconds, times

SAME = 1.005  # largest ratio of times that count as equal
CLOSE = 1.05  # largest ratio of times that are too close to call, if there are no intervals


@dataclass(frozen=True)
class Recommendation:
    """The schedule to use, the schedules too close to call, and the reason.

    `answer`: the first two as a sentence. `reason`: the answer and an explanation.
    """

    schedule: str
    reason: str
    close_to: tuple[str, ...] = ()
    answer: str = ""

    def __repr__(self) -> str:
        close = f", {len(self.close_to)} too close to call" if self.close_to else ""
        return f"<Recommendation {self.schedule}{close}>"


def recommend(rows: Sequence[Row], unvalidated: str = "") -> Recommendation:
    """Recommends the fastest schedule and compares it with the next one that is clearly slower.

    If several schedules take the same time, to three digits, the one that sends the fewest bytes is
    recommended, then the one that needs the least memory. A schedule is too close to call if the
    interval of the ratio of both times contains 1, where the hardware constants vary for both
    together. `unvalidated` is added to the answer if there are several schedules.
    """
    if not any(row.makespan_s for row in rows):
        names = tuple(row.schedule for row in rows[1:])
        return Recommendation(rows[0].schedule, why(rows), names, why(rows))
    best, *others = sorted(rows, key=lambda row: row.order)
    close = [row for row in others if _is_close(row, best)]
    slower = [row for row in others if row not in close]
    ties = [row for row in close if row.order[0] == best.order[0]]
    answer = f"Use {best.schedule}: {seconds(best.makespan_s)}.{_tie(best, ties)}"
    if names := tuple(row.schedule for row in close if row not in ties):
        answer += f" Too close to call: {', '.join(names)}."
    if unvalidated and others:
        answer += f" {unvalidated}"
    reason = f"{answer} {why([best, *slower[:1]])}" if slower or not others else answer
    return Recommendation(best.schedule, reason, tuple(row.schedule for row in close), answer)


def _tie(best: Row, ties: Sequence[Row]) -> str:
    """Names the schedules that take the same time, and the reason to prefer `best`."""
    if not ties:
        return ""
    cause = ""
    if any(row.max_bytes_sent > best.max_bytes_sent for row in ties):
        cause = f"; {best.schedule} sends the fewest bytes"
    elif any(row.peak_bytes > best.peak_bytes for row in ties):
        cause = f"; {best.schedule} needs the least memory"
    return f" Tied with {', '.join(row.schedule for row in ties)}{cause}."


def _is_close(row: Row, best: Row) -> bool:
    if row.ratio_interval is None or best.interval_s is None:
        return row.makespan_s <= CLOSE * best.makespan_s
    return row.ratio_interval[0] <= 1


def why(rows: Sequence[Row]) -> str:
    """Returns one sentence that explains why the slowest schedule takes longer than the fastest."""
    slow, fast = max(rows, key=lambda r: r.makespan_s), min(rows, key=lambda r: r.makespan_s)
    if not fast.makespan_s:
        return "The mask allows no query-key pair: there is nothing to compute."
    ratio = slow.makespan_s / fast.makespan_s
    idle = f"ranks are idle {slow.idle_fraction:.0%} of the time"
    if ratio < SAME:
        claim = f"{fast.schedule} takes" if len(rows) == 1 else "All schedules take the same time,"
        time = seconds(fast.makespan_s)
        if fast.bound_ratio is not None:
            time = f"{times(fast.bound_ratio)} the lower bound of {seconds(fast.bound_s)}"
        elif fast.compute_bound_ratio is not None:
            bound = seconds(fast.compute_bound_s)
            time = f"{times(fast.compute_bound_ratio)} the bound of compute and memory, {bound}"
        return f"{claim} {time}, and {idle}."
    claim = f"{slow.schedule} takes {times(ratio)} as long as {fast.schedule}"
    claim += ", too close to call" if _is_close(slow, fast) else ""
    waits = slow.exposed_comm_s - fast.exposed_comm_s
    if waits > 0.5 * (slow.makespan_s - fast.makespan_s):
        return (
            f"{claim}: its ranks wait up to {seconds(slow.exposed_comm_s)} for transfers"
            f" ({seconds(fast.exposed_comm_s)} in {fast.schedule})."
        )
    if slow.busiest.share > 1.1 * fast.busiest.share:
        return (
            f"{claim}: rank {slow.busiest.rank} computes {times(slow.busiest.share)} the average"
            f" work, rank {slow.lightest.rank} only {times(slow.lightest.share)}, and {idle}; in"
            f" {fast.schedule} the busiest rank computes {times(fast.busiest.share)} the average."
        )
    if slow.imbalance > 1.1 * fast.imbalance:
        return (
            f"{claim}: the busiest ranks of its rounds compute {times(slow.imbalance)} the average"
            f" work ({times(fast.imbalance)} in {fast.schedule}), and {idle}."
        )
    slow_busy, fast_busy = (r.makespan_s * (1 - r.idle_fraction) for r in (slow, fast))
    if slow_busy > 1.1 * fast_busy:
        return (
            f"{claim}: its kernels and merges take {times(slow_busy / fast_busy)} as long for the"
            f" same pairs, {seconds(slow_busy)} on a rank rather than {seconds(fast_busy)}."
        )
    if slow.idle_fraction > fast.idle_fraction:
        return f"{claim}: {idle} ({fast.idle_fraction:.0%} in {fast.schedule})."
    return f"{claim}."
