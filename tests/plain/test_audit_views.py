"""The verdict of an audit as a page of a terminal and of a browser, from reports that are made."""

import base64
import json
import re
from dataclasses import replace
from io import BytesIO

import numpy as np
import PIL.Image
import pytest
from PIL.Image import Image

from ringloom.auditing.cases import case_of
from ringloom.auditing.html import page, panels
from ringloom.auditing.pictures import EXTRA, NONE, ONCE, data_url
from ringloom.auditing.sent import compare_sent
from ringloom.auditing.verdict import Audit
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Pass
from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.report import Computed, Fault, Measured, Report, pooled
from ringloom.simulator.bounds import least_bytes, reason_outside_class
from ringloom.simulator.facts import traffic_of

RANKS, QUERY, KEY = 4, 40, 9
ERRORS = {"out": Measured(1e-3, 3e-7, 64.0), "dv": Measured(2e-7, 3e-7, 64.0)}


def audit(tokens: int = 64, ranks: int = RANKS, wrong: bool = True, cells: int = 4096) -> Audit:
    """An audit in which a query attends a key twice, or none does."""
    work = Workload(tokens, heads=2, kv_heads=1, head_dim=8, dtype="float32")
    wanted = work.allowed(range(tokens), range(tokens)).astype(np.int32)
    twice = wanted.copy()
    twice[QUERY, KEY] += wrong
    said = f"query {QUERY} attends key {KEY} twice"
    fault = Fault("attended twice", said, query=QUERY, key=KEY, head=0, pairs=1)
    table = np.ones((ranks, ranks), int) - np.eye(ranks, dtype=int)
    computed = (
        Computed("out", 0, 0, 2, pooled(twice, cells)),
        Computed("dv", 0, 0, 1, pooled(wanted, cells)),
    )
    report = Report(
        (fault,) * wrong, pooled(wanted, cells), computed, ERRORS, sent={"forward": table}
    )
    return Audit(case_of(work, ranks, "zigzag"), report, "mine.py:attend")


def pixels(image: Image) -> Array:
    file = BytesIO(base64.b64decode(data_url(image).partition(",")[2]))
    return np.asarray(PIL.Image.open(file).convert("RGB"))


def rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def test_the_verdict_comes_first_then_the_first_wrong_pair_then_counts_then_bytes() -> None:
    lines = str(audit()).splitlines()
    assert lines[0] == "NOT exact: attended twice"
    order = [
        next(n for n, line in enumerate(lines) if line.startswith(start))
        for start in (
            "NOT",
            "mine.py",
            "attended twice, forward",
            "random inputs",
            "work",
            "sent, forward",
        )
    ]
    assert order == sorted(order)
    assert max(map(len, lines)) <= 80
    assert str(audit(wrong=False)).startswith("exact\n")


@pytest.mark.parametrize("tokens", [64, 300])
def test_pictures_show_one_pair_that_is_attended_twice(tokens: int) -> None:
    (shown, other) = panels(audit(tokens), "")
    assert "equal to 1 more" in shown.title
    assert other.title == "dv of KV head 0"
    (_, wanted, _), (_, computed, _), (said, difference, mark) = shown.pictures
    assert said == "difference: 1 cell, the first marked by a circle"
    before = pixels(wanted).shape[1] - tokens
    np.testing.assert_array_equal(pixels(wanted)[QUERY, before + KEY], rgb(ONCE))
    changed = np.argwhere((pixels(wanted) != pixels(computed)).any(axis=2))
    np.testing.assert_array_equal(changed, [[QUERY, before + KEY]])
    cells = pixels(difference)[:, before:]
    assert {tuple(x) for x in cells.reshape(-1, 3)} == {(*rgb(NONE),), (*rgb(EXTRA),)}
    rows, columns = np.nonzero((cells == rgb(EXTRA)).all(axis=2))
    assert len({*rows}) == len({*columns}) == -(-tokens // 128)
    left, top = mark
    assert int(left / 100 * (before + tokens)) - before == KEY
    assert int(top / 100 * tokens) == QUERY


def test_pictures_of_each_rank_have_its_rows_and_the_ring_on_one() -> None:
    drawn = [*panels(audit(), "rank")]
    assert len(drawn) == 2 * RANKS
    marked = [panel.title for panel in drawn if panel.pictures[2][2]]
    assert marked == ["out of head 0, equal to 1 more: queries of rank 2"]
    assert pixels(drawn[0].pictures[0][1]).shape[0] == 64 // RANKS


def test_the_page_has_no_address_of_a_network_and_every_number() -> None:
    text = page(audit(), command="ringloom audit mine.py:attend")
    assert not re.search(r'(src|href)="(?!data:)', text)
    for word in ("NOT exact: attended twice", "WRONG", "query 40 attends key 9 twice", "zigzag"):
        assert word in text
    assert "<title>ringloom audit: mine.py:attend" in text
    with pytest.raises(RingloomError, match="rank or head"):
        page(audit(), "layer")


def test_many_tokens_are_pooled_and_many_ranks_left_out_in_words() -> None:
    text = page(audit(80, 20, cells=40), "rank")
    assert "A cell is the average of 4 pairs." in text
    assert "first 16 of 20 ranks" in text


def test_the_verdict_as_json_has_no_number_that_is_none_there() -> None:
    document = json.loads(json.dumps(audit().as_dict(), allow_nan=False))
    assert document["exact"] is False
    assert document["faults"][0]["query"] == QUERY
    assert sum(document["work"]) == 64 * 65 // 2


def test_bytes_stand_beside_those_of_ring_and_the_lower_bound() -> None:
    work = Workload(64, heads=2, head_dim=16, dtype="float32")
    table = 4096 * (1 - np.eye(4, dtype=int))  # the bytes of a rank's keys and values, to each
    uneven = table * np.array([[1], [2], [1], [1]])
    ahead, behind = compare_sent(case_of(work, 4, "zigzag"), {"forward": table, "backward": uneven})
    assert ahead.sentence == (
        "48 KiB, at most 12 KiB by one rank; 1.00x the bytes of ring; 4.92x the lower bound;"
        " all-gather by shape"
    )
    assert behind.pattern == "every rank to every other, unevenly"
    assert ahead.as_dict()["bound_bytes"] == least_bytes(work, 4, "forward")
    ring = 8 + 65536 * np.roll(np.eye(4, dtype=int), 1, axis=1)  # and 8 bytes from each to each
    (checked,) = compare_sent(case_of(work, 4, "zigzag"), {"forward": ring})
    assert checked.pattern == "a ring by shape"
    lopsided = [range(40), range(40, 64)]  # of a layout outside of the bound's class
    assert compare_sent(case_of(work, 2, lopsided), {"forward": table[:2, :2]})[0].bound is None


@pytest.mark.parametrize("name", ["ring", "zigzag", "striped", "allgather", "ulysses", "tree"])
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_no_plan_sends_fewer_bytes_than_the_lower_bound(name: str, pass_: Pass) -> None:
    for mask in ("causal", "full", "causal & window:20"):
        work = Workload(128, heads=8, kv_heads=4, head_dim=16, mask=mask)
        made = plan(name, work, 4, pass_=pass_)
        if reason_outside_class(made) is None:
            assert traffic_of([made]).sum() >= least_bytes(work, 4, pass_)
    assert least_bytes(work, 1, pass_) == 0
    assert least_bytes(replace(work, mask=Full()), 4, pass_) > 0


def test_what_could_not_run_says_why() -> None:
    made = audit()
    one = Audit(made.case, Report(could_not_run="no module named mine"), "mine.py:attend")
    assert str(one).splitlines()[0] == "could not run"
    assert "no module named mine" in page(one)
    assert "<table" not in page(one)
