"""Pages of 8, 64 and 1,024 ranks fit on a desktop and on a phone, in light and in dark."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from fits import misfits

import ringloom as rl
from conftest import SIZES, Reader
from ringloom.comparison import compare
from ringloom.report.page import page

Readers = Callable[..., Reader]
RANKS = (8, 64, 1024)
COMMAND = (
    "ringloom report --ranks 1024 --seq 262144 --kv-heads 8 --mask 'causal & (window:4096 |"
    " global:64)' --hardware a100-nvlink --schedules ring,zigzag,usp:ulysses=8 --slow-link 6-7=0.1"
)
# The number of words of the command, and the words that wrap.
BROKEN = """
const words = [...document.querySelectorAll("footer .word")], range = document.createRange()
const lines = (word) => { range.selectNodeContents(word); return range.getClientRects().length }
return [words.length, words.filter((word) => lines(word) > 1).map((word) => word.textContent)]
"""
SETTLED = "return Bokeh.documents[0].is_idle"


def fits(reader: Readers, address: str, ready: str) -> None:
    """Opens a URL and checks it in all sizes and colour schemes."""
    shown = reader().open(address)
    shown.wait(ready)
    for size, scheme in product(SIZES, ("light", "dark")):
        reader(size, scheme)
        shown.wait("return innerWidth === arguments[0]", SIZES[size][0])
        shown.driver.execute_async_script("setTimeout(arguments[0], 300)")
        shown.wait(SETTLED)
        assert misfits(shown) == [], (size, scheme)
    assert shown.complaints() == []


@pytest.mark.parametrize("ranks", RANKS)
def test_a_report_fits(reader: Readers, tmp_path: Path, ranks: int) -> None:
    work = rl.Workload(seq=2**16, heads=32, kv_heads=8)
    names, passes = ["zigzag"], "forward"
    if ranks == 8:
        names, passes = [*names, "usp:ulysses=4:layout=zigzag:order=context"], "both"
    compared = compare(work, ranks, "tpu-v4", names, pass_=passes, variants=False)
    (tmp_path / "report.html").write_text(page(compared, command=COMMAND), encoding="utf-8")
    fits(reader, (tmp_path / "report.html").as_uri(), SETTLED)
    shown = reader("phone")
    assert shown.ask("return document.querySelector('footer code').innerText") == COMMAND
    assert shown.ask(BROKEN) == [len(COMMAND.split()), []]


def test_a_report_with_a_recorded_run_fits(reader: Readers, report: str) -> None:
    fits(reader, report, SETTLED)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_local_page_fits(reader: Readers, explored: str, ranks: int) -> None:
    passes = "both" if ranks <= 64 else "forward"
    address = f"{explored}?schedule=zigzag&ranks={ranks}&seq=64k&pass={passes}"
    fits(reader, address, "return !document.querySelector('main.stale')")


def test_misfits_are_reported(reader: Readers, explored: str) -> None:
    shown = reader("phone").open(explored)
    assert misfits(shown) == []
    shown.ask("document.getElementById('title').style.whiteSpace = 'nowrap'")
    assert any("leaves the page: forward of" in faults for faults in misfits(shown))
    shown.ask("document.getElementById('title').style.overflow = 'hidden'")
    assert any("is cut off: forward of" in faults for faults in misfits(shown))
    shown.ask("document.getElementById('title').style = ''")
    shown.ask("document.getElementById('finding').style.marginTop = '-30px'")
    assert any("lies on" in faults for faults in misfits(shown))
