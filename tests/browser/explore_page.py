"""The local page in a real browser: choices redraw it, and its URL restores them."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

import ringloom as rl
from conftest import Reader
from ringloom.comparison import compare
from ringloom.explore.choices import Choices
from ringloom.explore.view import compare_with_ring
from ringloom.planner.files import loads
from ringloom.report.facts.tiles import tile_facts
from ringloom.simulator.facts import bars_of
from ringloom.simulator.hardware import hardware

Readers = Callable[..., Reader]

# Elements of the page and of its widgets, which are shadow trees.
DEEP = """
function deep(root) {
  const found = []
  for (const e of root.querySelectorAll("*")) {
    found.push(e)
    if (e.shadowRoot) found.push(...deep(e.shadowRoot))
  }
  return found
}
"""
CELLS = (
    DEEP
    + """
return deep(document).filter((e) => e.dataset && e.dataset.field).map((e) =>
  [e.closest("tbody").dataset.schedule, e.dataset.field, e.dataset.value])
  .filter(([schedule]) => ["ring", ...arguments[1]].includes(schedule))
"""
)
WORDS = (
    DEEP + "return deep(document).map((e) => e.childElementCount ? '' : e.textContent).join('|')"
)
# Fonts and widths of texts and of the page around them.
LOOKS = """
const look = (id) => ["fontFamily", "fontSize", "fontWeight"].map(
  (p) => getComputedStyle(document.getElementById(id) || document.body)[p])
const table = document.querySelector("#summary table")
return {
  title: look("title"), page: look("body"), finding: look("finding"),
  table: table.offsetWidth / table.parentElement.offsetWidth,
}
"""

FIELDS = (
    *("makespan_s", "speedup_vs_ring", "idle_fraction", "exposed_comm_s"),
    *("max_bytes_sent", "peak_bytes", "bound_ratio"),
)


def set_entry(page: Reader, name: str, entry: str) -> None:
    """Changes an entry like a reader."""
    page.ask(
        "const place = document.querySelector(`[data-control=${arguments[0]}]`)\n"
        "const field = place.querySelector('input, select'); field.value = arguments[1]\n"
        "field.dispatchEvent(new Event('change', {bubbles: true}))",
        name,
        entry,
    )


def to_step(page: Reader, step: int) -> None:
    """Moves the slider like a reader."""
    page.ask(
        "const slider = document.getElementById('step'); slider.value = arguments[0]\n"
        "slider.dispatchEvent(new Event('input'))",
        step,
    )


def shows(page: Reader, choices: Choices) -> None:
    """Waits until the page shows a comparison, and checks its numbers and bars."""
    study = compare_with_ring(choices)
    expected = [
        [row.schedule, field, getattr(row, field)] for row in study.rows for field in FIELDS
    ]
    page.wait(
        CELLS.replace("return deep", "const cells = deep")
        + "return JSON.stringify(cells.map(([s, f, v]) => [s, f, Number(v)])) === arguments[0]",
        json.dumps(expected, separators=(",", ":")).replace(".0,", ",").replace(".0]", "]"),
        [choices.schedule],
    )
    page.wait("return !document.querySelector('main.stale')")
    bars = bars_of(study.cases[0].prediction)
    page.wait("return model('timeline-0-bars').data.left.length === arguments[0]", len(bars))
    right = np.array(page.ask("return [...model('timeline-0-bars').data.right]"))
    np.testing.assert_array_equal(right, [bar.end * 1e3 for bar in bars])


def test_texts_have_the_font_of_the_page(reader: Readers, explored: str) -> None:
    looks = reader("desktop", "light").open(explored).ask(LOOKS)
    assert looks["title"] == looks["page"]
    family, size, weight = looks["finding"]
    assert family == looks["page"][0]
    assert (float(size.removesuffix("px")) >= 20, weight) == (True, "700")
    assert looks["table"] > 0.99


def test_a_url_determines_the_page(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=zigzag&ranks=4&seq=8k&heads=8&overlap=off")
    shows(page, Choices(schedule="zigzag", ranks=4, seq="8k", heads=8, kv_heads=8, overlap=False))


def test_choices_redraw_everything_and_change_the_url(reader: Readers, explored: str) -> None:
    page = reader().open(explored)
    shows(page, Choices())
    set_entry(page, "schedule", "balanced")
    shows(page, Choices(schedule="balanced"))
    set_entry(page, "ranks", "6")
    shows(page, Choices(schedule="balanced", ranks=6))
    set_entry(page, "mask", "causal & window:4096")
    choices = Choices(schedule="balanced", ranks=6, mask="causal & window:4096")
    shows(page, choices)
    address = page.wait("return location.search.includes('window') && location.href")
    shows(reader().open(address), choices)
    assert page.complaints() == []


def test_the_url_changes_last(reader: Readers, explored: str) -> None:
    address = (
        "const address = [...Bokeh.documents[0]._all_models.values()].find("
        "(m) => m.properties.search && m.properties.pathname)\n"
    )
    for seq in ("64k", "128k", "512k"):
        page = reader().open(explored + "?schedule=zigzag")
        page.ask(
            address + "address.properties.search.change.connect(() => setTimeout(() => {"
            " window.then = [model('timeline-0-bars').data.right.at(-1), document.body.innerText]"
            "}))"
        )
        set_entry(page, "seq", seq)
        end, words = page.wait("return window.then")
        study = compare_with_ring(Choices(schedule="zigzag", seq=seq))
        assert end == bars_of(study.cases[0].prediction)[-1].end * 1e3
        assert f"forward of {seq} tokens" in words


def test_the_step_moves_the_picture(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=striped&ranks=4&seq=4k")
    facts = tile_facts("striped", rl.plan("striped", rl.Workload(seq=4096, heads=32), 4))
    painted = set()
    for step in (2, 0, 3):
        to_step(page, step + 1)
        expected = sorted(str(r) for r in facts.rank[0][facts.step[0] == step])
        page.wait(
            "return JSON.stringify([...model('labels').data.text].sort()) === arguments[0]"
            " && model('state').data.step[0] === arguments[1]",
            json.dumps(expected, separators=(",", ":")),
            step,
        )
        page.wait(WORDS + ".includes(arguments[0])", facts.words(step))
        painted.add(page.tile_colours().tobytes())
    assert len(painted) == 3


def test_arrows_have_heads_unless_they_cover_each_other(reader: Readers, explored: str) -> None:
    drawn = "return ['messages', 'arrow-heads'].map((name) => model(name).data.x0.length).join()"
    for ranks, ways, heads in ((16, 240, 240), (24, 552, 0)):
        page = reader().open(explored + f"?schedule=allgather&ranks={ranks}&seq=8k&mask=full")
        to_step(page, 1)
        page.wait(drawn + " === arguments[0]", f"{ways},{heads}")


def test_unchanged_pictures_are_not_repainted(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=zigzag&ranks=8&seq=64k")
    held = "const held = ['pixels', 'messages', 'places'].map((name) => model(name).data)\n"
    page.ask(held + "window.before = held")
    kept = held + "return held.map((data, n) => data === window.before[n])"
    set_entry(page, "seq", "128k")
    shows(page, Choices(schedule="zigzag", ranks=8, seq="128k"))
    assert page.ask(kept) == [True, True, True]
    to_step(page, 8)
    page.wait("return model('state').data.step[0] === 7 && model('messages').data.src.length === 0")
    assert page.ask(kept) == [False, False, True]
    same = page.ask(
        "const sheet = new (Bokeh.Models.get('InlineStyleSheet'))({css: 'a {}'}).underlying()"
        "\nconst text = sheet.el.firstChild; sheet.replace('a {}')"
        "\nconst kept = sheet.el.firstChild === text; sheet.replace('b {}')"
        "\nreturn [kept, sheet.css]"
    )
    assert same == [True, "b {}"]


def test_pictures_do_not_move(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=ring&ranks=16&seq=64k")
    inner = (
        "return [...Bokeh.documents[0]._all_models.values()].filter((m) => m.type === 'Figure'"
        " && ['tiles', 'memory'].includes(m.name)).map((m) => m.inner_width)"
    )
    before = page.ask(inner)
    assert len(before) == 2
    assert min(before) > 100
    for choices in (Choices(ranks=16, schedule="zigzag", seq="64k"), Choices("zigzag", 16, "1M")):
        set_entry(page, "schedule", choices.schedule)
        set_entry(page, "seq", choices.seq)
        shows(page, choices)
    assert page.ask(inner) == before


def test_invalid_choices_are_reported_and_pictures_stay(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=spiral")
    page.wait(WORDS + ".includes(\"unknown schedule 'spiral'\")")
    set_entry(page, "schedule", "ring")
    shows(page, Choices())
    set_entry(page, "mask", "documents@/etc/passwd")
    told = "return document.querySelector('[data-control=mask] [role=alert]')?.textContent"
    assert page.wait(told) == "a URL must not name files: write out the mask"
    look = (
        DEEP + "const [field] = deep(document.querySelector('[data-control=mask]')).filter("
        "(e) => e.tagName === 'INPUT')"
        "\nconst alert = document.querySelector('.choice [role=alert]')"
        "\nconst dim = document.getElementById('summary').parentElement"
        "\nreturn [getComputedStyle(field).borderColor, getComputedStyle(alert).color,"
        " Number(getComputedStyle(dim).opacity), document.querySelector('.taken').inert]"
    )
    edge, colour, opacity, inert = page.ask(look)
    assert edge == colour == "rgb(179, 38, 30)"
    assert (opacity < 0.5, inert) == (True, True)
    set_entry(page, "mask", "causal")
    page.wait("return !document.querySelector('.taken').inert")
    shows(page, Choices())


def test_the_table_of_all_schedules_fills_and_links_to_them(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=zigzag&ranks=16&seq=64k")
    rows = "return document.querySelectorAll('#summary tbody').length"
    page.wait("return document.querySelector('#progress progress')")
    page.wait(rows + " > 3")
    set_entry(page, "seq", "32k")
    page.wait("return document.getElementById('title').textContent.includes('32k')")
    page.wait("return !document.getElementById('progress').textContent")
    times = (
        "return [...document.querySelectorAll('[data-field=makespan_s]')]"
        ".map((e) => e.dataset.value)"
    )
    work = rl.Workload(seq=2**15, heads=32)
    whole = compare(work, 16, hardware("a100-nvlink"), variants=False)
    assert list(map(float, page.ask(times))) == [row.makespan_s for row in whole.rows]
    page.ask("document.querySelector('[data-schedule=balanced] a').click()")
    page.wait(
        "return location.search.includes('balanced') && document.documentElement.dataset.ready"
    )
    shows(page, Choices("balanced", 16, "32k"))


FOCUS = """
let e = document.activeElement
while (e.shadowRoot && e.shadowRoot.activeElement) e = e.shadowRoot.activeElement
const place = (e.getRootNode().host || e).closest(".choice")
return [e.tagName, (place && place.dataset.control) || e.id || e.textContent.trim()]
"""


def test_the_keyboard_reaches_all_controls(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=zigzag&ranks=4&seq=4k")
    page.wait("return !document.getElementById('progress').textContent")
    keys, reached = ActionChains(page.driver), set[str]()
    while (focus := page.ask(FOCUS))[0] != "BODY" or not reached:
        reached.add(focus[1])
        if focus[0] == "SUMMARY":
            keys.send_keys(Keys.ENTER).perform()
        if focus[1] == "step":
            keys.send_keys(Keys.ARROW_RIGHT).perform()
            page.wait("return model('state').data.step[0] === 1")
        keys.send_keys(Keys.TAB).perform()
    assert reached >= {*Choices().texts(), "balanced", "download plan", "download torch program"}
    assert reached >= {"copy link", "copy command", "copy as Python", "step", "play"}


def test_rare_options_are_folded_away_until_one_is_used(reader: Readers, explored: str) -> None:
    folded = "return !document.querySelector('details').open"
    rare = "return [...document.querySelectorAll('details [data-control]')].length"
    page = reader().open(explored + "?ranks=4&heads=8&kv_heads=8&head_dim=64&v_head_dim=64&seq=4k")
    assert page.ask(folded)
    assert page.ask(rare) == 11
    for unusual in ("kv_seq=8k", "v_head_dim=64", "sinks=on", "stragglers=x"):
        page = reader().open(f"{explored}?ranks=4&seq=4k&{unusual}")
        assert not page.ask(folded), unusual


def test_choices_can_be_copied(reader: Readers, explored: str) -> None:
    page = reader().open(explored + "?schedule=zigzag&ranks=4")
    allowed = {"origin": explored, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    # Keys of an earlier test may have left the page, which then cannot write to the clipboard.
    page.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    for name, words in (
        ("copy link", f"{explored}?schedule=zigzag&ranks=4"),
        ("copy command", "ringloom compare --schedules zigzag --ranks 4 --seq 256k"),
        ("copy as Python", 'rl.plan("zigzag", work, ranks=4)'.replace('"', "'")),
    ):
        page.ask(
            "[...document.querySelectorAll('[data-copy]')].find("
            "(e) => e.textContent === arguments[0]).click()",
            name,
        )
        page.wait("return document.getElementById('copied').textContent === arguments[0]",
                  name.replace("copy", "copied"))  # fmt: skip
        taken = page.driver.execute_async_script(
            "navigator.clipboard.readText().then(arguments[0], (e) => arguments[0](String(e)))"
        )
        assert words in taken


def test_files_can_be_downloaded(reader: Readers, explored: str, tmp_path: Path) -> None:
    page = reader().open(explored + "?schedule=zigzag&ranks=4&seq=4k&heads=4")
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    for number, name in enumerate(("plan", "trace", "torch program", "jax program"), 1):
        page.ask(
            "document.querySelector(`[data-take='${arguments[0]}']`).click()",
            name,
        )
        page.wait("return true")
        for _ in range(200):
            done = [f for f in tmp_path.iterdir() if f.suffix != ".crdownload"]
            if len(done) == number:
                break
            page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"zigzag-plan.json", "zigzag-trace.json", "zigzag-torch.py", "zigzag-jax.py"}
    plan = loads((tmp_path / "zigzag-plan.json").read_text())
    assert plan == rl.plan("zigzag", rl.Workload(seq=4096, heads=4), 4)
    assert json.loads((tmp_path / "zigzag-trace.json").read_text())["traceEvents"]
    compile((tmp_path / "zigzag-torch.py").read_text(), "torch", "exec")


def test_only_this_machine_is_served(explored: str) -> None:
    port = urlparse(explored).port
    assert port is not None
    assert urlparse(explored).hostname == "127.0.0.1"
    others = {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)}
    for host in others - {"127.0.0.1", "::1"}:
        with pytest.raises(OSError, match=r".+"), socket.create_connection((host, port), 1):
            pass
