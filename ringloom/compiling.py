"""compile(plans, target)   from a plan to `attention` in one line: emitted, kept, imported."""

import hashlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import RLock
from types import ModuleType
from typing import Unpack

from codegen import emit
from codegen.programs import Options
from planner.disk import writing
from planner.errors import RingloomError
from planner.plans import AnyPlans
from planner.verify import ensure_verified

NAME = "ringloom_program"
IMPORTING = RLock()  # no thread gets a module that another one has begun to import


def compile(plans: AnyPlans, target: str, **options: Unpack[Options]) -> ModuleType:
    """The emitted program of a forward plan, or of a (forward, backward) pair, as a module.

    Its file, `module.__file__`, is kept in the user's cache; later calls that emit the same text
    share it and, within a process, the module. Raises PlanError as `emit` does, and RingloomError
    where the file cannot be written.
    """
    text = emit(ensure_verified(plans), target, **options)
    name = "_".join([NAME, target, hashlib.sha256(text.encode()).hexdigest()[:16]])
    path = cache() / f"{name}.py"
    if not path.is_file() or path.read_bytes() != text.encode():
        write(path, text)
    return module(name, path)


def cache() -> Path:
    """The folder of kept programs: $XDG_CACHE_HOME/ringloom, or the system's folder of caches."""
    if caches := os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA"):
        return Path(caches) / "ringloom"
    folder = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / folder / "ringloom"


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all; raises RingloomError where it cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)


def module(name: str, path: Path) -> ModuleType:
    """Returns the module of a file, imported whole and at most one time, whoever else asks."""
    with IMPORTING:
        if name not in sys.modules:
            spec = spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise RingloomError(f"cannot import {path}")
            made = module_from_spec(spec)
            sys.modules[name] = made
            try:
                spec.loader.exec_module(made)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]
