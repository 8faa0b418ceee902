"""The report in a real browser: its numbers, its controls and its colours."""

import base64
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys

from conftest import NAMES, Reader
from ringloom.comparison import Comparison
from ringloom.report.facts.tiles import tile_facts
from ringloom.report.pictures.palette import rank_colours
from ringloom.simulator.facts import bars_of, traffic_of
from ringloom.simulator.prediction import simulate
from ringloom.views.units import seconds, size

Readers = Callable[..., Reader]


def test_all_numbers_are_the_simulators(reader: Readers, report: str, compared: Comparison) -> None:
    page = reader().open(report)
    cells = page.ask(
        "return [...document.querySelectorAll('td[data-field]')].map((e) =>"
        " [e.closest('tbody').dataset.schedule, e.dataset.field, e.dataset.value, e.textContent])"
    )
    assert len(cells) == 7 * len(compared.cases)
    ring = compared.cases[0].prediction.makespan
    for name, field, value, text in cells:
        case = next(c for c in compared.cases if c.row.schedule == name)
        again = simulate(case.plans, "a100-nvlink")
        least = {"bound_ratio": again.makespan / case.row.bound_s}  # the bound of all that compare
        row = again.as_row() | least | {"speedup_vs_ring": ring / again.makespan}
        assert float(value) == row[field]
        if field == "makespan_s":
            assert text == seconds(again.makespan)
    assert page.ask("return document.querySelector('h1').textContent") == (
        compared.recommendation.answer
    )
    assert page.ask("return document.getElementById('finding').textContent") == compared.why
    best = page.ask("return document.querySelector('.best').dataset.schedule")
    assert best == compared.recommendation.schedule


def test_bars_are_as_long_as_their_numbers(
    reader: Readers, report: str, compared: Comparison
) -> None:
    page = reader().open(report)
    widths = page.ask(
        "return [...document.querySelectorAll('.bar')].map((bar) => [...bar.children].map((e) =>"
        " e.getBoundingClientRect().width / bar.getBoundingClientRect().width))"
    )
    slowest = max(row.makespan_s for row in compared.rows)
    for (busy, idle, _), row in zip(widths, compared.rows, strict=True):
        assert busy + idle == pytest.approx(row.makespan_s / slowest, abs=2e-3)
        assert idle == pytest.approx(row.idle_fraction * row.makespan_s / slowest, abs=2e-3)


def test_timelines_hold_every_span(reader: Readers, report: str, compared: Comparison) -> None:
    page = reader().open(report)
    for number, case in enumerate(compared.cases):
        bars = bars_of(case.prediction)
        read = (
            "const d = model(arguments[0]).data; return [...d.right].map((r, i) => [d.left[i], r])"
        )
        shown = np.array(page.ask(read, f"timeline-{number}-bars"))
        run = [s for s in bars if s.stream != "wait"]  # of the third lies over it: none is recorded
        assert len(shown) == len(bars) + (len(run) if number == 2 else 0)
        times = [(s.start * 1e3, s.end * 1e3) for s in bars]
        np.testing.assert_array_equal(shown[: len(bars)], times)
        assert shown[:, 1].max() <= 1e3 * case.row.makespan_s * (1 + 1e-5)  # records are rounded


TIPS = """
const hover = [...Bokeh.documents[0]._all_models.values()].find(
  (m) => m.type === "HoverTool" && m.renderers[0].data_source.name === arguments[0])
const told = hover.formatters[arguments[1]]
return arguments[2].map(([value, vars]) => told.format(value, "", vars))
"""


def test_tooltips_of_bars_name_them(reader: Readers, report: str, compared: Comparison) -> None:
    page = reader().open(report)
    for number, case in enumerate(compared.cases):
        names = [s.name for s in bars_of(case.prediction)]
        told = page.ask("return [...model(arguments[0]).data.name]", f"timeline-{number}-bars")
        assert told[: len(names)] == [f"predicted: {name}" for name in names]
        if number == 2:  # with a recorded run of the same
            ran = [name.removeprefix("measured: ") for name in told[len(names) :]]
            assert sorted(ran) == sorted(n for n in names if not n.startswith("waits for "))


def test_tooltips_of_cells_and_arrows_give_bytes(
    reader: Readers, report: str, compared: Comparison
) -> None:
    page = reader().open(report)
    plan = compared.cases[4].plans.first
    links = traffic_of([plan])
    asked = [[int(links[y, x]), {"x": int(x), "y": int(y)}] for y, x in np.argwhere(links)]
    told = [f"rank {v['y']} to {v['x']}: {size(n)} ({n:,} bytes)" for n, v in asked]
    assert page.ask(TIPS, "links-4-cells", "@image", asked) == told
    page.ask("model('state').data = {leg: [4], step: [0], cut: [0]}")
    sent = [one for one in tile_facts("ulysses", plan).messages if one.step == 0]
    ways = list(dict.fromkeys((one.src, one.dst) for one in sent))
    shown = page.ask("const d = model('messages').data; return [[...d.src], [...d.dst]]")
    assert list(zip(*shown, strict=True)) == ways
    told = page.ask(TIPS, "messages", "@parts", [[0, {"index": n}] for n in range(len(ways))])
    for way, words in zip(ways, told, strict=True):
        parts = [one for one in sent if (one.src, one.dst) == way]
        assert words == f"{'; '.join(p.name for p in parts)}, {sum(p.bytes for p in parts):,} bytes"


STATE = """
const labels = model("labels").data, ways = model("messages").data
return [labels.text.length ? [...labels.text] : [], [...ways.src], [...ways.dst],
        [...model("pixels").data.image[0]].map((x) => (isNaN(x) ? null : x)),
        document.getElementById("said").textContent]
"""


def drawing(page: Reader) -> str:
    """Returns the picture as the browser painted it, a PNG in base64."""
    box = page.ask(
        "const b = document.querySelector('.two').getBoundingClientRect();"
        "return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height, scale: 1}"
    )
    page.driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 150))")
    shot = page.driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": box, "captureBeyondViewport": True}
    )
    return str(shot["data"])


def test_the_slider_shows_tiles_and_messages_of_a_step(
    reader: Readers, report: str, compared: Comparison
) -> None:
    page = reader().open(report)
    slider = page.driver.find_element("id", "step")
    seen = set()
    for number, case in enumerate(compared.cases):
        page.ask(
            "const s = document.getElementById('leg'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('change'))",
            str(number),
        )
        facts = tile_facts(case.row.schedule, case.plans.first)
        tall, wide = facts.pixels_per_piece
        colours = np.array([list(bytes.fromhex(c[1:7])) for c in rank_colours(facts.ranks)])
        slider.send_keys(Keys.HOME)
        for step in range(facts.steps):
            labels, src, dst, image, said = page.ask(STATE)
            now = facts.step[0] == step
            assert sorted(labels) == sorted(str(r) for r in facts.rank[0][now])
            sent = [(one.src, one.dst) for one in facts.messages if one.step == step]
            assert list(zip(src, dst, strict=True)) == list(dict.fromkeys(sent))
            assert said == facts.words(step)
            pixels = np.array([np.nan if x is None else x for x in image], float)
            live = facts.shares > 0
            on = np.kron(now, np.ones((tall, wide), bool)) & live
            who = np.kron(facts.rank[0], np.ones((tall, wide), int))
            assert (pixels.reshape(live.shape)[on] == who[on]).all()
            assert (pixels.reshape(live.shape)[~live] == -1).all()
            painted = page.tile_colours()[on]
            np.testing.assert_array_equal(painted[:, :3], colours[who[on]])
            if number < 2:
                seen.add(drawing(page))
            slider.send_keys(Keys.ARROW_RIGHT)
    assert len(seen) == sum(len(case.plans.first.steps) for case in compared.cases[:2])
    assert page.complaints() == []


def test_heads_have_their_own_tiles(reader: Readers, report: str) -> None:
    page = reader().open(report)
    assert page.ask("return document.getElementById('heads-label').offsetParent === null")
    page.ask(
        "const s = document.getElementById('leg'); s.value = '4';"
        "s.dispatchEvent(new Event('change'))"
    )
    assert page.ask("return document.getElementById('cut').options.length") == 8
    page.ask("model('state').data = {leg: [4], step: [1], cut: [5]}")
    labels = page.ask("return [...model('labels').data.text]")
    assert set(labels) == {"5"}


def test_the_keyboard_reaches_everything(reader: Readers, report: str) -> None:
    page = reader().open(report)
    body, seen = page.driver.find_element("tag name", "body"), []
    for _ in range(24):
        (body if not seen else page.driver.switch_to.active_element).send_keys(Keys.TAB)
        seen.append(
            page.ask(
                "const e = document.activeElement;"
                "return [e.id || e.dataset.zoom || e.tagName, getComputedStyle(e).outlineStyle]"
            )
        )
    names = [name for name, _ in seen]
    ours = {"leg", "step", "back", "play", "on", "left", "in", "out", "right", "all"}
    assert ours <= set(names)
    assert not ours & {name for name, style in seen if style == "none"}
    before = page.ask("return [model('seconds').start, model('seconds').end]")
    page.driver.find_element("css selector", "[data-zoom=in]").send_keys(Keys.ENTER)
    start, end = page.ask("return [model('seconds').start, model('seconds').end]")
    assert end - start == pytest.approx((before[1] - before[0]) / 2)
    page.driver.find_element("css selector", "[data-zoom=all]").send_keys(Keys.ENTER)
    assert page.ask("return [model('seconds').start, model('seconds').end]") == before


def test_play_advances_by_itself(reader: Readers, report: str) -> None:
    page = reader().open(report)
    page.driver.find_element("id", "play").click()
    page.wait("return Number(document.getElementById('step').value) >= 2")
    page.driver.find_element("id", "play").click()
    assert page.ask("return document.getElementById('play').textContent") == "play"


PAINT = """
const paper = getComputedStyle(document.body).backgroundColor
const figure = [...Bokeh.documents[0]._all_models.values()].find((m) => m.name === "tiles")
return [paper, figure.background_fill_color, getComputedStyle(document.body).color]
"""


def luminance(colour: str) -> float:
    """Returns the WCAG relative luminance of #rrggbb or rgb(r, g, b)."""
    if colour.startswith("#"):
        parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    else:
        parts = [int(n) for n in re.findall(r"\d+", colour)[:3]]
    linear = [p / 255 / 12.92 if p <= 10 else ((p / 255 + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_pages_follow_the_colour_scheme(reader: Readers, report: str) -> None:
    for scheme, dark in (("light", False), ("dark", True)):
        paper, picture, ink = reader("desktop", scheme).open(report).ask(PAINT)
        assert (luminance(paper) < 0.05) is dark
        assert luminance(paper) == pytest.approx(luminance(picture), abs=0.01)
        high, low = sorted((luminance(paper), luminance(ink)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 7


def test_the_colour_scheme_can_change_on_an_open_page(reader: Readers, report: str) -> None:
    page = reader("desktop", "light").open(report)
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.wait(
        "return [...Bokeh.documents[0]._all_models.values()]"
        ".find((m) => m.name === 'tiles').background_fill_color === '#14181d'"
    )


def test_print_is_light_and_has_no_buttons(reader: Readers, report: str) -> None:
    page = reader("desktop", "dark").open(report)
    page.ask(
        "window.printed = []; const models = [...Bokeh.documents[0]._all_models.values()];"
        "addEventListener('beforeprint', () => window.printed.push("
        "models.find((m) => m.name === 'tiles').background_fill_color))"
    )
    made: dict[str, Any] = page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(made["data"]).startswith(b"%PDF")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    paper = page.ask("return getComputedStyle(document.body).backgroundColor")
    assert luminance(paper) == pytest.approx(1)
    assert page.ask("return document.querySelector('.zoom').offsetParent === null")
    assert set(page.ask("return window.printed")) == {"#ffffff"}


def test_nothing_is_fetched(reader: Readers, report: str) -> None:
    page = reader().open(report)
    fetched = page.ask("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert [name for name in fetched if not name.startswith(("data:", "blob:"))] == []


def test_urls_lead_to_steps_and_steps_change_the_url(reader: Readers, report: str) -> None:
    page = reader().open(report + "#zigzag/3")
    assert page.ask("return model('state').data.step[0]") == 2
    title = "return model('facts').data.title[model('state').data.leg[0]]"
    assert page.ask(title) == "zigzag"
    page.ask("document.getElementById('on').click()")
    assert page.ask("return location.hash") == "#zigzag/4"
    page.ask("location.hash = '#ulysses/1'")
    page.wait("return document.getElementById('step').value === '1'")
    assert page.ask("return model('state').data.leg[0]") == NAMES.index("ulysses")


def test_every_picture_can_be_downloaded(
    reader: Readers, report: str, compared: Comparison
) -> None:
    page = reader().open(report)
    pictures = page.ask("return document.querySelectorAll('main figure').length")
    taken = page.ask(
        """
        const made = [], make = URL.createObjectURL
        URL.createObjectURL = (blob) => { made.push(blob); return "" }
        HTMLAnchorElement.prototype.click = function () {}
        document.querySelectorAll(".take button").forEach((button) => button.click())
        URL.createObjectURL = make
        window.texts = null
        Promise.all(made.map((blob) => blob.text())).then((all) => { window.texts = all })
        return made.length
        """
    )
    assert taken == 2 * pictures
    texts = page.wait("return window.texts")
    assert all(text.startswith("<svg") for text in texts[::2])
    tables = [text.splitlines() for text in texts[1::2]]
    assert all("," in table[0] for table in tables)
    (memory,) = (table for table in tables if table[0] == "x,y,name,words")
    assert {line.split('"')[1].split(",")[0] for line in memory[1:]} == {*NAMES}
    assert sum(table[0].startswith("lane,") for table in tables) == len(NAMES)
    links = traffic_of(compared.cases[0].plans)
    rows = {tuple(map(int, line.split(","))) for table in tables for line in table[1:]
            if table[0] == "row,column,value" and "." not in line}  # fmt: skip
    assert {(int(a), int(b), int(links[a, b])) for a, b in np.argwhere(links)} <= rows


PAINTED = """
const figure = model("timeline-0"), view = Bokeh.index.get_one(figure)
const {glyph} = view.renderer_views.get(figure.renderers[0])
const painters = Object.getPrototypeOf(glyph), {sleft} = glyph
const sright = arguments[0] ? sleft.map((x) => x + arguments[0]) : glyph.sright
const bars = [...sleft.keys()].filter((i) => arguments[0] || sright[i] - sleft[i] >= 1)
return [painters.plain, painters._paint].map((paint) => {
  const ctx = new OffscreenCanvas(view.bbox.width, view.bbox.height).getContext("2d")
  paint.call(glyph, ctx, bars, {...glyph, sleft, sright})
  return [...ctx.getImageData(0, 0, ctx.canvas.width, ctx.canvas.height).data]
})
"""


def test_bars_are_painted_like_bokeh(reader: Readers, report: str) -> None:
    page = reader().open(report)
    by_bokeh, here = (np.array(one, float).reshape(-1, 4) for one in page.ask(PAINTED, 0))
    assert len(np.unique(by_bokeh, axis=0)) > 3
    (seen, ink), (known, other) = (
        (one[:, 3] / 255, one[:, :3] * one[:, 3:] / 255) for one in (by_bokeh, here)
    )
    assert np.abs(seen - known).max() < 0.15  # edges that cover a part of a pixel
    assert np.abs(ink - other).max() < 64
    assert np.abs(ink - other).mean() < 0.5


def test_bars_thinner_than_a_pixel_cover_the_background(reader: Readers, report: str) -> None:
    by_bokeh, here = (np.array(one)[3::4] for one in reader().open(report).ask(PAINTED, 0.5))
    assert 0 < by_bokeh.max() < 250  # through those of half a pixel the paper shows
    assert here.max() == 255
