"""Masks: which (query, key) pairs are allowed, one class in one file of this room each."""

from importlib import import_module
from pkgutil import iter_modules

from planner.masks.blocks import Blocks
from planner.masks.chunks import BlockCausal, Chunks
from planner.masks.documents import Documents, Varlen
from planner.masks.keys import Keys
from planner.masks.leading import Global, Prefix
from planner.masks.mask import MASKS, And, Mask, Or
from planner.masks.parsing import forms, parse
from planner.masks.plain import Causal, Full
from planner.masks.slices import Slices
from planner.masks.tree import Tree
from planner.masks.window import Window

__all__ = [
    "MASKS",
    "And",
    "BlockCausal",
    "Blocks",
    "Causal",
    "Chunks",
    "Documents",
    "Full",
    "Global",
    "Keys",
    "Mask",
    "Or",
    "Prefix",
    "Slices",
    "Tree",
    "Varlen",
    "Window",
    "forms",
    "parse",
]

for _module in iter_modules(__path__):  # a mask is known once its file lies here
    import_module(f"{__name__}.{_module.name}")
