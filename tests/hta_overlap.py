"""HolisticTraceAnalysis reads our traces and counts the overlap that the prediction says.

    make test-hta

Not a part of `make test`: the package and what it needs live in an environment of their own.
"""

import sys
import tempfile

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

from rank_traces import save_ranks
from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.timeline import spans

SCALE = 1000.0  # nanoseconds as microseconds
NEAR = 0.1  # of a percent, from rounding to whole microseconds
CASES = [
    ("ring", {}),
    ("allgather", {}),
    ("striped", {"overlap": False}),
    ("usp", {}),
    ("ring", {"links": {(1, 2): 0.02}}),
]


def joined(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times as disjoint intervals."""
    parts = list[tuple[float, float]]()
    for start, end in sorted(intervals):
        if parts and start <= parts[-1][1]:
            parts[-1] = parts[-1][0], max(parts[-1][1], end)
        else:
            parts.append((start, end))
    return parts


def overlap(prediction: Prediction, rank: int) -> float:
    """The part of a rank's transfer time, in percent, in which it also computes."""
    assert prediction.timeline is not None
    assert prediction.timeline.rows is not None
    own = [s for s in spans(prediction.timeline) if s.rank == rank]
    work = joined([(s.start, s.end) for s in own if s.stream in ("compute", "merge")])
    wires = []
    for rows in prediction.timeline.rows:
        if rows.kind == "message":
            ends = zip(
                rows.node.src, rows.node.dst, rows.start, rows.end, rows.arrival, strict=True
            )
            for src, dst, start, end, arrival in ends:
                wires += [(start, end)] if src == rank else []
                wires += [(arrival - (end - start), arrival)] if dst == rank else []
    wire = joined(wires)
    both = sum(max(0.0, min(b, d) - max(a, c)) for a, b in wire for c, d in work)
    return 100 * both / sum(b - a for a, b in wire)


def main() -> int:
    """Compare every rank of every case; 1 if one differs."""
    wrong = 0
    for name, under in CASES:
        one = plan(name, Workload(seq=2**15, heads=16, mask=Full()), 4)
        prediction = simulate(one, "a100-nvlink", record=True, **under)
        with tempfile.TemporaryDirectory() as folder:
            save_ranks(prediction, folder, scale=SCALE)
            table = TraceAnalysis(trace_dir=folder).get_comm_comp_overlap(visualize=False)
        for rank, theirs in zip(table["rank"], table["comp_comm_overlap_pctg"], strict=True):
            ours = overlap(prediction, int(rank))
            good = abs(ours - theirs) <= NEAR
            wrong += not good
            said = "ok" if good else "WRONG"
            print(f"{name:10} rank {rank}: {ours:7.3f}% ours, {theirs:7.3f}% HTA  {said}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
