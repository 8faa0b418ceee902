"""The best row of `ringloom compare` for every case of the corpus: what a search must not lose to.

    python benchmarks/baseline.py                  benchmarks/results/baseline.csv
    python benchmarks/baseline.py --file FILE      another file
    python benchmarks/baseline.py --tokens 8192    these tokens per rank only

A row is `ringloom compare`'s fastest schedule as it is typed, its predicted seconds, the lower
bound of the case in seconds, and the ratio of both, which is empty for a plan outside the class for
which the bound holds. `sources` is the last commit that changed the planner, the simulator or
ringloom; with changes in these that are not committed, nothing is computed.

The file is written after each case. Its rows of the same sources are kept, so that an interrupted
run goes on where it was; other rows are computed again. Delete the file after changing the corpus.
"""

import argparse
import csv
import subprocess
from concurrent.futures import ProcessPoolExecutor
from io import StringIO
from pathlib import Path

from corpus import CASES, TOKENS, Case, comparison

from ringloom.cli.output import progress
from ringloom.csv_rows import records
from ringloom.planner import disk

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "baseline.csv"
COLUMNS = (
    *("mask", "machine", "tokens_per_rank", "pass"),
    *("schedule", "seconds", "bound_s", "ratio", "sources"),
)
SOURCES = "planner", "simulator", "ringloom"
PROCESSES = 2

Row = dict[str, str]


def sources() -> str:
    """The last commit that changed what rows depend on; exits where changes are not committed."""
    if changed := git("status", "--porcelain", "--", *SOURCES):
        raise SystemExit(f"commit these first, as rows name the commit they are of:\n{changed}")
    return git("log", "-1", "--format=%h", "--abbrev=12", "--", *SOURCES)


def git(*words: str) -> str:
    """Ask git about this repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def best(case: Case) -> Row:
    """The fastest row of a case, as the file has it; all but the sources."""
    row = comparison(case).rows[0]
    ratio = "" if row.bound_ratio is None else f"{row.bound_ratio:.4f}"
    numbers = f"{row.makespan_s:.6g}", f"{row.bound_s:.6g}", ratio
    names = case.mask, case.machine, str(case.tokens), case.pass_
    return dict(zip(COLUMNS, (*names, row.schedule, *numbers), strict=False))


def saved(path: Path = FILE, columns: tuple[str, ...] = COLUMNS) -> dict[Case, Row]:
    """The rows of a file by their cases, in its order; none where there is no file."""
    rows = records(path, columns) if path.exists() else []
    return {
        Case(row["mask"], row["machine"], int(row["tokens_per_rank"]), row["pass"]): row  # type: ignore[arg-type]
        for row in rows
    }


def write(path: Path, rows: dict[Case, Row], columns: tuple[str, ...] = COLUMNS) -> None:
    """Write the rows in the order of the corpus."""
    lines = csv.DictWriter(text := StringIO(newline=""), columns, lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows[case] for case in CASES if case in rows)
    disk.write(path, text.getvalue().encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=FILE, help="the CSV file")
    parser.add_argument(
        "--tokens", type=int, choices=TOKENS, help="tokens per rank, all by default"
    )
    chosen, version = parser.parse_args(), sources()
    rows = {case: row for case, row in saved(chosen.file).items() if row["sources"] == version}
    wanted = [case for case in CASES if chosen.tokens in (None, case.tokens) and case not in rows]
    with ProcessPoolExecutor(PROCESSES) as workers:
        made = workers.map(best, wanted)
        for case, row in zip(progress(wanted, "comparing"), made, strict=True):
            rows[case] = row | {"sources": version}
            write(chosen.file, rows)


if __name__ == "__main__":
    main()
