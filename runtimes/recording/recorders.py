"""record(plan, q, k, v)   run plans as `runtimes.backends.run` does, and return their events.

numpy   virtual ranks, which take turns on one processor
torch   the emitted program, watched from outside
"""

from functools import partial
from importlib import import_module
from typing import Any

from planner.errors import RingloomError
from planner.plans import AnyPlans
from runtimes.arrays import Array
from runtimes.backends import executor, run
from runtimes.recording.events import Recorded

RECORDERS = {"numpy": "runtimes.reference.oracle", "torch": "runtimes.recording.of_torch"}


def record(
    plan: AnyPlans, *arrays: Array, backend: str = "torch", sinks: Array | None = None, **more: Any
) -> tuple[Any, list[Recorded]]:
    """Returns the results of `run`, and the events, pass by pass; `more` goes to the backend.

    Raises RingloomError as `run` does, and for a backend whose runs cannot be recorded.
    """
    if backend not in RECORDERS:
        executor(backend)  # refuses the unknown
        raise RingloomError(
            f"a {backend} run cannot be recorded: its ranks are parts of one compiled program,"
            f" which does not say what each did when; backends that can: {', '.join(RECORDERS)}"
        )
    log = list[Recorded]()
    execute = partial(import_module(RECORDERS[backend]).execute, log=log, **more)
    return run(plan, *arrays, sinks=sinks, backend=execute), log
