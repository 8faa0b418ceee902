"""The plan that a search returns for every case of the corpus, beside the best row of compare.

    python benchmarks/search.py                  benchmarks/results/search.csv
    python benchmarks/search.py --file FILE      another file
    python benchmarks/search.py --tokens 8192    these tokens per rank only

A row is the recipe that was found, its predicted seconds, the bound that holds for it, the gap to
that bound, how many times faster it is than the row of benchmarks/results/baseline.csv, and the
processor seconds of the search. `bound` says what bounds it: compute, memory, link or latency, and
`class` why the plan is outside the class of the lower bound, where it is.

The file is written after each case, and its rows of the same sources are kept, as by baseline.py.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import baseline
from corpus import CASES, TOKENS, Case

import ringloom as rl
from ringloom.cli.output import progress

FILE = baseline.ROOT / "benchmarks" / "results" / "search.csv"
COLUMNS = (
    *("mask", "machine", "tokens_per_rank", "pass", "recipe", "seconds", "bound_s", "gap"),
    *("bound", "class", "gain", "processor_s", "tried", "pruned", "sources"),
)


def row_of(case: Case) -> baseline.Row:
    """The row of a case, all but its sources."""
    where, began = case.where, time.process_time()
    result = rl.search(
        case.work, where.ranks, where.hardware, pass_=case.pass_, scenario=where.scenario
    )
    took = time.process_time() - began
    gain = float(baseline.saved()[case]["seconds"]) / result.makespan
    names = case.mask, case.machine, str(case.tokens), case.pass_, result.recipes[0]
    numbers = f"{result.makespan:.6g}", f"{result.bound:.6g}", f"{result.gap:.4f}"
    why = result.applicable_bound.why, result.prediction.bound_inapplicable_reason or ""
    counts = f"{gain:.4f}", f"{took:.2f}", str(result.tried), str(result.pruned)
    return dict(zip(COLUMNS, (*names, *numbers, *why, *counts), strict=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=FILE, help="the CSV file")
    parser.add_argument(
        "--tokens", type=int, choices=TOKENS, help="tokens per rank, all by default"
    )
    chosen, version = parser.parse_args(), baseline.sources()
    known = baseline.saved(chosen.file, COLUMNS)
    rows = {case: row for case, row in known.items() if row["sources"] == version}
    wanted = [case for case in CASES if chosen.tokens in (None, case.tokens) and case not in rows]
    with ProcessPoolExecutor(baseline.PROCESSES) as workers:
        made = workers.map(row_of, wanted)
        for case, row in zip(progress(wanted, "searching"), made, strict=True):
            rows[case] = row | {"sources": version}
            baseline.write(chosen.file, rows, COLUMNS)


if __name__ == "__main__":
    main()
