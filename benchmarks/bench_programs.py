"""Emitted programs beside code that others wrote, on one machine in one run.

    python benchmarks/bench_programs.py [--quick] [--by-hand FOLDER] [--haoliuhl CHECKOUT] [--json]

torch   two processes, each pinned to a core, zigzag, against PyTorch's balanced ring template by
        all-gather, which is its default, and by all-to-all; dense attention on both cores
jax     eight virtual devices, against the public ring of haoliuhl/ringattention, from a checkout
        whose folder is given; flax and einops must be there
by hand FOLDER/torch_zigzag.py and jax_zigzag.py, written for any ranks and heads, beside both
busy    processor time of each of four ranks: the slowest one over the mean
emit    how long programs for 8 and for 1,024 ranks take to write, their lines and bytes

Times and ratios are medians of rounds in which every rival runs once, on the wall and of the
processors; a busy machine stretches the first. A full run takes twenty minutes and exits with 1
when a ratio on the wall misses its limit, a quick one only shows what it saw.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rounds import Times, in_rounds, median, ratio

from in_memory.distributed import installed
from in_memory.threads import on_threads
from ringloom.codegen import emit
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.emitted import load
from ringloom.runtimes.torch.rank import shards

HEADS, HEAD_DIM = 8, 64
PUBLIC_LIMIT, BUSY_LIMIT = 0.45, 1.1
BY_HAND_LIMITS = {"torch": (1.05, 1.05), "jax": (1.0, 0.9)}  # forward, forward + backward
EMIT_SECONDS, EMIT_BYTES = 10.0, 1.05
FEW, MANY = 8, 1024  # ranks


@dataclass(frozen=True)
class Row:
    """One comparison; `limit` is what `ratio` may be at most, None where nothing is asked."""

    what: str
    ratio: float
    limit: float | None
    cpu_ratio: float | None
    said: str

    @property
    def misses(self) -> bool:
        return self.limit is not None and self.ratio > self.limit


def work(seq: int) -> Workload:
    """The workload of every race: causal, one batch, float32."""
    return Workload(seq=seq, heads=HEADS, head_dim=HEAD_DIM, dtype="float32")


def source(schedule: str, seq: int, ranks: int, target: str) -> str:
    """An emitted program with both passes."""
    return emit(plan(schedule, work(seq), ranks, pass_="both"), target)


def words(seq: int, backward: bool) -> str:
    """Name the program and its setting."""
    return f"{seq} tokens {'forward + backward' if backward else 'forward'}"


def millis(times: dict[str, list[Times]]) -> str:
    """name wall/processors in milliseconds, one after the other."""
    known = {name: median(pairs) for name, pairs in times.items()}
    return ", ".join(f"{n} {a * 1e3:.0f}/{b * 1e3:.0f} ms" for n, (a, b) in known.items())


def by_hand(folder: Path | None, target: str) -> str:
    """The zigzag program that somebody wrote, or nothing."""
    return (folder / f"{target}_zigzag.py").read_text(encoding="utf-8") if folder else ""


def torch_rows(seqs: list[int], rounds: int, folder: Path | None) -> Iterator[Row]:
    """Emitted torch over one by hand, PyTorch's template, and dense attention with two threads."""
    from pinned_ranks import BY_HAND, DENSE, OURS, TEMPLATES, PinnedRanks, cores

    if not cores():
        told = "torch was not compared: there are no two cores to pin processes to"
        print(told, file=sys.stderr)
        return
    written = by_hand(folder, "torch")
    for seq in seqs:
        sources = {OURS: source("zigzag", seq, 2, "torch")} | (
            {BY_HAND: written} if written else {}
        )
        with PinnedRanks(sources, seq) as ranks:
            for backward in (False, True):
                run = partial(ranks.time, backward=backward)
                many = rounds * (max(seqs) // seq) ** 2  # as long for short sequences as for long
                times = in_rounds(run, (*sources, *TEMPLATES, DENSE), many)
                yield from _compared(times, backward, words(seq, backward))


def _compared(times: dict[str, list[Times]], backward: bool, what: str) -> Iterator[Row]:
    """Ours over each of the others."""
    from pinned_ranks import BY_HAND, DENSE, OURS, TEMPLATES

    gather, all_to_all = TEMPLATES
    limits = {gather: 0.95, all_to_all: 1.0, DENSE: 1.05}
    limits[BY_HAND] = BY_HAND_LIMITS["torch"][backward]
    for name in times.keys() - {OURS}:
        wall, cpu = ratio(times[OURS], times[name])
        said = millis({n: times[n] for n in (OURS, name)})
        yield Row(f"torch / {name}, {what}", wall, limits[name], cpu, said)


def jax_rows(seq: int, rounds: int, folder: Path | None, checkout: Path | None) -> Iterator[Row]:
    """Emitted JAX over one by hand and the public ring, and how long they take to compile."""
    from virtual_devices import COMPILED, DEVICES, PEER, race

    sources = {name: source(name, seq, DEVICES, "jax") for name in ("ring", "zigzag")}
    if folder:
        sources["by hand"] = by_hand(folder, "jax")
    times = race(sources, seq, rounds, checkout)
    for backward in (False, True):
        limits = {"by hand": BY_HAND_LIMITS["jax"][backward], PEER: PUBLIC_LIMIT}
        for name, limit in limits.items():
            if (name, backward) not in times:
                continue
            wall, cpu = ratio(times["zigzag", backward], times[name, backward])
            said = millis({n: times[n, backward] for n in ("zigzag", name)})
            yield Row(f"jax zigzag / {name}, {words(seq, backward)}", wall, limit, cpu, said)
            ours, theirs = (times[COMPILED + n, backward] for n in ("zigzag", name))
            said = millis({"zigzag": ours, name: theirs})
            what = f"compiling jax zigzag / {name}, {words(seq, backward)}"
            yield Row(what, *ratio(ours, theirs)[:1], None, None, said)


def busy(schedule: str, seq: int, rounds: int, ranks: int = 4) -> list[float]:
    """Seconds of processor time of each rank in a forward pass, waits left out: the medians.

    All ranks take turns on one core: two are rarely as fast as each other where others use them.
    """
    from pinned_ranks import cores

    program, core = installed(load(source(schedule, seq, ranks, "torch"))), cores()[:1]
    arrays, turn = list(draw(work(seq), 0)[:3]), threading.Barrier(ranks)

    def body(group: Any) -> float:
        if core:
            os.sched_setaffinity(0, core)  # of this thread
        inputs = shards(program, group.rank(), arrays)
        taken = []
        for _ in range(rounds + 1):
            turn.wait()
            began = time.thread_time()
            program.attention(*inputs, group=group)
            taken.append(time.thread_time() - began)
        return statistics.median(taken[1:])  # the first call sets things up

    return on_threads(ranks, body, 300.0)[0]


def busy_rows(seqs: list[int], rounds: int) -> Iterator[Row]:
    """The slowest rank over the mean: near 1 for zigzag, far above it for a contiguous ring."""
    for seq in seqs:
        for schedule, limit in (("zigzag", BUSY_LIMIT), ("ring", None)):
            ranks = busy(schedule, seq, 4 * rounds)
            said = "ranks " + ", ".join(f"{t * 1e3:.0f}" for t in ranks) + " ms"
            ratio = max(ranks) / statistics.mean(ranks)
            yield Row(f"busy {schedule}, {seq} tokens: slowest / mean", ratio, limit, None, said)


def emit_rows(many: int) -> Iterator[Row]:
    """Seconds to write a program, and how it grows from few ranks to many."""
    for target in ("torch", "jax"):
        texts, times = dict[int, str](), dict[int, float]()
        for ranks in (FEW, many):
            pair = plan("zigzag", work(2**20), ranks, pass_="both")
            began = time.process_time()
            texts[ranks] = emit(pair, target)
            times[ranks] = time.process_time() - began
        lines = {ranks: text.count("\n") for ranks, text in texts.items()}
        said = ", ".join(f"{times[r]:.2f} s, {lines[r]} lines for {r} ranks" for r in (FEW, many))
        yield Row(f"emit {target}: seconds", max(times.values()), EMIT_SECONDS, None, said)
        yield Row(f"emit {target}: lines, many / few", lines[many] / lines[FEW], 1.0, None, "")
        growth = len(texts[many]) / len(texts[FEW])
        yield Row(f"emit {target}: bytes, many / few", growth, EMIT_BYTES, None, "")


def table(rows: list[Row]) -> Table:
    """One line per comparison."""
    shown = Table(
        "what", "ratio", "limit", "processors", "median times (wall/processors)", box=None
    )
    for row in rows:
        limit = "" if row.limit is None else f"{row.limit:g}"
        cpu = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.3f}"
        shown.add_row(row.what, f"{row.ratio:.3f}", limit, cpu, row.said)
    return shown


def main() -> int:
    """Print a table, or one JSON object; 1 if a full run misses a limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter sequences, no verdict")
    parser.add_argument("--by-hand", type=Path, help="a folder with torch_zigzag.py, jax_zigzag.py")
    parser.add_argument("--haoliuhl", type=Path, help="a checkout of haoliuhl/ringattention")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    rounds, seqs = (1, [512]) if options.quick else (31, [4096, 8192])
    many = 64 if options.quick else MANY
    rows = [*emit_rows(many), *busy_rows(seqs, 1 if options.quick else 5)]
    rows += torch_rows(seqs, rounds, options.by_hand)
    if rivals := options.by_hand or options.haoliuhl:
        length = 512 if options.quick else 8192
        rows += jax_rows(length, rounds, options.by_hand, options.haoliuhl)
    missed = [row for row in rows if row.misses]
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "missed": len(missed)}))
    else:
        Console().print(table(rows))
        if not rivals:
            print("jax was not compared: --by-hand and --haoliuhl say where others are")
        for row in [] if options.quick else missed:  # a short run is no verdict
            print(f"misses its limit: {row.what} is {row.ratio:.3f}, not {row.limit:g}")
    return int(bool(missed) and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
