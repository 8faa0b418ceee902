"""The fuzzers themselves: they find planted defects, and find nothing in a few seconds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz import judging
from fuzz.judging import case, judge
from fuzz.readers import READERS
from ringloom.planner.masks import Mask
from ringloom.planner.masks.chunks import Chunked
from ringloom.report.facts import recorded
from ringloom.simulator.network import topology

PLANTED = 3000  # cases at most until a planted defect is found


def anything(what: str, value: Any, *bounds: float) -> float:
    """A reader of numbers that bounds nothing."""
    return float(value)


def forever(*_: Any) -> None:
    while True:
        pass


def gigabytes(*_: Any) -> None:
    raise MemoryError("Unable to allocate 4.00 GiB")


def more(mask: Mask, *sides: Any) -> int:
    """Pairs and one more, where there are any."""
    return -1 if mask.region() is None else int(mask.allowed(range(-1, 8), range(8)).sum()) + 1


def unread(what: str, value: Any, *_: Any) -> str:
    return str(value)


Plant = tuple[str, object, str, Callable[..., Any], str]
PLANTS: list[Plant] = [
    ("topology", topology, "require_number", anything, "OverflowError"),
    ("trace", recorded, "require_name", unread, "AssertionError"),
    ("mask", Mask, "pairs", more, "AssertionError"),
    ("mask", Chunked, "up_to", forever, "TooLong: more than 0.5 s"),
    ("mask", Chunked, "up_to", gigabytes, "MemoryError"),
]


def wrongs(reader: str, folder: Path, count: int) -> Iterator[str]:
    """Tells the findings of some cases of a reader."""
    outcomes = (judge(reader, number, 7, folder) for number in range(count))
    return (outcome.wrong for outcome in outcomes if outcome.wrong)


@pytest.mark.parametrize(("reader", "place", "name", "defect", "said"), PLANTS)
def test_a_planted_defect_is_found(
    reader: str,
    place: object,
    name: str,
    defect: Callable[..., Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "SECONDS", 0.5)
    monkeypatch.setattr(place, name, defect)
    assert any(said in finding for finding in wrongs(reader, tmp_path, PLANTED))


@pytest.mark.parametrize("reader", READERS)
def test_a_few_cases_find_nothing(reader: str, tmp_path: Path) -> None:
    assert [*wrongs(reader, tmp_path, 40)] == []


@pytest.mark.parametrize("reader", READERS)
def test_a_case_is_the_same_each_time_and_most_are_not_alike(reader: str) -> None:
    made = [repr(case(reader, number, 7)) for number in range(40)]
    assert made == [repr(case(reader, number, 7)) for number in range(40)]
    assert len({*made}) > 20
    assert {*made} != {repr(case(reader, number, 8)) for number in range(40)}


def test_some_changed_documents_are_accepted_and_some_refused(tmp_path: Path) -> None:
    """A fuzzer all of whose cases are refused tries no law."""
    for reader in READERS:
        accepted = [judge(reader, number, 7, tmp_path).accepted for number in range(60)]
        assert 0.03 < np.mean(accepted) < 0.97, reader
