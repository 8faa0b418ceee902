"""import_optional(extra, module)   imports a module whose libraries an extra installs.
require_library(extra, library)  checks for a library that another process imports.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ringloom.planner.errors import RingloomError


def import_optional(extra: str, module: str) -> Any:
    """Imports a module; for a missing library, raises RingloomError with the install command."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(extra, str(error.name)) from None


def require_library(extra: str, library: str) -> None:
    """Raises RingloomError, with the install command, if a library is missing."""
    if find_spec(library) is None:
        raise _missing(extra, library)


def _missing(extra: str, library: str) -> RingloomError:
    return RingloomError(f"{library} is not installed: pip install 'ringloom[{extra}]'")
