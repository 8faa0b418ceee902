"""The table of backends that can run a plan: heavy libraries are imported when one is asked for.

A backend is `run(plan, q, k, v, dout=None)`, as in `runtimes.oracle`; one that can also return lse
has a row in WITH_LSE, `forward(plan, q, k, v) -> (out, lse)`, and one whose runs can be recorded
one in RECORDERS, `record(plan, q, k, v, dout=None) -> (results, [(plan, events)])`.
"""

import signal
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from planner.errors import PlanError

RUNTIMES = {
    "numpy": "runtimes.oracle:run",
    "jax": "runtimes.jax.mesh:run",
    "torch": "runtimes.torch.launch:run",
}
WITH_LSE = {
    "numpy": "runtimes.oracle:forward",
    "jax": "runtimes.jax.mesh:forward",
    "torch": "runtimes.torch.launch:forward",
}
RECORDERS = {
    "numpy": "runtimes.recording.of_numpy:record",
    "torch": "runtimes.recording.of_torch:record",
}


class RankError(RuntimeError):
    """A rank failed or stalled; the text holds its traceback where there is one."""


def ended(code: int) -> str:
    """How a process ended, by its exit code as Python has it."""
    return f"signal {-code}: {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"


def runtime(name: str) -> Callable[..., Any]:
    """The `run` function of a backend; raises PlanError, with what exists, for an unknown one."""
    if name not in RUNTIMES:
        raise PlanError(f"unknown backend {name!r}: choose one of {', '.join(RUNTIMES)}")
    return _named(RUNTIMES[name])


def forward_with_lse(name: str) -> Callable[..., Any] | None:
    """The function of a backend that returns (out, lse), or None where it has none."""
    return _named(WITH_LSE[name]) if name in WITH_LSE else None


def recorder(name: str) -> Callable[..., Any]:
    """The `record` function of a backend; raises PlanError for one whose ranks leave no spans."""
    if name in RUNTIMES and name not in RECORDERS:
        raise PlanError(
            f"a {name} run cannot be recorded: its ranks are parts of one compiled program, which"
            f" does not say what each did when; backends that can: {', '.join(RECORDERS)}"
        )
    return _named(RECORDERS[name]) if name in RECORDERS else runtime(name)


def _named(entry: str) -> Callable[..., Any]:
    module, function = entry.split(":")
    return cast(Callable[..., Any], getattr(import_module(module), function))
