"""The corpus is the same each time, and its baseline has a row for each case that still holds."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from baseline import best, saved, write
from corpus import CASES, MACHINES, MASKS, Case, documents, tree

import ringloom as rl
from ringloom.simulator.bounds import lower_bound

BASELINE = saved()
DIGEST = "6a51ebd58976"
ROUNDED = 1 + 1e-5  # the file has six digits


def numbers(row: dict[str, str]) -> tuple[float, float]:
    """Seconds and the lower bound of a row."""
    return float(row["seconds"]), float(row["bound_s"])


def test_the_corpus_has_every_family_on_every_machine() -> None:
    families = "full causal window documents prefix blocks chunks tree cache"
    machines = "h100-8 h100-16 h100-32 a100-pcie-8 tpu-v5p-16 slow-rank slow-link"
    assert " ".join(MASKS) == families
    assert " ".join(MACHINES) == machines
    assert len(set(CASES)) == len(CASES) == 9 * 7 * 2 * 2
    assert Counter((case.tokens, case.pass_) for case in CASES) == {
        (tokens, pass_): 63 for tokens in (8192, 32768) for pass_ in ("forward", "backward")
    }
    assert {machine.ranks for machine in MACHINES.values()} == {8, 16, 32}
    assert MACHINES["slow-rank"].scenario.speeds == {3: 0.5}
    assert MACHINES["slow-link"].scenario.links == {(6, 7): 0.1}


def test_the_corpus_is_the_same_each_time() -> None:
    works = [case.work for case in CASES]
    assert works == [case.work for case in CASES]
    named = zip(CASES, works, strict=True)
    text = "\n".join(f"{case}: {work.seq} {work.mask}" for case, work in named)
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == DIGEST


def test_lengths_fit_the_ranks() -> None:
    for case in CASES:
        work, ranks = case.work, case.where.ranks
        assert work.kv_seq == case.tokens * ranks, case
        assert work.seq == (work.kv_seq // 4 if case.mask == "cache" else work.kv_seq), case
        assert work.seq % ranks == 0, case
        assert (work.heads, work.kv_heads, work.head_dim) == (32, 8, 128), case


@pytest.mark.parametrize("mask", MASKS)
def test_each_family_has_a_plan(mask: str) -> None:
    work = Case(mask, "h100-8", 8192, "forward").work
    assert rl.plan("ring", work, 8).ranks == 8  # verified


def test_drawn_lengths_fill_the_sequence() -> None:
    for total in sorted({case.work.kv_seq for case in CASES}):
        lengths = documents(total).right.lengths
        assert sum(lengths) == sum(tree(total).lengths) == total
        assert len(lengths) >= 8
        assert max(lengths) <= total // 3


def test_the_baseline_has_a_row_for_each_case() -> None:
    assert [*BASELINE] == [*CASES]
    assert len({row["sources"] for row in BASELINE.values()}) == 1


def test_ratios_are_seconds_over_the_bound() -> None:
    for case, row in BASELINE.items():
        seconds, bound = numbers(row)
        ratio = float(row["ratio"] or seconds / bound)  # empty outside the class of the bound
        assert ratio == pytest.approx(seconds / bound, rel=1e-4), case
        assert ratio >= 1 or not row["ratio"], case


# Where prices change, write the file again. Where compare or the bounds get better, the file stays:
# a time computed again is at most the file's, and a bound at least the file's.
@pytest.mark.parametrize("mask", ["full", "chunks"])
def test_cases_computed_again_agree(mask: str) -> None:
    case = Case(mask, "h100-8", 8192, "forward")
    row = best(case)
    seconds, bound = numbers(BASELINE[case])
    assert numbers(row)[0] <= seconds * ROUNDED
    assert numbers(row)[1] * ROUNDED >= bound


def test_no_bound_is_below_the_saved_one() -> None:
    for case in (case for case in CASES if case.tokens == 8192):
        where, (_, saved) = case.where, numbers(BASELINE[case])
        chips = rl.hardware(where.hardware)
        bound = lower_bound(case.work, where.ranks, case.pass_, chips, where.scenario).seconds
        assert bound * ROUNDED >= saved, case


def test_rows_are_written_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.csv", dict(reversed(BASELINE.items()))
    assert saved(path) == {}
    write(path, rows)
    assert [*saved(path)] == [*CASES]
    assert saved(path) == BASELINE
