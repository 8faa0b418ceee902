"""needing(extra, module)   imports a module whose libraries an extra installs.
require(extra, library)  raises if a library that another process imports is missing.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ringloom.planner.errors import RingloomError


def needing(extra: str, module: str) -> Any:
    """Import a module; raises RingloomError, with the command to install a missing library."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(extra, str(error.name)) from None


def require(extra: str, library: str) -> None:
    """Raises RingloomError with the install command if a library is missing."""
    if find_spec(library) is None:
        raise _missing(extra, library)


def _missing(extra: str, library: str) -> RingloomError:
    return RingloomError(f"{library} is not installed: pip install 'ringloom[{extra}]'")
