"""schedule(build)   registers a function from a workload and ranks to a plan, by its name."""

from collections.abc import Callable
from typing import TypeVar, overload

from planner.ir import Plan
from planner.schedules import SCHEDULES, Schedule

Build = TypeVar("Build", bound=Callable[..., Plan])


@overload
def schedule(build: Build, /) -> Build: ...


@overload
def schedule(*, travels: str = "", path: str = "", paper: str = "") -> Callable[[Build], Build]: ...


def schedule(
    build: Build | None = None, /, *, travels: str = "", path: str = "", paper: str = ""
) -> Build | Callable[[Build], Build]:
    """Register `build(work, ranks, pass_, **parameters)` as a schedule of the function's name.

    A decorator; its arguments are shown by `ringloom schedules`: the tensors that travel, the
    paths they take, and the paper. Keyword parameters with defaults become parameters of the
    schedule. The function ignores the mask; `plan` applies it, and verifies the result.
    """

    def register(function: Build) -> Build:
        name = function.__name__
        SCHEDULES[name] = Schedule(name, function, travels, path, paper)
        return function

    return register if build is None else register(build)
