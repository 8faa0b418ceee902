"""Prints the import statements of a program, in the order of ruff's isort."""

import sys
from collections.abc import Iterable
from typing import NamedTuple


class Import(NamedTuple):
    """One imported name: `from module import source as alias`, or `import source`."""

    module: str
    source: str
    alias: str
    package: str  # the top-level package

    @property
    def name(self) -> str:
        """The name that is bound."""
        return self.alias or (self.source if self.module else self.package)


def print_imports(imports: Iterable[Import]) -> str:
    """Prints import statements: the standard library, a blank line, all others.

    Names from one module share a statement unless they have an alias.
    """
    statements: tuple[dict[tuple[str, str], list[str]], ...] = {}, {}
    for x in sorted(set(imports), key=_sort_key):
        start = f"from {x.module} import" if x.module else "import"
        name = f"{x.source} as {x.alias}" if x.alias else x.source
        own_line = name if x.alias or not x.module else ""
        statements[_is_third_party(x)].setdefault((start, own_line), []).append(name)
    groups = ([f"{start} {', '.join(n)}" for (start, _), n in x.items()] for x in statements)
    return "\n\n".join("\n".join(group) for group in groups if group)


def _is_third_party(x: Import) -> bool:
    return x.package not in sys.stdlib_module_names


def _sort_key(x: Import) -> tuple[bool, str, int, str]:
    """Sorts modules first, then the names from each module: constants, classes, functions."""
    name = x.source
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return bool(x.module), (x.module or name).lower(), kind, name
