"""Functions of a program that both passes share, each written once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from planner.errors import PlanError


@dataclass
class Definitions:
    """The functions of a program by their names."""

    functions: dict[str, list[str]] = field(default_factory=dict)

    def define(self, name: str, lines: Sequence[str]) -> str:
        """The name of a function of these lines, whose first one has NAME in it."""
        for n in ("", "_backward", *(f"_{i}" for i in range(3, 20))):
            body = [line.replace("NAME", name + n, 1) for line in lines[:1]] + [*lines[1:]]
            if self.functions.setdefault(name + n, body) == body:
                return name + n
        raise PlanError(f"too many functions {name}")

    def lines(self) -> Iterator[str]:
        """All of them, two empty lines before each."""
        for body in self.functions.values():
            yield from ("", "", *body)
