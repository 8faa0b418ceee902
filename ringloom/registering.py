"""schedule(build)   registers a function from a workload and ranks to a plan, by its name."""

from collections.abc import Callable
from functools import partial
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
    if build is None:
        return partial(schedule, travels=travels, path=path, paper=paper)
    SCHEDULES[build.__name__] = Schedule(build.__name__, build, travels, path, paper)
    return build
