"""The page of searches lists every case of its file, and says what was gained over compare."""

import csv
from itertools import product
from pathlib import Path

import searched
from corpus import MACHINES, MASKS

BENCHMARKED = [*product(MASKS, MACHINES, ("8192", "32768"), ("forward", "backward"))]


def write(path: Path, cases: list[tuple[str, ...]]) -> None:
    """A file of searches that take 1 ms, half as long as the saved rows of compare, or as long."""
    with searched.BASELINE.open(newline="") as lines:
        saved = {tuple(row[k] for k in searched.KEY): row for row in csv.DictReader(lines)}
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*searched.KEY, "seconds", "bound_s", "gap", "class", "gain", "processor_s"])
        for number, case in enumerate(cases):
            assert case in saved
            why = "a rank owns more" if number == 0 else ""
            lines.writerow([*case, "0.001", "0.0008", "0.25", why, 1 + number % 2, "1.5"])


def test_every_case_of_the_file_is_on_the_page(tmp_path: Path) -> None:
    file = tmp_path / "search.csv"
    write(file, BENCHMARKED)
    lines = list(searched.page(file))
    text = "\n".join(lines)
    assert f"In {len(BENCHMARKED)} cases the median gain is 1.50x, between 1.00x and" in text
    for mask, machine in product(MASKS, MACHINES):
        assert sum(line.startswith(f"| {mask} | {machine} | 8k<br>32k |") for line in lines) == 2
    first = next(line for line in lines if line.startswith("| full | h100-8 |"))
    assert "| 1 ms<br>1 ms | 800 us<br>800 us | 25%c<br>25% |" in first
    assert (
        sum(line.startswith(f"| {mask} | forward | 25% |") for mask in MASKS for line in lines) == 9
    )


def test_a_part_of_the_corpus_makes_a_page_and_no_file_says_how_to_write_it(tmp_path: Path) -> None:
    file = tmp_path / "search.csv"
    write(file, BENCHMARKED[:3])
    assert sum(line.startswith("| full | ") for line in searched.page(file)) == 2 + 2
    assert "python benchmarks/search.py" in "\n".join(searched.page(tmp_path / "none.csv"))
