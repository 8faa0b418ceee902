"""compile(plans, target)   from a plan to `attention` in one line: emitted, kept, imported."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Unpack

from ringloom.codegen import emit
from ringloom.codegen.programs import Options
from ringloom.planner.errors import RingloomError
from ringloom.planner.plans import AnyPlans
from ringloom.planner.verify import ensure_verified
from ringloom.runtimes.emitted import load


def compile(plans: AnyPlans, target: str, **options: Unpack[Options]) -> ModuleType:
    """The emitted program of a forward plan, or of a (forward, backward) pair, as a module.

    Its file, `module.__file__`, is kept in the user's cache, which no link leads out of; later
    calls that emit the same text share it and, within a process, the module. Raises PlanError as
    `emit` does, and RingloomError where the file cannot be written.
    """
    return load(emit(ensure_verified(plans), target, **options), cache())


def cache() -> Path:
    """The folder of kept programs: $XDG_CACHE_HOME/ringloom, or the system's folder of caches.

    As the XDG specification says, a relative path counts for nothing.

    Raises RingloomError for a user without a home, as containers may have.
    """
    named = (os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"))
    if caches := next(filter(os.path.isabs, named), ""):
        return Path(caches) / "ringloom"
    folder = "Library/Caches" if sys.platform == "darwin" else ".cache"
    try:
        return Path.home() / folder / "ringloom"
    except RuntimeError:
        raise RingloomError("no home to keep programs in: set XDG_CACHE_HOME to a folder") from None
