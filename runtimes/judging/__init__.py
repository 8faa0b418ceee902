"""Judges emitted files, which are not believed: they only compute.

    claims      what a file says of itself, read without executing it
    case        inputs, shards at the file's positions, which queries are compared
    on_torch    ranks that execute a torch program
    on_jax      a process that executes a JAX program
    verdict     results against dense attention
    pairs       the first pair that is attended wrongly
    process     the process that does all this

A file is executed in processes with limits of time and memory, which end as a whole. They answer
with arrays; what is exact is decided in a process of our own and told through a pipe that they do
not have. This is no sandbox: the file runs as its user.
"""

import json
import os
import pickle
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.verdict import Track, Verdict
from ringloom.runtimes.machine import ended
from ringloom.runtimes.process_tree import tree

MAIN = "from ringloom.runtimes.judging.process import main; main()"
LOOK = 0.2  # seconds between looks at the clock


def judge(case: Case, seconds: float, track: Track) -> Verdict:
    """Judges a program in at most `seconds`; nothing of it runs afterwards.

    `track(stage, done, of)` is called several times a second, with `of` = 0 where the end of a
    stage is not known. Raises RingloomError where the program does not take the length.
    """
    path = os.pathsep.join(filter(None, [_root(), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="ringloom-", ignore_cleanup_errors=True) as folder:
        Path(folder, "case.pickle").write_bytes(pickle.dumps(case))
        told, tell = os.pipe()
        with os.fdopen(told, "rb", buffering=0) as pipe:
            try:
                command = [sys.executable, "-P", "-c", MAIN, folder, str(tell)]
                started = tree(
                    command,
                    memory=case.memory,
                    pass_fds=[tell],
                    env=os.environ | {"PYTHONPATH": path},
                    streams=subprocess.DEVNULL,
                )
                with started as process:
                    os.close(tell)
                    return _verdict(process, pipe.fileno(), seconds, track)
            finally:
                with suppress(OSError):
                    os.close(tell)


def _root() -> str:
    return str(Path(__file__).parents[2])


def _verdict(
    process: "subprocess.Popen[bytes]", pipe: int, seconds: float, track: Track
) -> Verdict:
    """Listens to the judging process until it has a verdict, or ended, or time is over."""
    end, text, stage = time.monotonic() + seconds, b"", ("starting", 0, 0)
    while (left := end - time.monotonic()) > 0:
        track(*stage)
        if not select.select([pipe], [], [], min(left, LOOK))[0]:
            continue
        if not (read := os.read(pipe, 1 << 16)):
            how = ended(process.wait())
            return Verdict(False, f"the judging process ended ({how}): {stage[0]}")
        *lines, text = (text + read).split(b"\n")
        for message in map(json.loads, lines):
            if "refused" in message:
                raise RingloomError(message["refused"])
            if "verdict" in message:
                return Verdict(**message["verdict"])
            stage = message["stage"]
    return Verdict(False, f"not done after {seconds:g} s: {stage[0]}")
