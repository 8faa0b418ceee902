"""The first sight of a report: ties, meanings, values, idle time, a step with work."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import WORK, Reader
from ringloom.comparison import Comparison, compare
from ringloom.report.facts.tiles import tile_facts
from ringloom.report.page import page
from ringloom.simulator.facts import over_average, work_of
from ringloom.views.units import seconds, times

Readers = Callable[..., Reader]


def test_with_many_ranks_timelines_show_some_and_open_on_work(
    reader: Readers, tmp_path: Path
) -> None:
    work = replace(WORK, heads=64, kv_heads=64)
    many = compare(work, 64, "a100-nvlink", ["ulysses", "zigzag"])
    (tmp_path / "many.html").write_text(page(many), encoding="utf-8")
    shown = reader().open((tmp_path / "many.html").as_uri())
    ranks = "return model('timeline-0').left[0].axis_label"
    assert shown.ask(ranks) == f"{len(many.cases[0].prediction.representatives())} of 64 ranks"
    assert shown.ask("return model('load-0-bars').data.rank.length") == 64
    assert shown.ask("return model('links-0-cells').data.image[0].shape") == [64, 64]
    for case in many.cases:
        name = case.row.schedule
        shown.ask(CHOOSE, name)
        busy = tile_facts(name, case.plans.first).busy.any(axis=1)
        assert shown.ask("return model('state').data.step[0]") == busy.argmax()
        assert "64 of 64 ranks attend" in shown.ask(
            "return document.getElementById('said').innerText"
        )
    assert shown.ask(COLOUR_BAR) == [None, ["rank 0", "rank 60"]]
    assert shown.complaints() == []


CHOOSE = """
const leg = document.getElementById("leg")
leg.value = model("facts").data.title.indexOf(arguments[0])
leg.dispatchEvent(new Event("change"))
"""
# A title would lie on the numbers of the ranks.
COLOUR_BAR = """
const bar = [...Bokeh.documents[0]._all_models.values()].find(
  (m) => m.type === "ColorBar" && m.color_mapper.name === "ranks")
return [bar.title, bar.formatter.doFormat([0, 60], {})]
"""


def test_schedules_too_close_to_call_share_one_badge(
    reader: Readers, report: str, compared: Comparison
) -> None:
    page, advice = reader().open(report), compared.recommendation
    badges = page.ask(
        "return [...document.querySelectorAll('.badge')].map((e) =>"
        " [e.closest('tbody').dataset.schedule, e.innerText])"
    )
    first = [advice.schedule, *advice.close_to]
    assert {name for name, _ in badges} == {*first}
    assert {text for _, text in badges} == {"tied" if len(first) > 1 else "fastest"}


def test_columns_explain_their_meaning(reader: Readers, report: str) -> None:
    page = reader().open(report)
    titles = page.ask(
        "return [...document.querySelectorAll('.summary th[title]')].map((e) => e.title)"
    )
    said = [title for title in titles if title]
    assert len(said) == 4
    caption = page.ask("return document.querySelector('.summary caption').innerText")
    assert all(title in caption for title in said)


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_bars_are_labelled_with_their_values(
    reader: Readers, report: str, compared: Comparison, size: str
) -> None:
    page = reader(size).open(report)
    ends = page.ask(
        "return [...document.querySelectorAll('.bar')].map((bar) => {"
        " const value = bar.nextSibling, box = value.getBoundingClientRect();"
        " return [value.innerText, bar.children[1].getBoundingClientRect().right,"
        " box.left, box.right, innerWidth] })"
    )
    for (text, bar, left, right, wide), row in zip(ends, compared.rows, strict=True):
        assert text == f"{seconds(row.makespan_s)}, {row.idle_fraction:.0%} idle"
        assert bar < left < bar + 12
        assert right <= wide
    numbers = page.ask("return [...model('load-0-numbers').data.words]")
    assert numbers == [times(share) for share in over_average(work_of(compared.cases[0].plans))]


FRAMES = """
return [...Array(arguments[0]).keys()].map((n) => {
  const {frame, model: drawn} = Bokeh.index.get_one(model(`timeline-${n}`))
  return [drawn.x_range.id, frame.bbox.left, frame.bbox.right]
})
"""


def test_timelines_share_an_axis_and_shade_idle_time(
    reader: Readers, report: str, compared: Comparison
) -> None:
    page = reader().open(report)
    frames = page.ask(FRAMES, len(compared.cases))
    assert len({tuple(one) for one in frames}) == 1
    for number, case in enumerate(compared.cases):
        shade = page.ask(
            "const d = model(arguments[0]).data; return [[...d.left], [...d.right]]",
            f"timeline-{number}-idle",
        )
        left, right = (np.array(ends) for ends in shade)
        assert (left == 0).all()
        run = 8 if number == 2 else 0  # the shades of a recorded run
        assert len(right) == 8 + run
        assert right[:8] == pytest.approx(1e3 * case.row.makespan_s)
