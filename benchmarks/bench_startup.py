"""Seconds until ringloom says hello, over those that Python takes to import numpy.

    python benchmarks/bench_startup.py [--quick]

Every process is a fresh one; ratios are medians of processor time over rounds, so that a busy or a
slow machine changes neither side more than the other.
"""

import argparse
import os
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table
from rounds import Times, in_rounds, ratio

LIMIT = 3.0  # times as long as importing numpy
NUMPY = "import numpy"
COMMAND = "from ringloom.cli import main; raise SystemExit(main(['{}']))"
RIVALS = {
    "ringloom --version": COMMAND.format("--version"),
    "ringloom --help": COMMAND.format("--help"),
    "import ringloom": "import ringloom",
    NUMPY: NUMPY,
}


def run(name: str) -> Times:
    """Seconds of a fresh process: on the wall, of its processors."""
    wall, before = time.perf_counter(), os.times()
    command = [sys.executable, "-c", RIVALS[name]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    user = after.children_user - before.children_user
    return time.perf_counter() - wall, user + after.children_system - before.children_system


def main() -> int:
    """Print a table; 1 if a full run misses the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no verdict")
    quick = parser.parse_args().quick
    times = in_rounds(run, RIVALS, 3 if quick else 21)
    ratios = {name: ratio(times[name], times[NUMPY])[1] for name in RIVALS if name != NUMPY}
    table = Table("start of", "over importing numpy", "limit", box=None)
    for name, times_numpy in ratios.items():
        table.add_row(name, f"{times_numpy:.2f}", f"{LIMIT:g}")
    Console().print(table)
    return int(max(ratios.values()) > LIMIT and not quick)


if __name__ == "__main__":
    sys.exit(main())
