"""The table of schedules by name, their plain names, and the decorator that registers one."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, get_args, get_origin, overload

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.ir import Plan
from ringloom.planner.schedules.variants import plain
from ringloom.planner.workload import Workload

Build = TypeVar("Build", bound=Callable[..., Plan])


@dataclass(frozen=True)
class Schedule:
    """A named recipe: `build(work, ranks, pass_, **parameters)` ignores the mask.

    `variants(work, ranks, node)` yields the parameters that a comparison tries if no schedule is
    named. `classic` marks the best-known schedules, which examples show.
    """

    name: str
    build: Callable[..., Plan]
    travels: str
    path: str
    paper: str
    variants: Callable[[Workload, int, int], Iterable[str]] = plain
    classic: bool = True

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.travels} over {self.path}>"

    @property
    def parameters(self) -> dict[str, int | str]:
        """Keyword parameters with their defaults."""
        signature = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}

    def check(self, given: dict[str, int | str]) -> None:
        """Raise PlanError for an unknown parameter or an invalid value."""
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
                raise PlanError(f"{self.name}:{name} must be {allowed}, not {brief(value)}")


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

    A decorator. `ringloom schedules` shows its arguments: the tensors that travel, their path, and
    the paper. Keyword parameters with defaults become parameters of the schedule. The function
    ignores the mask; `plan` applies it and verifies the result. Raises PlanError if another module
    has registered the name.
    """
    if build is None:
        return partial(schedule, travels=travels, path=path, paper=paper)
    if not callable(build):
        raise PlanError(f"schedule decorates a function, not {brief(build)}")
    known = SCHEDULES.get(build.__name__)
    if known and getattr(known.build, "__module__", "") != build.__module__:
        raise PlanError(f"a schedule named {build.__name__} is already registered: {known}")
    SCHEDULES[build.__name__] = Schedule(build.__name__, build, travels, path, paper)
    return build
