"""Published charts: distributed forward passes on H100 and H800, and single kernels over length."""

from collections.abc import Callable
from itertools import combinations
from math import log
from typing import Literal, cast

from planner.analysis.tiles import tiles
from planner.ir import Pass
from planner.planning import plan
from planner.workload import Workload
from ringloom.csv_rows import Record
from ringloom.reproduce.published import records
from ringloom.reproduce.tables import Line, Table, pair
from simulator.hardware import hardware
from simulator.prediction import simulate

Passes = Pass | Literal["both"]
PER_GPU = 8192  # tokens
TOKENS, HIDDEN = 16384, 2048  # of a kernel chart: batch x length, heads x head_dim
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
FLOP = {
    "forward": 4,
    "backward": 10,
}  # per (query, key) pair and element of a head, as charts count
NODE = {"allgather": "allgather:node=8"}  # as collectives do: each block enters a node once
APART = 1.1  # strategies that differ by more must come out in the chart's order


def tables() -> list[Table]:
    """The H100 chart and its order, the H800 shares, the kernel curves."""
    chart = h100()
    return [chart, order(chart), h800(), curves(), kernels()]


def seconds(strategy: str, on: str, work: Workload, ranks: int, pass_: Passes) -> float:
    """Predicted seconds of the slowest rank."""
    return simulate(plan(strategy, work, ranks, pass_=pass_), hardware(on)).makespan


def flop(work: Workload, pass_: Passes) -> float:
    """Matrix flop of a workload's allowed pairs, all ranks together, as charts count them."""
    pairs = tiles(plan("ring", work, 1)).total_pairs()
    passes = ("forward", "backward") if pass_ == "both" else (pass_,)
    return float(sum(FLOP[p] for p in passes) * work.head_dim * work.batch * pairs)


def h100() -> Table:
    """TF/s per GPU of the slowest rank: 64:8 heads of 128, causal forward, 8k tokens per GPU."""
    lines = []
    for record in records("charts_h100.csv"):
        strategy, ranks = record["strategy"], int(record["gpus"])
        work = Workload(seq=PER_GPU * ranks, heads=64, kv_heads=8, head_dim=128)
        took = seconds(NODE.get(strategy, strategy), "h100", work, ranks, "forward")
        ours = flop(work, "forward") / took / ranks / 1e12
        lines.append(Line(f"{strategy} {ranks} GPUs", float(record["tflops"]), ours, 0))
    note = "TF/s per GPU, read off the chart; no constant differs between strategies"
    return Table("H100 chart: causal forward, 64:8 heads, 8k tokens per GPU", tuple(lines), note)


def order(chart: Table) -> Table:
    """Of pairs that differ by more than 10% at as many GPUs: how many come out in that order."""
    lines = []
    for gpus in dict.fromkeys(line.what.partition(" ")[2] for line in chart.lines):
        here = [pair(line) for line in chart.lines if line.what.endswith(f" {gpus}")]
        apart = [(a, b) for a, b in combinations(here, 2) if not 1 / APART <= a[0] / b[0] <= APART]
        right = sum((a[0] > b[0]) == (a[1] > b[1]) and a[1] != b[1] for a, b in apart)
        lines.append(Line(f"pairs in order, {gpus}", len(apart), right, 0))
    return Table("H100 chart: order of strategies more than 10% apart", tuple(lines))


def h800() -> Table:
    """Share of a single GPU's rate, 32:8 heads of 128, 8 GPUs, 8k tokens per GPU."""
    work, lines = Workload(seq=8 * PER_GPU, heads=32, kv_heads=8, head_dim=128), []
    for record in records("charts_h800.csv"):
        pass_ = cast(Passes, record["pass"])
        ideal = seconds("ring", "h800", work, 1, pass_) / 8
        ours = 100 * ideal / seconds(record["strategy"], "h800", work, 8, pass_)
        what = "forward" if pass_ == "forward" else "forward + backward"
        published = float(record["share"])
        points = f"{ours - published:+.1f} points"
        lines.append(Line(f"{record['strategy']}, {what} (%)", published, ours, 1, points))
    note = "share of one GPU's flash attention of the whole sequence, divided by 8"
    return Table("ring-flash-attention on 8 x H800", tuple(lines), note)


def residuals() -> list[tuple[str, str, str, float]]:
    """Hardware, source, row and log(predicted / published time) of every row of whole schedules."""
    charts = {"h100": ("MagiAttention", h100()), "h800": ("ring-flash-attention", h800())}
    return [
        (chip, source, line.what, log(published / ours))
        for chip, (source, table) in charts.items()
        for line, (published, ours) in ((line, pair(line)) for line in table.lines)
    ]


def curves() -> Table:
    """The two-parameter curve Tmax S / (S + S_half) beside the charts."""
    return _charted("Kernel charts: TF(S) = Tmax S / (S + S_half)", _curve)


def _charted(title: str, ours: Callable[[Record, int], float]) -> Table:
    """TF/s of every kernel at every length, as published and as some function says."""
    lines = []
    for record in records("charts_kernels.csv"):
        name = f"{record['kernel']} {record['pass']} d{record['head_dim']} {record['mask']}"
        for length in LENGTHS:
            published = float(record[str(length)])
            lines.append(Line(f"{name} {length}", published, ours(record, length), 0))
    return Table(title, tuple(lines))


def _curve(record: Record, length: int) -> float:
    return float(record["tmax"]) * length / (length + float(record["s_half"]))


def kernels() -> Table:
    """Price the same kernel calls on one rank by the simulator's costs."""
    return _charted("Kernel charts: TF/s by the simulator's costs", _priced)


def _priced(record: Record, length: int) -> float:
    head_dim, pass_ = int(record["head_dim"]), cast(Passes, record["pass"])
    work = Workload(
        seq=length,
        heads=HIDDEN // head_dim,
        head_dim=head_dim,
        batch=TOKENS // length,
        mask=record["mask"],
    )
    return flop(work, pass_) / seconds("ring", record["hardware"], work, 1, pass_) / 1e12
