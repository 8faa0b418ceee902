"""Two hundred quick edits of the local page: results that are not dim match its entries."""

import json
from collections.abc import Callable
from random import Random
from urllib.parse import urlencode

from conftest import PATIENCE, Reader
from ringloom.explore.choices import from_query
from ringloom.explore.view import compare_with_ring
from ringloom.simulator.facts import bars_of

Readers = Callable[..., Reader]

GOOD = {
    "schedule": ["ring", "zigzag", "striped", "ulysses"],
    "ranks": ["2", "4", "8"],
    "seq": ["1k", "2k", "4k"],
    "mask": ["causal", "full", "window:64"],
    "heads": ["8", "16"],
    "kv_heads": ["4", "8"],
    "hardware": ["a100-nvlink", "h100"],
    "overlap": ["on", "off"],
    "stragglers": ["", "1=0.5"],
}


BAD = {
    "ranks": ["0", "x", "", "3000"],
    "seq": ["long", ""],
    "mask": ["documents:9", "causal &"],
    "heads": ["7.5", "12"],
    "kv_heads": ["5", "-1"],
    "stragglers": ["9=0.5", "1=fast"],
}


EDITS, SETTLED = 200, 60


PAUSES = (
    0,
    20,
    SETTLED,
    SETTLED,
)  # milliseconds; after the longest, also until the answer is complete


# Records results that are not dim with the entries at that time, while it changes the entries.
EDIT = """
const [edits, settled, done] = arguments, main = document.querySelector("main"), kept = new Set()
function field(root) {
  for (const e of root.querySelectorAll("*")) {
    if (e.matches("input, select")) return e
    const inner = e.shadowRoot && field(e.shadowRoot)
    if (inner) return inner
  }
}
const controls = [...document.querySelectorAll("[data-control]")]
const places = controls.map((e) => [e.dataset.control, field(e)])
const fields = Object.fromEntries(places), box = (e) => e.type === "checkbox"
const entry = (e) => box(e) ? (e.checked ? "on" : "off") : e.value
const bars = Bokeh.documents[0].get_model_by_name("timeline-0-bars")
let watching = true, dim = 0, wrong = 0, seen = ""
function watch() {
  const schedule = fields.schedule.value, stale = main.classList.contains("stale")
  if (document.querySelector(".taken").inert !== stale) kept.add("downloads allowed while dim")
  dim += stale
  wrong += Boolean(document.querySelector(".choice [role=alert]"))
  const row = document.querySelector(`[data-schedule=${schedule}] [data-field=makespan_s]`)
  if (!stale) kept.add(seen = JSON.stringify([
    Object.fromEntries(places.map(([name, e]) => [name, entry(e)])),
    document.getElementById("title").textContent, row && row.dataset.value,
    bars.data.right.reduce((a, b) => Math.max(a, b), 0)]))
  if (watching) requestAnimationFrame(watch)
}
watch()
const sleep = (milliseconds) => new Promise((next) => setTimeout(next, milliseconds))
async function go() {
  for (const [name, text, commits, pause] of edits) {
    const e = fields[name]
    if (box(e)) { if (entry(e) !== text) e.click() }
    else {
      e.value = text
      e.dispatchEvent(new Event("input", {bubbles: true, composed: true}))
      if (commits) e.dispatchEvent(new Event("change", {bubbles: true, composed: true}))
    }
    await sleep(pause)
    for (let n = 0; pause === settled && main.classList.contains("stale") && n < 200; n++) {
      await sleep(50)
      if (document.querySelector(".choice [role=alert]")) break
    }
  }
  for (let n = 0; main.classList.contains("stale") && n < 300; n++) {
    await sleep(100)
  }
  await sleep(100)
  watching = false
  done([[...kept], seen, dim, wrong])
}
go()
"""


def test_results_belong_to_the_controls_above_them(reader: Readers, explored: str) -> None:
    """Checks that results that are not dim are the simulator's for the entries of the frame."""
    random, wrong_ones = Random(0), list[str]()
    edits: list[tuple[str, str, bool, int]] = []
    while len(edits) < EDITS:
        if wrong_ones and random.random() < 0.75:
            name, entries = wrong_ones.pop(), GOOD  # mended
        elif random.random() < 0.2:
            name, entries = random.choice(list(BAD)), BAD
            wrong_ones.append(name)
        else:
            name, entries = random.choice(list(GOOD)), GOOD
        if not (commits := random.random() < 0.9):
            wrong_ones.append(name)
        entry = random.choice(entries[name])
        edits.append((name, entry, commits, random.choice(PAUSES)))
        if entries is GOOD and random.random() < 0.3:  # back and forth, faster than the server
            back = next(each for each in GOOD[name] if each != entry)
            edits += [(name, back, True, 0), (name, entry, True, SETTLED)]
    last = [(name, entries[0], True, 50) for name, entries in GOOD.items()]
    start = {name: entries[0] for name, entries in GOOD.items() if name != "stragglers"}
    page = reader().open(f"{explored}?{urlencode(start)}")
    page.driver.set_script_timeout(5 * PATIENCE)  # a busy machine answers each edit late
    kept, seen, dim, wrong = page.driver.execute_async_script(EDIT, [*edits, *last], SETTLED)
    for told in kept:
        entries, title, makespan, end = json.loads(told)
        study = compare_with_ring(from_query(entries))
        one = study.cases[0]
        assert (title, float(makespan)) == (study.title, one.row.makespan_s), entries
        assert end == max(bar.end for bar in bars_of(one.prediction)) * 1e3, entries
    assert start.items() <= json.loads(seen)[0].items()
    assert min(len(kept) - 15, dim - 50, wrong - 20) > 0, "too few frames were recorded"
    assert page.complaints() == []
