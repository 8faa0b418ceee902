"""Writes the page on the results of searches, from benchmarks/results/search.csv."""

import csv
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import median

from markdown import Lines, table

from ringloom.views.units import counted, seconds, times

FILE = Path(__file__).resolve().parents[1] / "benchmarks/results/search.csv"
BASELINE = FILE.with_name("baseline.csv")
KEY = "mask", "machine", "tokens_per_rank", "pass"
SLOW_RATIO = (
    1.3  # times the bound; if the best row of compare takes longer, there is room for gains
)
Row = dict[str, str]


def page(file: Path = FILE) -> Lines:
    """Lists the plan of every mask, machine and pass in a file, if the file exists."""
    yield from ("# Results of searches", "")
    yield from (
        "`benchmarks/search.py` searches for the best plan for every case of a corpus, which",
        "`benchmarks/corpus.py` draws from one seed: families of masks on several machines, with",
        "8k and 32k tokens per rank, 32 query heads and 8 KV heads of 128 in bfloat16. It writes",
        "`benchmarks/results/search.csv`, with the recipe of each plan; this page shows that file.",
        "Times are predictions. *Over the bound* is the time divided by the [lower",
        "bound](../predictions.md), minus 1; with a c, divided by the bound of compute and memory",
        "alone, because the lower bound does not apply to the plan. *Gain* is how many times",
        "faster the plan is than the best row of `ringloom compare` before searches existed, saved",
        "in `benchmarks/results/baseline.csv`. *Search* is the processor time of the search.",
        "",
    )
    rows = list(_read_rows(file)) if file.exists() else []
    if not rows:
        yield from ("The file does not exist: `python benchmarks/search.py` writes it.", "")
        return
    yield from (_summary(rows), "")
    yield from ("{download}`All rows as CSV <../../benchmarks/results/search.csv>`", "")
    for heading, name in (("Masks", "mask"), ("Machines", "machine")):
        yield from (f"## {heading}", "", "Medians over all cases; for *search*, the maximum.", "")
        kinds = dict.fromkeys((row[name], row["pass"]) for row in rows)
        lines = (_medians(row for row in rows if (row[name], row["pass"]) == k) for k in kinds)
        columns = name, "pass", "over the bound", "gain", "least gain", "search"
        yield from table(columns, ((*k, *line) for k, line in zip(kinds, lines, strict=True)))
    masks, machines, passes = (
        dict.fromkeys(row[name] for row in rows) for name in ("mask", "machine", "pass")
    )
    for pass_ in passes:
        yield from (f"## Every {pass_} pass", "", "Each cell has one line per length.", "")
        groups = (
            [row for row in rows if (row["mask"], row["machine"], row["pass"]) == case]
            for case in product(masks, machines, (pass_,))
        )
        columns = "mask", "machine", "tokens", "time", "bound", "over the bound", "gain", "search"
        yield from table(columns, (_case(group) for group in groups if group))


def _read_rows(file: Path) -> Iterable[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def _summary(rows: list[Row]) -> str:
    """Returns sentences on the gain over the saved rows of compare."""
    baseline = {tuple(row[k] for k in KEY): row for row in _read_rows(BASELINE)}
    gains = [float(row["gain"]) for row in rows]
    slow_gains = [
        float(row["gain"])
        for row in rows
        if (saved := baseline[tuple(row[k] for k in KEY)])
        and float(saved["seconds"]) > SLOW_RATIO * float(saved["bound_s"])
    ]
    text = f"In {counted(len(rows), 'case')} the median gain is {times(median(gains))}, between"
    text += f" {times(min(gains))} and {times(max(gains))}."
    if slow_gains:
        text += f" In the {len(slow_gains)} cases in which the best row of compare took more than"
        text += f" {SLOW_RATIO} times the bound, the median gain is {times(median(slow_gains))}."
    return text


def _medians(rows: Iterable[Row]) -> tuple[str, ...]:
    rows = list(rows)
    gaps, gains, search_times = (
        [float(row[k]) for row in rows] for k in ("gap", "gain", "processor_s")
    )
    longest = f"{max(search_times):.1f} s"
    return f"{median(gaps):.0%}", times(median(gains)), times(min(gains)), longest


def _case(rows: list[Row]) -> tuple[str, ...]:
    """Returns the row of a mask on a machine in one pass; cells have a line per length."""
    columns = (
        [f"{int(row['tokens_per_rank']) >> 10}k" for row in rows],
        [seconds(float(row["seconds"])) for row in rows],
        [seconds(float(row["bound_s"])) for row in rows],
        [f"{float(row['gap']):.0%}{'c' * bool(row['class'])}" for row in rows],
        [times(float(row["gain"])) for row in rows],
        [f"{float(row['processor_s']):.1f} s" for row in rows],
    )
    return rows[0]["mask"], rows[0]["machine"], *("<br>".join(column) for column in columns)
