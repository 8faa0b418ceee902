"""The table of schedules by name, their plain names, and the decorator that adds one."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, get_args, get_origin, overload

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.ir import Plan
from ringloom.planner.schedules.variants import once
from ringloom.planner.workload import Workload

Build = TypeVar("Build", bound=Callable[..., Plan])


@dataclass(frozen=True)
class Schedule:
    """A named recipe: `build(work, ranks, pass_, **parameters)` ignores the mask.

    `variants(work, ranks, node)` are the parameters that a comparison tries when no schedule is
    named. `classic` marks those that most people know, and that examples show.
    """

    name: str
    build: Callable[..., Plan]
    travels: str
    path: str
    paper: str
    variants: Callable[[Workload, int, int], Iterable[str]] = once
    classic: bool = True

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.travels} over {self.path}>"

    @property
    def parameters(self) -> dict[str, int | str]:
        """Keyword parameters with their defaults."""
        signature = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}

    def check(self, given: dict[str, int | str]) -> None:
        """Raise PlanError for a parameter that this schedule does not have, or of a wrong value."""
        known, signature = self.parameters, inspect.signature(self.build, eval_str=True)
        for name, value in given.items():
            if name not in known:
                have = ", ".join(known) or "none"
                raise PlanError(
                    f"{self.name} has no parameter {brief(name)}; its parameters: {have}"
                )
            if type(value) is not type(known[name]):
                kind = "a whole number" if isinstance(known[name], int) else "a word"
                raise PlanError(f"{self.name}:{name} takes {kind}, not {brief(value)}")
            form = signature.parameters[name].annotation
            if get_origin(form) is Literal and value not in get_args(form):
                allowed = " or ".join(map(str, get_args(form)))
                raise PlanError(f"{self.name}:{name} is {allowed}, not {brief(value)}")


SCHEDULES: dict[str, Schedule] = {}
PLAIN_NAMES = {  # accepted wherever a schedule is named; plans record the other name
    "balanced": "distflash",
    "groups": "ring-per-document",
    "group-cast": "sparse-gather",
    "llama3": "headwise-allgather",
}
RECORDED_NAMES = {plain: name for name, plain in PLAIN_NAMES.items()}


def recorded_name(text: str) -> str:
    """Returns a schedule's text as plans record it: balanced:late=1 for distflash:late=1."""
    name, colon, parameters = text.strip().partition(":")
    known = name if name in SCHEDULES else RECORDED_NAMES.get(name, name)
    return f"{known}{colon}{parameters}"


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
    schedule. The function ignores the mask; `plan` applies it, and verifies the result. Raises
    PlanError for a name that a schedule of another module has.
    """
    if build is None:
        return partial(schedule, travels=travels, path=path, paper=paper)
    if not callable(build):
        raise PlanError(f"schedule takes a function, whose name it has, not {brief(build)}")
    known = SCHEDULES.get(build.__name__)
    if known and getattr(known.build, "__module__", "") != build.__module__:
        raise PlanError(f"{known} is there already: give the function another name")
    SCHEDULES[build.__name__] = Schedule(build.__name__, build, travels, path, paper)
    return build
