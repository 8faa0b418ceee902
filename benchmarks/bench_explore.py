"""Seconds that `ringloom explore` takes to redraw 64 ranks: planning, predicting, drawing.

    python benchmarks/bench_explore.py --quick      two schedules, on the server's side
    python benchmarks/bench_explore.py              all, and judged
    python benchmarks/bench_explore.py --browser    until the pictures are painted, in Chromium

schedule  after the ring: planned, verified and predicted from nothing
tokens    another length, of the ring beside it too
hardware  predicted afresh from plans that are known
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
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

from planner.errors import RingloomError
from planner.schedules import SCHEDULES

RANKS, LIMIT, ROUNDS, STARTS = 64, 0.3, 5, 5  # ranks, seconds, repetitions, of a new server too
LENGTHS = map(str, count((1 << 18) + RANKS, RANKS))  # each is shown once
MACHINES = "h100", "a100-nvlink", "h200", "b200", "h800", "a100-pcie"
QUICK = ("ring", "zigzag")

# Sets the length or the hardware, and waits until the pictures of the last answer, which is the
# new address, are painted.
CHANGE = """
const [title, value, done] = arguments
const models = [...Bokeh.documents[0]._all_models.values()], began = performance.now()
const address = models.find((m) => m.properties.search && m.properties.pathname)
address.properties.search.change.connect(function answered() {
  address.properties.search.change.disconnect(answered)
  requestAnimationFrame(() => setTimeout(() => done((performance.now() - began) / 1000)))
})
const widget = models.find((m) => m.title === title || m.label === title)
widget.value = value
"""


def main() -> int:
    """Measure, print, and in full mode judge the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer schedules, nothing judged")
    parser.add_argument("--browser", action="store_true", help="through Chromium; needs selenium")
    asked = parser.parse_args()
    changed = "schedule", "tokens", "hardware"
    table = Table("to", *changed, title=f"seconds to redraw, {RANKS} ranks", box=None)
    slow, names = [], QUICK if asked.quick else tuple(filter(is_drawn, SCHEDULES))
    others = [name for name in names if name != "ring"]
    switched = switches_in_browser(others) if asked.browser else switches_on_server(others)
    for name in names:
        taken = in_browser(name) if asked.browser else on_server(name)
        taken = switched.get(name, 0.0), *taken
        table.add_row(name, *(f"{seconds:.3f}" if seconds else "" for seconds in taken))
        slow += [name] if max(taken) > LIMIT else []
    Console().print(table)
    if slow:
        print(f"over {LIMIT} s: {', '.join(slow)}")
    return int(bool(slow) and not asked.quick)


def is_drawn(schedule: str) -> bool:
    """Returns False for schedules of more tiles than the page draws: it refuses them."""
    try:
        redraw(View(), schedule=schedule)
    except RingloomError:
        return False
    return True


def redraw(view: View, **choices: Any) -> float:
    """Seconds of this thread, whatever else this machine does."""
    began = thread_time()
    chosen = Choices(ranks=RANKS, **choices)
    view.show_plan(chosen)
    view.show_times(chosen)
    return thread_time() - began


def switches_on_server(names: Sequence[str]) -> dict[str, float]:
    """Medians of drawing a schedule after the ring, as if it had never been planned."""
    taken, view = {name: list[float]() for name in names}, View()
    for length in (next(LENGTHS) for _ in range(ROUNDS)):
        for name in names:
            redraw(view, schedule="ring", seq=length)
            taken[name].append(redraw(view, schedule=name, seq=length))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def on_server(schedule: str) -> tuple[float, float]:
    """Medians of redrawing another length, and of redrawing for other hardware."""
    view = View()
    redraw(view, schedule=schedule)
    tokens = [redraw(view, schedule=schedule, seq=next(LENGTHS)) for _ in range(ROUNDS)]
    hardware = [redraw(view, schedule=schedule, hardware=n) for n in MACHINES[:ROUNDS]]
    return statistics.median(tokens), statistics.median(hardware)


def switches_in_browser(names: Sequence[str]) -> dict[str, float]:
    """The same, from a choice in the page to the painted pictures."""
    taken = {name: list[float]() for name in names}
    for start in range(STARTS):
        with page(f"?schedule=ring&ranks={RANKS}") as change:
            change("tokens", next(LENGTHS))
            for name in (*names[start:], *names[:start]):  # first ones are slow
                taken[name].append(change("schedule", name))
                change("schedule", "ring")
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def in_browser(schedule: str) -> tuple[float, float]:
    """The same, from a choice in the page to the painted pictures."""
    with page(f"?schedule={schedule}&ranks={RANKS}") as change:
        tokens = [change("tokens", next(LENGTHS)) for _ in range(ROUNDS)]
        hardware = [change("hardware", name) for name in MACHINES[:ROUNDS]]
    return statistics.median(tokens), statistics.median(hardware)


@contextmanager
def page(query: str) -> Iterator[Callable[[str, Any], float]]:
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
