"""The page of an audit fits a desktop and a phone, and its ring marks the first wrong pair."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from fits import misfits

from conftest import SIZES, Reader
from ringloom.auditing.cases import case_of
from ringloom.auditing.html import page
from ringloom.auditing.verdict import Audit
from ringloom.planner.workload import Workload
from ringloom.runtimes.audit.report import Computed, Fault, Measured, Report, pooled

TOKENS, RANKS, QUERY, KEY = 96, 8, 70, 21
RING = """
const ring = document.querySelector(".first").getBoundingClientRect()
const image = document.querySelectorAll("img")[2].getBoundingClientRect()
return [(ring.x + ring.width / 2 - image.x) / image.width,
  (ring.y + ring.height / 2 - image.y) / image.height, image.width]
"""


def audit() -> Audit:
    work = Workload(TOKENS, heads=2, head_dim=8, mask="causal & documents:40,56 & window:30")
    wanted = work.allowed(range(TOKENS), range(TOKENS)).astype(np.int32)
    wrong = wanted.copy()
    wrong[QUERY, KEY] = 1
    said = f"query {QUERY} (rank 5, row 10) attends key {KEY} (rank 1, row 9) once" * 3
    fault = Fault("document leak", said, query=QUERY, key=KEY, head=0, pairs=1)
    computed = (Computed("out", 0, 0, 2, pooled(wrong)),)
    errors = {name: Measured(1e-3, 3e-7, 64.0) for name in ("out", "dq", "dk", "dv")}
    sent = {"forward": np.ones((RANKS, RANKS), int) - np.eye(RANKS, dtype=int)}
    report = Report((fault,), wanted, computed, errors, sent=sent, invisible=(said,))
    return Audit(case_of(work, RANKS, "zigzag"), report, "a_module_of_a_long_name.py:attend")


def test_an_audit_fits_and_its_ring_marks_the_pair(
    reader: Callable[..., Reader], tmp_path: Path
) -> None:
    command = "ringloom audit a_module_of_a_long_name.py:attend --ranks 8 --html audit.html"
    (tmp_path / "audit.html").write_text(page(audit(), command=command), encoding="utf-8")
    shown = reader()
    shown.driver.get((tmp_path / "audit.html").as_uri())
    for size, scheme in product(SIZES, ("light", "dark")):
        reader(size, scheme)
        shown.wait("return innerWidth === arguments[0]", SIZES[size][0])
        assert misfits(shown) == [], (size, scheme)
        left, top, width = shown.ask(RING)
        strip = 2 + 1  # columns of ranks, and of the gap behind them
        assert abs(left - (strip + KEY + 0.5) / (strip + TOKENS)) < 2 / width
        assert abs(top - (QUERY + 0.5) / TOKENS) < 2 / width
        assert width > 200
    assert shown.complaints() == []
