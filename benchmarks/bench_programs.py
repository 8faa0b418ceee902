"""Emitted programs beside code that others wrote, on one machine in one run.

    python benchmarks/bench_programs.py [--quick] [--haoliuhl CHECKOUT] [--json]

torch   two processes, each pinned to a core, zigzag, against PyTorch's balanced ring template by
        all-gather, which is its default and counts, and by all-to-all; dense attention on both
        cores beside them
jax     eight virtual devices against the public ring of haoliuhl/ringattention, from a checkout
        whose folder is given; flax and einops must be there
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
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rounds import Times, in_rounds, median, ratio

from codegen import emit
from planner.planning import plan
from planner.workload import Workload
from runtimes.arrays import draw
from runtimes.torch_ranks import in_threads

HEADS, HEAD_DIM = 8, 64
TORCH_LIMIT, JAX_LIMIT, BUSY_LIMIT = 0.95, 0.45, 1.1
EMIT_SECONDS, EMIT_BYTES = 1.0, 1.05
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
    """What was run."""
    return f"{seq} tokens {'forward + backward' if backward else 'forward'}"


def millis(times: dict[str, list[Times]]) -> str:
    """name wall/processors in milliseconds, one after the other."""
    known = {name: median(found) for name, found in times.items()}
    return ", ".join(f"{n} {a * 1e3:.0f}/{b * 1e3:.0f} ms" for n, (a, b) in known.items())


def torch_rows(seqs: list[int], rounds: int) -> Iterator[Row]:
    """Emitted torch over PyTorch's template, and over dense attention with two threads."""
    from pinned_ranks import DENSE, OURS, TEMPLATES, PinnedRanks, cores

    if not cores():
        told = "torch was not compared: there are no two cores to pin processes to"
        print(told, file=sys.stderr)
        return
    for seq in seqs:
        with PinnedRanks(source("zigzag", seq, 2, "torch"), seq) as ranks:
            for backward in (False, True):
                run = partial(ranks.time, backward=backward)
                many = rounds * (max(seqs) // seq) ** 2  # as long for short sequences as for long
                found = in_rounds(run, (OURS, *TEMPLATES, DENSE), many)
                yield from _compared(found, words(seq, backward))


def _compared(found: dict[str, list[Times]], what: str) -> Iterator[Row]:
    """Ours over each of the others; what is asked is asked of the template as PyTorch sets it."""
    from pinned_ranks import DEFAULT, DENSE, OURS, TEMPLATES

    for name in (*TEMPLATES, DENSE):
        limit = TORCH_LIMIT if name == DEFAULT else None
        wall, cpu = ratio(found[OURS], found[name])
        said = millis({n: found[n] for n in (OURS, name)})
        yield Row(f"torch / {name}, {what}", wall, limit, cpu, said)


def jax_rows(checkout: Path, seq: int, rounds: int) -> Iterator[Row]:
    """Emitted JAX over the public ring: contiguous blocks as it has them, and balanced ones."""
    from virtual_devices import DEVICES, PEER, race

    sources = {name: source(name, seq, DEVICES, "jax") for name in ("ring", "zigzag")}
    found = race(sources, checkout, seq, rounds)
    for backward in (False, True):
        theirs = found[PEER, backward]
        for name in sources:
            ours = found[name, backward]
            said = millis({name: ours, PEER: theirs})
            what = f"jax {name} / {PEER}, {words(seq, backward)}"
            wall, cpu = ratio(ours, theirs)
            yield Row(what, wall, JAX_LIMIT, cpu, said)


def busy(schedule: str, seq: int, rounds: int, ranks: int = 4) -> list[float]:
    """Seconds of processor time of each rank in a forward pass, waits left out: the medians.

    All ranks take turns on one core: two are rarely as fast as each other where others use them.
    """
    from pinned_ranks import cores

    seconds, core = [0.0] * ranks, cores()[:1]

    def prepare(program: ModuleType) -> None:
        attention, turn = program.attention, threading.Barrier(ranks)

        def timed(*inputs: Any, group: Any) -> Any:
            if core:
                os.sched_setaffinity(0, core)  # of this thread
            attention(*inputs, group=group)  # the first call works out who does what
            taken = []
            for _ in range(rounds):
                turn.wait()
                began = time.thread_time()
                out = attention(*inputs, group=group)
                taken.append(time.thread_time() - began)
            seconds[group.rank()] = statistics.median(taken)
            return out

        program.attention = timed  # type: ignore[attr-defined]

    written = source(schedule, seq, ranks, "torch")
    in_threads(written, ranks, list(draw(work(seq), 0)[:3]), 300.0, prepare)
    return seconds


def busy_rows(seqs: list[int], rounds: int) -> Iterator[Row]:
    """The slowest rank over the mean: near 1 for zigzag, far above it for a contiguous ring."""
    for seq in seqs:
        for schedule, limit in (("zigzag", BUSY_LIMIT), ("ring", None)):
            ranks = busy(schedule, seq, 4 * rounds)
            said = "ranks " + ", ".join(f"{t * 1e3:.0f}" for t in ranks) + " ms"
            ratio = max(ranks) / statistics.mean(ranks)
            yield Row(f"busy {schedule}, {seq} tokens: slowest / mean", ratio, limit, None, said)


def emit_rows() -> Iterator[Row]:
    """Seconds to write a program, and how it grows from few ranks to many."""
    for target in ("torch", "jax"):
        texts, times = dict[int, str](), dict[int, float]()
        for ranks in (FEW, MANY):
            pair = plan("zigzag", work(2**20), ranks, pass_="both")
            began = time.process_time()
            texts[ranks] = emit(pair, target)
            times[ranks] = time.process_time() - began
        lines = {ranks: text.count("\n") for ranks, text in texts.items()}
        said = ", ".join(f"{times[r]:.2f} s, {lines[r]} lines for {r} ranks" for r in (FEW, MANY))
        yield Row(f"emit {target}: seconds", max(times.values()), EMIT_SECONDS, None, said)
        yield Row(f"emit {target}: lines, many / few", lines[MANY] / lines[FEW], 1.0, None, "")
        growth = len(texts[MANY]) / len(texts[FEW])
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
    parser.add_argument("--haoliuhl", type=Path, help="a checkout of haoliuhl/ringattention")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    rounds, seqs = (3, [2048]) if options.quick else (31, [4096, 8192])
    rows = [*emit_rows(), *busy_rows(seqs, 1 if options.quick else 5)]
    rows += torch_rows(seqs, rounds)
    if options.haoliuhl:
        rows += jax_rows(options.haoliuhl, 2048 if options.quick else 8192, rounds)
    missed = [row for row in rows if row.misses]
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "missed": len(missed)}))
    else:
        Console().print(table(rows))
        if not options.haoliuhl:
            print("jax was not compared: --haoliuhl CHECKOUT says where the public ring is")
        for row in [] if options.quick else missed:  # a short run is no verdict
            print(f"misses its limit: {row.what} is {row.ratio:.3f}, not {row.limit:g}")
    return int(bool(missed) and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
