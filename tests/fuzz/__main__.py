"""Runs fuzzers: `python -m fuzz --seconds 60`, or `--number 100000`; exits with 1 on a finding.

Cases are judged in a process that may take 512 MiB more than it begins with; what stops it without
a word, or for half a minute, is a finding, too. `--only plan --first 17 --number 1` tries one case
again and shows it.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy

from fuzz.judging import Outcome, case, judge
from fuzz.readers import READERS

MEMORY = 512 << 20  # bytes that a case may take
BATCH = 20  # cases of a reader before the next one's turn
LIFE = 20_000  # cases of a process
PATIENCE = 30  # seconds without an outcome
SHOWN = 3  # findings of a reader


def work(pipe: Connection, seed: int) -> None:
    """Judges the cases that come through a pipe."""
    with tempfile.TemporaryDirectory() as folder:
        for reader in READERS:
            judge(reader, 0, seed, Path(folder))  # loads what is loaded once
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        while True:
            reader, first, count = pipe.recv()
            for number in range(first, first + count):
                pipe.send(judge(reader, number, seed, Path(folder)))


class Worker:
    """A process that judges, and a new one after it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.left = seed, 0

    def judged(self, reader: str, first: int, count: int) -> list[Outcome]:
        """Returns the outcomes of some cases; a process that dies or hangs is the last one's."""
        if self.left <= 0:
            self.begin()
        self.left -= count
        self.pipe.send((reader, first, count))
        outcomes = list[Outcome]()
        try:
            while len(outcomes) < count:
                if not self.pipe.poll(PATIENCE):
                    raise EOFError("no outcome within half a minute")
                outcomes.append(self.pipe.recv())
        except (EOFError, ConnectionError) as error:
            said = f"the process ended or hung: {error!r}, exit code {self.process.exitcode}"
            outcomes.append(Outcome(reader, first + len(outcomes), False, 0.0, said))
            self.left = 0
        return outcomes

    def begin(self) -> None:
        self.end()
        self.pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=work, args=(other, self.seed), daemon=True)
        self.process.start()
        other.close()
        self.left = LIFE

    def end(self) -> None:
        if hasattr(self, "process"):
            self.process.kill()
            self.process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--number", type=int, help="cases of all readers, however long they take")
    parser.add_argument("--only", choices=[*READERS])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=2026)
    given = parser.parse_args()
    names = [given.only] if given.only else [*READERS]
    if given.number == 1:
        print(repr(case(names[0], given.first, given.seed))[:4000])
    share = -(-given.number // len(names)) if given.number else sys.maxsize
    begun, done = time.monotonic(), Counter[str]()
    accepted, slowest, findings = Counter[str](), Counter[str](), list[Outcome]()
    worker = Worker(given.seed)
    while min(done[name] for name in names) < share:
        for name in names:
            count = min(BATCH, share - done[name])
            for outcome in worker.judged(name, given.first + done[name], count):
                accepted[name] += outcome.accepted and not outcome.wrong
                slowest[name] = max(slowest[name], round(1000 * outcome.seconds))
                findings += [outcome] if outcome.wrong else []
                done[name] += 1
        if not given.number and time.monotonic() - begun > given.seconds:
            break
    worker.end()
    return told(names, done, accepted, slowest, findings, time.monotonic() - begun, given.seed)


def told(
    names: list[str],
    done: Counter[str],
    accepted: Counter[str],
    slowest: Counter[str],
    findings: list[Outcome],
    seconds: float,
    seed: int,
) -> int:
    """Prints the counts of each reader and its first findings; returns the exit status."""
    wrong = Counter(finding.reader for finding in findings)
    print(f"{'reader':12}{'cases':>9}{'accepted':>10}{'refused':>9}{'wrong':>7}{'slowest':>10}")
    for name in names:
        refused = done[name] - accepted[name] - wrong[name]
        row = f"{done[name]:9}{accepted[name]:10}{refused:9}{wrong[name]:7}"
        print(f"{name:12}{row}{slowest[name]:7} ms")
    print(f"{sum(done.values())} cases in {seconds:.0f} s, {len(findings)} wrong")
    for name in names:
        for finding in [f for f in findings if f.reader == name][:SHOWN]:
            where = f"--only '{name}' --first {finding.number} --number 1 --seed {seed}"
            print(f"\n== python -m fuzz {where}\n{finding.wrong[-1500:]}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
