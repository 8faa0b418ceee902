"""compile(plans, target)   emits a plan, caches the program, and imports it as a module."""

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
    """Returns the emitted program of a forward plan or a (forward, backward) pair as a module.

    The program is saved in the user's cache as `module.__file__`; links that lead out of the cache
    are refused. Later calls that emit the same text share the file and, within a process, the
    module. Raises PlanError as `emit` does, and RingloomError if the file cannot be written.
    """
    return load(emit(ensure_verified(plans), target, **options), cache_folder())


def cache_folder() -> Path:
    """Returns the folder of cached programs: $XDG_CACHE_HOME/ringloom or the system's default.

    Relative paths are ignored, as the XDG specification requires. Raises RingloomError for a user
    without a home directory, as in some containers.
    """
    settings = (os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"))
    if path := next(filter(os.path.isabs, settings), ""):
        return Path(path) / "ringloom"
    folder = "Library/Caches" if sys.platform == "darwin" else ".cache"
    try:
        return Path.home() / folder / "ringloom"
    except RuntimeError:
        raise RingloomError("no cache directory: set XDG_CACHE_HOME") from None
