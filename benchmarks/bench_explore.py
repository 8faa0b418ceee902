"""How soon `ringloom explore` redraws everything at 64 ranks: planning, predicting, drawing.

    python benchmarks/bench_explore.py --quick      three schedules, on the server's side
    python benchmarks/bench_explore.py              all, and judged
    python benchmarks/bench_explore.py --browser    until the pictures are painted, in Chromium

new     a length that was not shown before: planned, proved and predicted afresh, as is the ring
again   other hardware: predicted afresh from plans that are known
"""

import argparse
import json
import statistics
import subprocess
import sys
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

from planner.schedules import SCHEDULES

RANKS, LIMIT, ROUNDS = 64, 0.3, 5  # ranks, seconds, repetitions
MACHINES = "h100", "a100-nvlink", "h200", "b200", "h800", "a100-pcie"
QUICK = ("ring", "zigzag", "balanced")

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
    table = Table("schedule", "new", "again", title=f"seconds to redraw, {RANKS} ranks", box=None)
    slow = []
    for schedule in QUICK if asked.quick else SCHEDULES:
        new, again = in_browser(schedule) if asked.browser else on_server(schedule)
        table.add_row(schedule, f"{new:.3f}", f"{again:.3f}")
        slow += [schedule] if max(new, again) > LIMIT else []
    Console().print(table)
    if slow:
        print(f"over {LIMIT} s: {', '.join(slow)}")
    return int(bool(slow) and not asked.quick)


LENGTHS = count(1)  # each is shown once, whatever the schedule, for the ring beside it


def on_server(schedule: str) -> tuple[float, float]:
    """Medians of redrawing a new length, and of redrawing for other hardware."""
    view = View()
    view.show(Choices(schedule=schedule, ranks=RANKS))

    def redraw(**changed: Any) -> float:
        began = thread_time()  # whatever else this machine does
        view.show(Choices(schedule=schedule, ranks=RANKS, **changed))
        return thread_time() - began

    new = [redraw(seq=str((1 << 18) + RANKS * next(LENGTHS))) for _ in range(ROUNDS)]
    again = [redraw(hardware=MACHINES[n]) for n in range(ROUNDS)]
    return statistics.median(new), statistics.median(again)


def in_browser(schedule: str) -> tuple[float, float]:
    """The same, from a choice in the page to the painted pictures."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    command = [sys.executable, "-m", "ringloom.cli", "explore", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        driver = webdriver.Chrome(
            options=options, service=webdriver.ChromeService("/usr/bin/chromedriver")
        )
        try:
            driver.set_script_timeout(60)
            driver.get(f"{url}?schedule={schedule}&ranks={RANKS}")
            ready = "return document.documentElement.dataset.ready"
            while not driver.execute_script(ready):
                sleep(0.1)
            lengths = [str((1 << 18) + RANKS * n) for n in range(1, ROUNDS + 1)]
            new = [driver.execute_async_script(CHANGE, "tokens", n) for n in lengths]
            again = [driver.execute_async_script(CHANGE, "hardware", m) for m in MACHINES[:ROUNDS]]
        finally:
            driver.quit()
            server.terminate()
    return statistics.median(new), statistics.median(again)


if __name__ == "__main__":
    sys.exit(main())
