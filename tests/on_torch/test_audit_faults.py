"""Planted faults are found and named by their kind, and right programs raise no alarm.

RINGLOOM_PROFILE=nightly pytest tests/on_torch/test_audit_faults.py    all of them
"""

from functools import partial
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from audit_ranks import Row, leaving, on_ranks, planted, right, right_peers  # noqa: E402  only where torch is
from sampling import NIGHTLY  # noqa: E402

NAMES = ["zigzag", "head-tail", "ring", "striped", "all-to-all", "package", "long"]
EVERY = 1 if NIGHTLY else 4  # of how many faults one is planted
SEEDS = {1: 20, 2: 40, 3: 40, 4: 40, 5: 30, 7: 30} if NIGHTLY else {3: 5}


def judged(rows: list[Row]) -> None:
    """Asserts that the first row is exact, all others are found, and most named."""
    (_, _, alarms), *faults = rows
    assert alarms == []
    assert [name for name, _, answer in faults if not answer] == []
    named = [name for name, kinds, answer in faults if {*answer[:1]} & {*kinds}]
    assert len(named) >= 0.8 * len(faults) > 0, {n for n, _, _ in faults} - {*named}


@pytest.mark.parametrize("name", NAMES if NIGHTLY else NAMES[:1])
def test_planted_faults_are_found_and_named(name: str) -> None:
    if name == "package":
        pytest.importorskip("ring_attention_pytorch")
    judged(on_ranks(partial(planted, name, EVERY), 4))


def test_messages_to_ranks_outside_a_group_are_seen() -> None:
    """Ranks are in two groups, and each of them audits its own."""
    assert [answer for _, _, answer in on_ranks(leaving, 4)] == [[], ["too many ranks"]]


@pytest.mark.parametrize("ranks", SEEDS)
def test_right_programs_raise_no_alarm(ranks: int) -> None:
    seeds = [1000 * ranks + number for number in range(SEEDS[ranks])]
    rows = on_ranks(partial(right, ranks, seeds), ranks)
    assert len(rows) == len(seeds)
    assert [row for row in rows if row[2]] == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7] if NIGHTLY else [3])
def test_right_peers_raise_no_alarm(ranks: int) -> None:
    package = NIGHTLY and find_spec("ring_attention_pytorch") is not None
    rows = on_ranks(partial(right_peers, ranks, package), ranks)
    assert len(rows) == (16 if package else 12)
    assert [row for row in rows if row[2]] == []
