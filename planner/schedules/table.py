"""The table of schedules by name, their plain names, and a decorator that registers a schedule."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, get_args, get_origin, overload

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.ir import Plan
from ringloom.planner.schedules.variants import default_variant
from ringloom.planner.workload import Workload

Build = TypeVar("Build", bound=Callable[..., Plan])


@dataclass(frozen=True)
class Schedule:
    """A named function that builds plans: `build(work, ranks, pass_, **parameters)`.

    The function ignores the mask. `variants(work, ranks, node)` yields the parameters that a
    comparison tries by default. `classic` marks the best-known schedules, which examples show.
    """

    name: str
    build: Callable[..., Plan]
    travels: str
    path: str
    paper: str
    variants: Callable[[Workload, int, int], Iterable[str]] = default_variant
    classic: bool = True

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.travels} over {self.path}>"

    @property
    def parameters(self) -> dict[str, int | str]:
        """Keyword parameters with their defaults."""
        signature = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}

    def check(self, parameters: dict[str, int | str]) -> None:
        """Raises PlanError for an unknown parameter or an invalid value."""
        defaults, signature = self.parameters, inspect.signature(self.build, eval_str=True)
        for name, value in parameters.items():
            if name not in defaults:
                names = ", ".join(defaults) or "none"
                raise PlanError(
                    f"{self.name} has no parameter {brief(name)}; its parameters: {names}"
                )
            if type(value) is not type(defaults[name]):
                kind = "a whole number" if isinstance(defaults[name], int) else "a word"
                raise PlanError(f"{self.name}:{name} takes {kind}, not {brief(value)}")
            form = signature.parameters[name].annotation
            if get_origin(form) is Literal and value not in get_args(form):
                allowed = " or ".join(map(str, get_args(form)))
                raise PlanError(f"{self.name}:{name} must be {allowed}, not {brief(value)}")


SCHEDULES: dict[str, Schedule] = {}
PLAIN_NAMES = {  # accepted in place of the names that plans record
    "balanced": "distflash",
    "groups": "ring-per-document",
    "group-cast": "sparse-gather",
    "llama3": "headwise-allgather",
}
RECORDED_NAMES = {plain: name for name, plain in PLAIN_NAMES.items()}


def recorded_name(text: str) -> str:
    """Replaces a plain name by the name that plans record: balanced for distflash."""
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
    """Registers the decorated `build(work, ranks, pass_, **parameters)` as a schedule of its name.

    `ringloom schedules` shows the arguments of the decorator: the tensors that travel, their path,
    and the paper. Keyword parameters with defaults become parameters of the schedule. The function
    ignores the mask; `plan` applies the mask and verifies the result. Raises PlanError if another
    module has registered the name.
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
