"""Seconds that `ringloom explore` takes to redraw 64 ranks: planning, predicting, drawing.

    python benchmarks/bench_explore.py --quick      two schedules, on the server's side
    python benchmarks/bench_explore.py              all, and judged
    python benchmarks/bench_explore.py --browser    until the pictures are painted, in Chromium;
                                                    and until the page says that it is at work

schedule  after the ring: planned, verified and predicted from nothing
seq       another length, of the ring beside it too
hardware  predicted afresh from plans that are known
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, cycle
from time import sleep, thread_time
from typing import Any

from rich.console import Console
from rich.table import Table

try:
    from ringloom.explore.choices import Choices
    from ringloom.explore.view import View
except ImportError as missing:
    sys.exit(
        f"bench_explore: {missing.name} is missing: pip install -c constraints.txt -e '.[app]'"
    )

from ringloom.planner.schedules import SCHEDULES

RANKS, LIMIT, ROUNDS = 64, 0.3, 5  # ranks, seconds, repetitions
PAINTED, SIGN, TURNS = 0.5, 0.1, 2  # seconds in a browser, until there is a sign; repetitions there
LENGTHS = map(str, count((1 << 18) + RANKS, RANKS))  # each is shown once
MACHINES = "h100", "a100-nvlink", "h200", "b200", "h800", "a100-pcie"
QUICK = ("ring", "zigzag")
CHANGED = "schedule", "seq", "hardware"

# Sets a control, and waits until the pictures of the last answer, which is the new address, are
# painted. Tells the seconds until then, and until the page said what it does.
CHANGE = """
const [name, value, done] = arguments
const models = [...Bokeh.documents[0]._all_models.values()], began = performance.now()
const passed = () => (performance.now() - began) / 1000
const working = document.getElementById("working")
let sign = null
new MutationObserver((_, seen) => {
  if (working.textContent) { sign = passed(); seen.disconnect() }
}).observe(working, {childList: true, subtree: true})
const address = models.find((m) => m.properties.search && m.properties.pathname)
address.properties.search.change.connect(function answered() {
  address.properties.search.change.disconnect(answered)
  requestAnimationFrame(() => setTimeout(() => done([passed(), sign])))
})
const field = document.querySelector(`[data-control=${name}] :is(input, select)`)
field.value = value
field.dispatchEvent(new Event("change", {bubbles: true}))
"""


def main() -> int:
    """Measure, print, and in full mode judge the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer schedules, nothing judged")
    parser.add_argument("--browser", action="store_true", help="through Chromium; needs selenium")
    asked = parser.parse_args()
    names = QUICK if asked.quick else tuple(SCHEDULES)
    taken = in_browser(names) if asked.browser else {name: on_server(name) for name in names}
    columns = *CHANGED, *["sign"] * asked.browser
    limits = *[PAINTED if asked.browser else LIMIT] * 3, SIGN
    table = Table("to", *columns, title=f"seconds to redraw, {RANKS} ranks", box=None)
    for name, each in taken.items():
        table.add_row(name, *(f"{seconds:.3f}" for seconds in each))
    Console().print(table)
    slow = [
        n for n, each in taken.items() if any(a > b for a, b in zip(each, limits, strict=False))
    ]
    if slow:
        print(f"over {', '.join(f'{limit} s' for limit in sorted({*limits}))}: {', '.join(slow)}")
    return int(bool(slow) and not asked.quick)


def redraw(view: View, **choices: Any) -> float:
    """Seconds of this thread, whatever else this machine does."""
    began = thread_time()
    chosen = Choices(ranks=RANKS, **choices)
    view.show_plan(chosen)
    view.show_times(chosen)
    return thread_time() - began


def on_server(schedule: str) -> tuple[float, ...]:
    """Medians of drawing a schedule after the ring, for another length and for other hardware."""
    view, lengths = View(), [next(LENGTHS) for _ in range(2 * ROUNDS)]
    redraw(view, schedule="ring")
    switched = list[float]()
    for length in lengths[:ROUNDS]:  # as if the schedule had never been planned
        redraw(view, schedule="ring", seq=length)
        switched.append(redraw(view, schedule=schedule, seq=length))
    tokens = [redraw(view, schedule=schedule, seq=length) for length in lengths[ROUNDS:]]
    hardware = [redraw(view, schedule=schedule, hardware=n) for n in MACHINES[:ROUNDS]]
    return tuple(map(statistics.median, (switched, tokens, hardware)))


def in_browser(names: Sequence[str]) -> dict[str, list[float]]:
    """The same, from a choice in the page to the painted pictures, and the sign of any of them."""
    taken = defaultdict[str, list[list[float]]](list)
    shown, machines = "burst", cycle(MACHINES)
    with page(f"?ranks={RANKS}&hardware={MACHINES[-1]}&schedule={shown}") as change:
        for turn in range(TURNS):
            for name in (*names[turn:], *names[:turn]):
                before = "zigzag" if name == "ring" else "ring"
                if before != shown:  # else nothing would answer
                    change("schedule", before)
                shown = name
                values = name, next(LENGTHS), next(machines)
                answers = [change(*one) for one in zip(CHANGED, values, strict=True)]
                seconds, signs = zip(*answers, strict=True)
                taken[name].append([*seconds, max(signs)])
    return {
        name: list(map(statistics.median, zip(*rows, strict=True))) for name, rows in taken.items()
    }


@contextmanager
def page(query: str) -> Iterator[Callable[[str, Any], list[float]]]:
    """A server and Chromium on its page; what changes a control and returns the seconds it took."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    command = [sys.executable, "-m", "ringloom", "explore", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        driver = webdriver.Chrome(
            options=options, service=webdriver.ChromeService("/usr/bin/chromedriver")
        )
        try:
            driver.set_script_timeout(60)
            driver.get(f"{url}{query}")
            while not driver.execute_script("return document.documentElement.dataset.ready"):
                sleep(0.1)
            yield partial(driver.execute_async_script, CHANGE)
        finally:
            driver.quit()
            server.terminate()


if __name__ == "__main__":
    sys.exit(main())
