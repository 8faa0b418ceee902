"""frames(loops)   the steps of a pass as they are printed: loops, and steps of their own."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from codegen.lowered.conditions import AXES, SIZES, Domain
from codegen.lowered.shares import apart
from codegen.text import Data, Names
from planner.loops.form import Exchange, Loops, Return, Send, Statement


@dataclass(frozen=True)
class Frame(Domain):
    """Some steps of a section, printed as a loop or, if it is one step, straight."""

    statements: tuple[Statement, ...]  # some that run in them

    @property
    def loop(self) -> bool:
        """True for several steps."""
        return len(self.steps) > 1


def frames(loops: Loops, data: Data) -> Iterator[Frame]:
    """The steps of a program in the pieces in which they are printed."""
    for section in loops.sections():
        steps = range(section.first, section.last + 1)
        last = max((t for t in steps if _busy(loops, t)), default=section.first)
        for first, end in pairwise([section.first, *range(last + 1, steps.stop + 1)]):
            yield from (_frame(loops, data, *part) for part in apart(loops, range(first, end)))


def _frame(loops: Loops, data: Data, steps: range, statements: tuple[Statement, ...]) -> Frame:
    again = any(s.again for s in statements if isinstance(s, Exchange))
    axes, at = len(loops.mesh), steps[0]
    sizes = {} if again else dict(zip(loops.mesh, SIZES[axes], strict=True))
    names = Names(AXES[axes], at, None if len(steps) > 1 else at, sizes, data=data)
    return Frame(loops, steps, names, statements)


def _busy(loops: Loops, t: int) -> bool:
    running = (s for s in loops.statements if s.when.on(t))
    return any(not (isinstance(s, Send | Return) and s.sums) for s in running)
