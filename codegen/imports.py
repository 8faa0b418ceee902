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
    lines = sorted(set(imports), key=lambda i: (_is_foreign(i), bool(i.module), _place(i)))
    groups = [[*group] for _, group in groupby(lines, key=_is_foreign)]
    return "\n\n".join("\n".join(_statements(group)) for group in groups)


def _is_foreign(line: Import) -> bool:
    return (line.module or line.source).split(".")[0] not in sys.stdlib_module_names


def _place(line: Import) -> tuple[str, bool, int, str]:
    """By module; names one by one after plain ones; constants, classes, then functions."""
    name = line.source
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return (line.module or name).lower(), bool(line.module and line.alias), kind, name


def _statements(group: list[Import]) -> list[str]:
    lines = list[str]()
    for (module, alias), names in groupby(group, key=lambda i: (i.module, i.alias)):
        if not module:
            ending = f" as {alias}" if alias else ""
            lines += [f"import {line.source}{ending}" for line in names]
        elif alias:
            lines += [f"from {module} import {line.source} as {alias}" for line in names]
        else:
            lines += _from(module, [line.source for line in names])
    return lines


def _from(module: str, names: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]
