"""The judging process: draws inputs, executes a program on ranks, and compares the results.

It writes a JSON object per line to a pipe that ranks cannot access: {"stage": [name, done, total]},
and finally {"verdict": {...}} or {"refused": sentence}.
"""

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ringloom.codegen import mask_tables, save_tables
from ringloom.planner.errors import RingloomError
from ringloom.planner.planning import plan
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.pairs import first_wrong_pair
from ringloom.runtimes.judging.verdict import Track, Verdict, compare
from ringloom.runtimes.machine import RankError, serve


def main() -> None:
    """Judges the case in a folder and writes to a pipe, both named on the command line."""
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(number, False)
    case: Case = pickle.loads((folder / "case.pickle").read_bytes())
    if case.target == "torch":  # the server imports torch while this process does, too
        serve("ringloom.runtimes.judging.on_torch")
    tempfile.tempdir = str(folder)  # the parent deletes this folder
    with os.fdopen(number, "w") as pipe:

        def send(**message: Any) -> None:
            pipe.write(f"{json.dumps(message)}\n")
            pipe.flush()

        try:
            send(verdict=asdict(run_and_compare(case, folder, lambda *stage: send(stage=stage))))
        except RingloomError as error:
            send(refused=str(error))
        except MemoryError as error:
            send(refused=f"the comparison needs more memory: {error}")


def run_and_compare(case: Case, folder: Path, track: Track) -> Verdict:
    """Returns the verdict on a program; raises RingloomError if it does not support the length."""
    track(f"importing {case.target}", 0, 0)
    runtime = import_module(f"ringloom.runtimes.judging.on_{case.target}")
    if case.dynamic and case.target == "torch":
        plans = plan("zigzag", case.work, case.ranks, pass_="both")
        save_tables(mask_tables(plans, "torch"), str(folder / "tables.npz"))
    inputs = case.inputs()
    track(f"attention of {case.work.seq} tokens on {case.ranks} ranks", 0, 0)

    def run(inputs: Sequence[Array]) -> Sequence[Sequence[Array]]:
        parts: Sequence[Sequence[Array]] = runtime.run(case, inputs, folder, case.deadline)
        return parts

    try:
        parts = run(inputs)
        verdict = compare(case, inputs, parts, track)
        if verdict.exact or not verdict.errors:
            return verdict
        track("locating the wrong pair", 0, 0)
        q, kv = ([results[side] for results in parts] for side in (-2, -1))
        return replace(verdict, fault=first_wrong_pair(case, q, kv, run))
    except (RingloomError, MemoryError):
        raise
    except RankError as error:
        return Verdict(False, str(error))
    except Exception as error:  # a hostile file may return any arrays
        return Verdict(False, f"the results of the ranks cannot be read: {error!r:.400}")
