"""Judges emitted files without trusting them.

    claims      reads a file's statements about itself without executing it
    case        draws inputs, cuts shards at the file's positions, selects queries to compare
    on_torch    executes a torch program on ranks
    on_jax      executes a JAX program in a process
    verdict     compares results with dense attention
    pairs       names the first pair with a wrong weight
    process     is the judging process, which calls the other modules

A file runs in processes with limits on time and memory, which are killed together. They only return
arrays: a separate process decides whether the arrays are exact, and reports through a pipe to which
the file has no access. This is not a sandbox: the file runs with the user's permissions.
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
from ringloom.runtimes.machine import child_environment, describe_exit
from ringloom.runtimes.process_tree import tree

MAIN = "from ringloom.runtimes.judging.process import main; main()"
POLL = 0.2  # seconds between checks of the clock


def judge(case: Case, seconds: float, track: Track) -> Verdict:
    """Judges a program in at most `seconds`; none of its processes survives.

    Calls `track(stage, done, total)` several times a second, with `total` = 0 if the length of a
    stage is unknown. Raises RingloomError if the program does not support the sequence length.
    """
    with tempfile.TemporaryDirectory(prefix="ringloom-", ignore_cleanup_errors=True) as folder:
        Path(folder, "case.pickle").write_bytes(pickle.dumps(case))
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            try:
                command = [sys.executable, "-P", "-c", MAIN, folder, str(write_end)]
                judging = tree(
                    command,
                    memory=case.memory,
                    pass_fds=[write_end],
                    env=child_environment(),
                    streams=subprocess.DEVNULL,
                )
                with judging as process:
                    os.close(write_end)
                    return _read_verdict(process, pipe.fileno(), seconds, track)
            finally:
                with suppress(OSError):
                    os.close(write_end)


def _read_verdict(
    process: "subprocess.Popen[bytes]", pipe: int, seconds: float, track: Track
) -> Verdict:
    """Returns the verdict of the judging process, or a verdict that it ended or is late."""
    end, text, stage = time.monotonic() + seconds, b"", ("starting", 0, 0)
    while (remaining := end - time.monotonic()) > 0:
        track(*stage)
        if not select.select([pipe], [], [], min(remaining, POLL))[0]:
            continue
        if not (data := os.read(pipe, 1 << 16)):
            status = describe_exit(process.wait())
            return Verdict(False, f"the judging process ended ({status}): {stage[0]}")
        *lines, text = (text + data).split(b"\n")
        for message in map(json.loads, lines):
            if "refused" in message:
                raise RingloomError(message["refused"])
            if "verdict" in message:
                return Verdict(**message["verdict"])
            stage = message["stage"]
    return Verdict(False, f"not done after {seconds:g} s: {stage[0]}")
