"""imports   the import statements of a program, in the order that ruff's isort gives them."""

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

WIDTH = 100


class Import(NamedTuple):
    """`import source` has an empty `module`; `from module import source as alias`."""

    module: str
    source: str
    alias: str

    @property
    def name(self) -> str:
        """The name that is bound."""
        return self.alias or (self.source if self.module else self.source.split(".")[0])


def written(imports: Iterable[Import]) -> str:
    """Import statements: the standard library, a blank line, all others."""
    lines = sorted(set(imports), key=lambda i: (_is_foreign(i), *_place(i)))
    groups = [[*group] for _, group in groupby(lines, key=_is_foreign)]
    return "\n\n".join("\n".join(_statements(group)) for group in groups)


def _is_foreign(line: Import) -> bool:
    return (line.module or line.source).split(".")[0] not in sys.stdlib_module_names


def _place(line: Import) -> tuple[bool, str, int, str]:
    """Modules first, then what comes from one: constants, classes, functions."""
    name = line.source
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return bool(line.module), (line.module or name).lower(), kind, name


def _statements(group: list[Import]) -> list[str]:
    """One statement per module, and one more for each name that gets another one."""
    lines = list[str]()
    for line in group:
        same = [i.source for i in group if i.module == line.module and not i.alias]
        if line.alias or not line.module:
            start = f"from {line.module} " if line.module else ""
            ending = f" as {line.alias}" if line.alias else ""
            lines.append(f"{start}import {line.source}{ending}")
        elif line.source == same[0]:
            lines += _from(line.module, same)
    return lines


def _from(module: str, names: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]
