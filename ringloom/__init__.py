"""ringloom: plan distributed attention, verify it, predict it, emit it, run it.

>>> import ringloom as rl
>>> work = rl.Workload(seq=4096, heads=8, mask=rl.Causal())
>>> plan = rl.plan("striped", work, ranks=8)
>>> plan.rounds
8
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringloom.api import *

for _name in ("planner", "simulator", "codegen", "runtimes"):
    _found = getattr(find_spec(_name), "origin", None)
    if _found is None or Path(_found).parent.parent != Path(__file__).parent.parent:
        raise ImportError(
            f"ringloom needs its own package {_name!r}, but {_found or 'a folder'} shadows it:"
            " move that out of the way, or start Python elsewhere"
        )


def __getattr__(name: str) -> Any:
    """Load the names of `rl.` when one is first asked for: `ringloom --help` need not wait."""
    api = import_module("ringloom.api")
    if name != "__all__" and name not in api.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update({word: getattr(api, word) for word in ("__all__", *api.__all__)})
    return globals()[name]


def __dir__() -> list[str]:
    """The names that users need."""
    return list(import_module("ringloom.api").__all__)
