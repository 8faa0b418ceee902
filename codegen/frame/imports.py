"""imports   the import statements of a program, in the order that ruff's isort gives them."""

import sys
from collections.abc import Iterable
from typing import NamedTuple


class Import(NamedTuple):
    """`import source` has an empty `module`; `from module import source as alias`."""

    module: str
    source: str
    alias: str
    package: str  # that the module is in, or that is imported

    @property
    def name(self) -> str:
        """The name that is bound."""
        return self.alias or (self.source if self.module else self.package)


def written(imports: Iterable[Import]) -> str:
    """Import statements: the standard library, a blank line, all others.

    Names of one module share a statement, but for those that get another name.
    """
    statements: tuple[dict[tuple[str, str], list[str]], ...] = {}, {}
    for line in sorted(set(imports), key=_place):
        start = f"from {line.module} import" if line.module else "import"
        name = f"{line.source} as {line.alias}" if line.alias else line.source
        alone = name if line.alias or not line.module else ""
        statements[_is_foreign(line)].setdefault((start, alone), []).append(name)
    groups = ([f"{start} {', '.join(n)}" for (start, _), n in x.items()] for x in statements)
    return "\n\n".join("\n".join(group) for group in groups if group)


def _is_foreign(line: Import) -> bool:
    return line.package not in sys.stdlib_module_names


def _place(line: Import) -> tuple[bool, str, int, str]:
    """Modules first, then what comes from one: constants, classes, functions."""
    name = line.source
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return bool(line.module), (line.module or name).lower(), kind, name
