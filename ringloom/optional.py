"""needing(extra, module)   a module of ours that needs a library which an extra installs."""

from importlib import import_module
from typing import Any

from planner.errors import RingloomError


def needing(extra: str, module: str) -> Any:
    """Import a module; raises RingloomError, with what to install, where a library is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise RingloomError(
            f"{error.name} is needed here: pip install 'ringloom[{extra}]' brings it"
        ) from None
