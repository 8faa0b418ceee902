"""ringloom plans, verifies, simulates, emits and runs distributed attention.

>>> import ringloom as rl
>>> work = rl.Workload(seq=4096, heads=8, mask=rl.Causal())
>>> plan = rl.plan("striped", work, ranks=8)
>>> plan.rounds
8
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringloom.api import *

__version__: str = import_module("ringloom.planner.version").VERSION


def __getattr__(name: str) -> Any:
    """Imports all public names on first use, so that `ringloom --help` stays fast."""
    if name == "__all__":
        return __dir__()
    api = vars(import_module("ringloom.api"))
    old_names = import_module("ringloom.renamed").NAMES
    if name in old_names:
        return api[old_names[name]]
    if name.startswith("_") or name not in api:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update((public, api[public]) for public in api if not public.startswith("_"))
    return api[name]


def __dir__() -> list[str]:
    """Returns the public names."""
    names = vars(import_module("ringloom.api"))
    return [*(name for name in names if not name.startswith("_")), "__version__"]
