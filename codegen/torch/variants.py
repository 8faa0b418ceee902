"""Variant(name, keeping=...)   a part of which some lines are there for some programs only.

Such a line ends in a mark, as in `first = 0  # windows`: it is left out unless `keeping` has it.
"""

import re
from dataclasses import dataclass

from codegen.assemble import Part

MARKED = re.compile(r"(.*)  # (windows|backward)\n")


@dataclass(frozen=True)
class Variant(Part):
    """A part whose marked lines are left out, but for those that it is `keeping`."""

    keeping: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """Its source, without the marks."""
        return MARKED.sub(lambda m: f"{m[1]}\n" if m[2] in self.keeping else "", super().text)
