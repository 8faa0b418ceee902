"""frames(loops)   the steps of a pass as they are printed: loops, and steps of their own."""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.loops.form import Loops, Return, Section, Send


@dataclass(frozen=True)
class Frame:
    """Some steps of a section, printed as a loop or, if it is one step, straight."""

    first: int
    last: int
    section: Section

    @property
    def steps(self) -> range:
        """Its steps."""
        return range(self.first, self.last + 1)

    @property
    def loop(self) -> bool:
        """True for several steps."""
        return self.last > self.first


def frames(loops: Loops) -> Iterator[Frame]:
    """The steps of a program in the pieces in which they are printed."""
    for section in loops.sections():
        busy = [t for t in range(section.first, section.last + 1) if _busy(loops, section, t)]
        last = max(busy, default=section.first)
        yield Frame(section.first, last, section)
        yield from (Frame(t, t, section) for t in range(last + 1, section.last + 1))


def _busy(loops: Loops, section: Section, t: int) -> bool:
    running = (s for s in section.statements if s.when.on(t))
    return any(not (isinstance(s, Send | Return) and s.sums) for s in running)
