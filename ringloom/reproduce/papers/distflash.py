"""DistFlashAttn: grid, idle shares and traffic from our plans, times from the training model.

The training model has two constants, fitted to the one-node rows:

attention  throughput of attention kernels, relative to the hardware preset
matrix     share of the peak that other matrix products reach

All other constants are the preset's, the paper's (100 Gb/s per GPU between nodes) or assumed:
partial results travel in 16 bit, as inputs do; transfers reach 92% of a port's rate, as on faster
ports; kernels continue from earlier statistics, so one kernel merges the results.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.csv_rows import records
from ringloom.planner.ir import TENSORS, Pass, Plan
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce import DATA
from ringloom.reproduce.fitting import least_squares
from ringloom.reproduce.formulas.counts import cells_speedup, measure_idle, sent_blocks
from ringloom.reproduce.models import baselines
from ringloom.reproduce.models.baselines import Shape
from ringloom.reproduce.models.training import (
    Setting,
    attention_seconds,
    communication_overhead,
    iteration,
    longest_sequence,
    waste,
)
from ringloom.reproduce.models.transformers import Model
from ringloom.reproduce.tables import Line, Table, not_compared, table
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.views.grids import cells

Floats = NDArray[np.float64]
PORT = 0.92 * 12.5e9  # bytes/s of a GPU between nodes
LLAMA = {
    "7b": Model("LLaMA-7B", 4096, 11008, 32, 32),
    "gqa": Model("LLaMA-GQA", 4096, 11008, 32, 32, kv_heads=8),
    "33h": Model("LLaMA-33H", 4224, 11008, 32, 33),
}
SYSTEMS = {"Megatron-LM": "megatron-v3", "DistFlashAttn": "balanced"}
BLOCK = 16384  # tokens per rank where pairs are counted, so that (c + 1)/c is close to 1
GRID = (  # DistFlashAttn, figure 1, workers counted from 1: "query,key" per step
    "11 81 71 61 --",
    "22 21 82 72 --",
    "33 32 31 83 --",
    "44 43 42 41 --",
    "55 54 53 52 51",
    "66 65 64 63 62",
    "77 76 75 74 73",
    "88 87 86 85 84",
)
K = 1024
MISSING = (
    ("table 3, LLaMA-16H to 2H", "its lengths are not in our copy of the text"),
    ("table 6", "its numbers are not in our copy of the text"),
    ("figures 2, 4 and 5", "curves; the tables above have the points that the text states"),
)
BOTH_PASSES: tuple[Pass, ...] = "forward", "backward"


def tables() -> list[Table]:
    """Returns the tables and claims of the paper."""
    return [
        *(schedule(), idle_shares(), speedups(), traffic()),
        *(overlap(), gains(), times(), others(), contexts()),
        not_compared("DistFlashAttn", MISSING),
    ]


def _trimmed_plan(name: str, ranks: int, pass_: Pass = "forward", block: int = BLOCK) -> Plan:
    """Returns a plan in which workers fetch only the blocks that they use, as the paper counts."""
    work = Workload(seq=ranks * block, heads=1, head_dim=128)
    return plan(name, work, ranks, pass_=pass_, trim="blocks")


def grid(plan: Plan) -> list[list[str]]:
    """Returns owners of queries and keys, counted from 1, per rank and round; "--" for idle."""
    rows = [["--"] * plan.rounds for _ in range(plan.ranks)]
    q, kv = plan.partition.q.owners, plan.partition.kv.owners
    for cell in cells(plan):
        rows[cell.rank][cell.round] = f"{q[cell.q[0]] + 1}{kv[cell.kv[0]] + 1}"
    return rows


@table(
    "DistFlashAttn: schedule of 8 workers",
    "for each worker, the number of its 5 cells that are the same in our plan",
)
def schedule() -> Iterator[Line]:
    """Yields the comparison with the printed grid of eight workers, and the number of steps."""
    ours = grid(_trimmed_plan("balanced", 8))
    for n, (printed, planned) in enumerate(zip(GRID, ours, strict=True), 1):
        equal = sum(a == b for a, b in zip(printed.split(), planned, strict=True))
        yield Line(f"worker {n}: {printed}", 5, equal, 0)
    for name, rounds in (("ring", 8), ("balanced", 5)):
        yield Line(f"steps, {name}", rounds, _trimmed_plan(name, 8).rounds, 0)


@table(
    "DistFlashAttn: idle shares",
    "the paper prints idle cells / P^2; cells / schedule: idle cells / (P x rounds); areas: a"
    " diagonal block counts half",
)
def idle_shares() -> Iterator[Line]:
    """Yields idle fractions by three ways of counting, for even and odd P."""
    for ranks in (7, 8, 16):
        ring, balanced = (measure_idle(_trimmed_plan(name, ranks)) for name in ("ring", "balanced"))
        even = ranks % 2 == 0
        printed = (ranks**2 - ranks) / (2 * ranks**2)
        for label, published, ours in (
            ("ring, cells / P^2", printed, ring.cells_of_square),
            ("balanced, cells / P^2", even / (2 * ranks), balanced.cells_of_square),
            ("balanced, cells / schedule", None, balanced.cells_of_schedule),
            ("ring, areas", None, ring.areas),
            ("balanced, areas", None, balanced.areas),
        ):
            yield Line(f"P {ranks}: {label}", published, ours, 3)


@table(
    "DistFlashAttn: speedup of 8 workers",
    "cells and areas are counted in plans; measured: the paper's largest speedup, compared with our"
    " prediction for attention alone, both passes of LLaMA-7B; 32k tokens per GPU are assumed",
)
def speedups() -> Iterator[Line]:
    """Yields speedups of 8 workers over one: 36 cells in 8 or 5 steps, by area, and measured."""
    for name, published, measured in (("ring", 4.5, 4.5), ("balanced", 7.2, 7.5)):
        plan = _trimmed_plan(name, 8)
        yield Line(f"{name}, cells", published, cells_speedup(plan), 1)
        yield Line(f"{name}, areas", None, 8 * (1 - measure_idle(plan).areas))
        yield Line(f"{name}, measured", measured, attention_speedup(name, 8, 32 * K), 1)


def attention_speedup(name: str, ranks: int, block: int) -> float:
    """Returns the predicted time of attention on one GPU over that on several, both passes."""
    one_gpu, several = (
        sum(
            attention_seconds(setting(schedule, LLAMA["7b"], count, ranks * block), pass_)
            for pass_ in BOTH_PASSES
        )
        for schedule, count in (("ring", 1), (name, ranks))
    )
    return one_gpu / several


def volume(name: str, pass_: Pass) -> float:
    """Returns the vectors that a rank of 8 sends on average, in nd (P - 1)/P."""
    ranks = 8
    blocks = sent_blocks(_trimmed_plan(name, ranks, pass_, 64)).items()
    vectors = sum(sent * len(TENSORS[tensor].vectors) for tensor, (sent, _) in blocks)
    return float(vectors / (ranks - 1))


@table(
    "DistFlashAttn: traffic",
    "elements per device and layer in nd, without the hop factor (P-1)/P; counted in plans of 8"
    " ranks, without log-sum-exps",
)
def traffic() -> Iterator[Line]:
    """Yields Megatron's 10nd and 14nd by formula, and nd forward, 2nd backward from plans."""
    shape = Shape(8, 1, 32, 128, 65536, 4096, 1)
    megatron = baselines.traffic("megatron-v3", shape).total / shape.tensor
    checkpointed = baselines.checkpointed("megatron-v3", shape) / shape.tensor
    yield Line("Megatron v3", 10, megatron, arithmetic=True)
    yield Line("Megatron v3, checkpointed", 14, checkpointed, arithmetic=True)
    fetches = "allgather:layout=contiguous"
    for name, schedule, note in (
        ("causal fetches", fetches, ""),
        ("balanced", "balanced", "a helper returns only dQ, not dK and dV"),
    ):
        forward, backward = (volume(schedule, pass_) for pass_ in BOTH_PASSES)
        yield Line(f"{name}, forward", 1, forward)
        yield Line(f"{name}, backward", 2, backward, 2, note)
        yield Line(f"{name}, total", 3, forward + backward, 2, note)
    yield Line("Megatron over ours", 4.7, checkpointed / (3 * volume(fetches, "forward")), 1)


@table(
    "DistFlashAttn: overhead of communication",
    "LLaMA-7B on 2 x 8 A100; no constant was fitted to these rows, but they were known when 16-bit"
    " partial results were assumed",
)
def overlap() -> Iterator[Line]:
    """Yields the communication overhead of an iteration on two nodes, with and without overlap."""
    unknown = 'printed only as "below 100%"'
    for total, published_serial, note, published_overlapped in (
        (128, 105, "", 44),
        (256, None, unknown, 8),
        (512, None, unknown, 1),
    ):
        run = setting("balanced", LLAMA["7b"], 16, total * K)
        serial = 100 * communication_overhead(replace(run, overlap=False))
        overlapped = 100 * communication_overhead(run)
        yield Line(f"{total}k, no overlap (%)", published_serial, serial, 0, note, points=True)
        yield Line(f"{total}k, overlap (%)", published_overlapped, overlapped, 0, points=True)


@table("DistFlashAttn: gains")
def gains() -> Iterator[Line]:
    """Yields iteration times over ours: without overlap, with layer checkpoints, with Ulysses."""
    run = setting("balanced", LLAMA["7b"], 16, 128 * K)
    note = "2.05/1.44 = 1.42 by the paper's own overheads at 128k"
    gain = iteration(replace(run, overlap=False)) / iteration(run)
    yield Line("overlap, 128k on 16 GPUs", 1.32, gain, 2, note)
    for block, published in ((8, 1.16), (16, 1.24), (32, 1.31)):
        run = setting("balanced", LLAMA["7b"], 8, 8 * block * K)
        per_layer = iteration(replace(run, rematerialise=False))
        yield Line(f"checkpoints, {block}k per GPU", published, per_layer / iteration(run))
    ulysses, ours = (
        iteration(setting(system, LLAMA["33h"], 16, 512 * K))
        for system in ("ulysses-system", "balanced")
    )
    note = "the length, 512k on 16 GPUs, is assumed"
    yield Line("over Ulysses, 33 heads", 1.88, ulysses / ours, 2, note)


def times() -> Table:
    """Returns the 36 published iteration times and our predictions."""
    lines = [Line(run.name, run.seconds, seconds(run)) for run in runs()]
    attention, matrix = constants()
    note = (
        f"two constants, attention {attention:.3g} x the preset and matrix products {matrix:.3g} of"
        f" the peak, are fitted to the {len(one_node(runs()))} one-node rows; rows of 16 GPUs are"
        " not in the fit, but were known when merging in one kernel was assumed"
    )
    return Table("DistFlashAttn: seconds per iteration", lines, note)


@table("DistFlashAttn: other systems, seconds per iteration")
def others() -> Iterator[Line]:
    """Yields the waste of head padding, and iteration times of Ulysses and RSA by formula."""
    padding = 100 * waste(33, 16)
    label = "33 heads on 16 devices, waste (%)"
    yield Line(label, 45.5, padding, 1, arithmetic=True, points=True)
    for name, system, ranks, seq, published in (
        ("Ulysses", "ulysses-system", 16, 256, 37.53),
        ("Ulysses", "ulysses-system", 16, 512, 134.09),
        ("RSA", "rsa", 8, 32, 14.10),
        ("DistFlashAttn", "balanced", 8, 32, 2.50),
        ("RSA", "rsa", 16, 64, 30.49),
        ("DistFlashAttn", "balanced", 16, 64, 6.85),
    ):
        ours = iteration(setting(system, LLAMA["7b"], ranks, seq * K))
        yield Line(f"{name} {ranks} GPUs {seq}k", published, ours)


@table(
    "DistFlashAttn: longest context of RSA (k tokens)",
    "limited by the memory of LLaMA-7B: weights, gradients and Adam moments sharded over all GPUs,"
    " a 16-bit checkpoint per layer; RSA keeps the scores of a layer and their gradients",
)
def contexts() -> Iterator[Line]:
    """Yields the longest sequences that fit in memory with RSA."""
    for ranks, published in ((8, 32), (16, 64)):
        ours = longest_sequence(setting("rsa", LLAMA["7b"], ranks, K)) / K
        yield Line(f"RSA on {ranks} A100", published, ours, 0)


# ---- iteration times


class Run(NamedTuple):
    """A published iteration."""

    system: str
    ranks: int
    seq: int
    model: str
    seconds: float

    @property
    def name(self) -> str:
        """Returns a short name of the run."""
        return f"{self.system} {self.ranks} GPUs {self.seq // 1024}k {self.model}"


def runs() -> list[Run]:
    """Returns the 36 published iterations."""
    return [
        Run(
            record["system"],
            int(record["nodes"]) * int(record["gpus_per_node"]),
            int(record["seq_total_k"]) * 1024,
            model,
            float(record[f"llama_{model}_s"]),
        )
        for record in records(DATA / "dist_iteration_times.csv")
        for model in LLAMA
    ]


def constants() -> tuple[float, float]:
    """Returns the constants (attention, matrix) that ship with ringloom."""
    content = tomllib.loads((DATA / "distflash_time.toml").read_text(encoding="utf-8"))
    return content["attention"]["value"], content["matrix"]["value"]


def cluster(attention: float) -> Hardware:
    """Returns two nodes of eight A100s with 100 Gb/s per GPU between them."""
    base = hardware("a100-nvlink")
    kernels = {f"attention.{pass_}": base[f"attention.{pass_}"] for pass_ in BOTH_PASSES}
    scaled = {key: min(1.0, value * attention) for key, value in kernels.items()}
    fixed = {"inter.bandwidth": PORT, "attention.merge": 1.0}
    return base.changed(scaled | fixed, "DistFlashAttn's cluster")


def setting(
    system: str, model: Model, ranks: int, seq: int, fitted: tuple[float, float] | None = None
) -> Setting:
    """Returns the training setup of a system; only `balanced` has the paper's checkpoints."""
    attention, matrix = fitted or constants()
    on, balanced = cluster(attention), system == "balanced"
    return Setting(model, on, ranks, seq, system, matrix, rematerialise=balanced, partial_bytes=2)


def seconds(run: Run, fitted: tuple[float, float] | None = None) -> float:
    """Predicts the seconds of a published iteration."""
    system, model = SYSTEMS[run.system], LLAMA[run.model]
    return iteration(setting(system, model, run.ranks, run.seq, fitted))


def one_node(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs on one node, to which the two constants are fitted."""
    return [run for run in runs if run.ranks == 8]


def refit() -> Floats:
    """Fits (attention, matrix) to the one-node rows, by least squared relative error."""
    fitted_runs = one_node(runs())
    measured = np.array([run.seconds for run in fitted_runs])

    def model(values: Floats, rows: NDArray[np.intp]) -> Floats:
        fitted = float(values[0]), float(values[1])
        return np.array([seconds(fitted_runs[i], fitted) for i in rows])

    return least_squares(model, measured, np.arange(len(measured)), np.array([1.0, 0.5]))
