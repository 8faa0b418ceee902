"""The library of a target's arrays."""

from importlib import import_module
from typing import Any

import pytest


def library_of(target: str) -> Any:
    """Returns torch, or jax.numpy by the module that sets the devices of the whole process."""
    if target == "torch":
        return pytest.importorskip("torch")
    return import_module("jax_devices").jax.numpy
