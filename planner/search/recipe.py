"""Recipes: short texts that rebuild a plan.

recipe ::= NAME(":" KEY "=" VALUE)* (" --trim blocks")? (" --by-rows")?

    usp:ulysses=4                                   a named schedule
    found:layout=pieces:grain=4096:slices=1-3-4     a plan of `ringloom.planner.search`

The recipe of a found plan gives the layout of tokens and the movement of keys; its keys are the
fields of `FoundRecipe`, without defaults.
"""

from dataclasses import MISSING, dataclass, fields
from typing import Literal

from ringloom.planner.errors import PlanError, brief, unknown
from ringloom.planner.given import require_integer
from ringloom.planner.layouts import BY_MASK, LAYOUTS, canonical_layout
from ringloom.planner.parse import parse_schedule
from ringloom.planner.passes.adjoint import KEEPABLE
from ringloom.planner.planning import PASS_PIPELINES, Trim, find_schedule
from ringloom.planner.schedules import recorded_name

FOUND = "found"
TRIM, BY_ROWS = " --trim ", " --by-rows"
SEARCHED_LAYOUTS = ("pieces", "work")  # layouts of a search: pieces of tokens, or of work
Rows = Literal["whole", "packed", "edges"]
ROW_GROUPINGS: tuple[Rows, ...] = "whole", "packed", "edges"


@dataclass(frozen=True, slots=True)
class FoundRecipe:
    """The choices that define a found plan. Raises PlanError for invalid choices."""

    layout: str = "pieces"  # or "work", or a layout by its name
    grain: int = 0  # tokens of a piece; for "work", percent of a rank's share
    rows: Rows = "packed"  # or "edges", or "whole": see `ringloom.planner.search.parts`
    slices: tuple[int, ...] = (1,)  # KV heads of each slice, or a number of equal slices
    relay: int = 0  # ranks per node, if keys enter each node once; 0: no relays
    own: int = 0  # rows that attend own keys first: 1: all rows; 2: rows without other keys
    offload: int = 0  # tokens of the pieces of queries that run on other ranks; 0: no offload
    keep: tuple[str, ...] | None = None  # backward pass: tensors that the forward pass leaves

    def __post_init__(self) -> None:
        names = [*SEARCHED_LAYOUTS, *LAYOUTS, *BY_MASK]
        if self.layout not in names:
            raise PlanError(unknown("layout of a found plan", self.layout, names))
        if self.rows not in ROW_GROUPINGS:
            raise PlanError(unknown("rows of a found plan", self.rows, ROW_GROUPINGS))
        if self.layout in SEARCHED_LAYOUTS and self.grain < 1:
            raise PlanError(f"layout={self.layout} of a found plan needs a positive grain")
        if not self.slices or min(self.slices) < 1:
            raise PlanError(f"slices of a found plan must be positive, not {self.slices}")
        if self.own not in (0, 1, 2):
            raise PlanError(f"own= of a found plan must be 0, 1 or 2, not {self.own}")
        if unknown_tensors := [t for t in self.keep or () if t not in KEEPABLE]:
            raise PlanError(unknown("tensor to keep", unknown_tensors[0], KEEPABLE))

    def __str__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        defaults = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        text = (f":{k}={_text(v)}" for k, v in values.items() if k == "layout" or v != defaults[k])
        return f"{FOUND}{''.join(text)}"

    @classmethod
    def of(cls, parameters: dict[str, int | str]) -> "FoundRecipe":
        """Builds a recipe from the parameters that `ringloom.planner.parse` returns."""
        defaults = {f.name: f.default for f in fields(cls)}
        choices = dict[str, object]()
        for key, value in parameters.items():
            if key not in defaults:
                raise PlanError(unknown("parameter of a found plan", key, defaults))
            if key == "keep":
                choices[key] = tuple(t for t in str(value).split("+") if t != "none")
            elif key == "slices":
                choices[key] = tuple(_number(key, part) for part in str(value).split("-"))
            elif key in ("layout", "rows"):
                choices[key] = canonical_layout(str(value)) if key == "layout" else str(value)
            else:
                choices[key] = (
                    require_integer(key, value) if isinstance(value, int) else _number(key, value)
                )
        return cls(**choices)  # type: ignore[arg-type]


def _text(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    names = [str(v) for v in value]
    return "-".join(names) if any(isinstance(v, int) for v in value) else "+".join(names) or "none"


def _number(key: str, text: object) -> int:
    if not str(text).isdecimal():
        raise PlanError(f"{key} of a found plan takes whole numbers, not {brief(text)}")
    return int(str(text))


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choices that rebuild a plan; `str(recipe)` and `Recipe.parse(text)` convert."""

    schedule: str | FoundRecipe
    trim: Trim = "messages"
    by_rows: bool = False

    def __str__(self) -> str:
        trim = "" if self.trim == "messages" else f"{TRIM}{self.trim}"
        return f"{self.schedule}{trim}{BY_ROWS * self.by_rows}"

    @classmethod
    def parse(cls, text: str) -> "Recipe":
        """Parses the text of a recipe; raises PlanError for an unknown name or parameter."""
        if not isinstance(text, str):
            raise PlanError(f"a recipe must be a string such as 'usp:ulysses=4', not {brief(text)}")
        remainder = text.strip()
        by_rows = remainder.endswith(BY_ROWS)
        remainder, _, text = remainder.removesuffix(BY_ROWS).partition(TRIM)
        selected: Trim = "messages"
        for trim in PASS_PIPELINES:
            selected = trim if text.strip() == trim else selected
        if text and text.strip() != selected:
            raise PlanError(unknown("trim", text, PASS_PIPELINES))
        name, parameters = parse_schedule(remainder := recorded_name(remainder))
        if name != FOUND:
            find_schedule(remainder)
            return cls(remainder, selected, by_rows)
        if text or by_rows:
            raise PlanError(f"{brief(text)}: a found plan takes neither --trim nor --by-rows")
        return cls(FoundRecipe.of(parameters))

    @property
    def family(self) -> str:
        """The name of the schedule; "offload" or "found" for found plans."""
        if isinstance(self.schedule, str):
            return find_schedule(self.schedule)[0].name
        return "offload" if self.schedule.offload else FOUND
