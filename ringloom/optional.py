"""needing(extra, module)   imports a module whose libraries an extra installs."""

from importlib import import_module
from typing import Any

from planner.errors import RingloomError


def needing(extra: str, module: str) -> Any:
    """Import a module; raises RingloomError, with the command to install a missing library."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise RingloomError(
            f"{error.name} is not installed: pip install 'ringloom[{extra}]'"
        ) from None
