"""Judges emitted files without trusting them: a file only computes results.

    claims      reads a file's statements about itself without executing it
    case        draws inputs, cuts shards at the file's positions, selects queries to compare
    on_torch    executes a torch program on ranks
    on_jax      executes a JAX program in a process
    verdict     compares results with dense attention
    pairs       names the first pair with a wrong weight
    process     is the process that does all this

A file runs in processes with limits on time and memory, which are killed together. They return
arrays; a separate process decides whether these are exact, and reports through a pipe to which
the file has no access. This is no sandbox: the file runs with its user's permissions.
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
    """Judges a program in at most `seconds`; none of its processes survives.

    Calls `track(stage, done, of)` several times a second, with `of` = 0 if the length of a stage is
    unknown. Raises RingloomError if the program does not support the sequence length.
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
    """Returns the verdict of the judging process, or one that says that it ended or is late."""
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
