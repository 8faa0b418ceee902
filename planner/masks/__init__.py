"""Masks: which (query, key) pairs are allowed, one class in one file of this room each."""

from importlib import import_module
from pkgutil import iter_modules

from planner.masks.blocks import Blocks as Blocks
from planner.masks.chunks import BlockCausal as BlockCausal
from planner.masks.chunks import Chunks as Chunks
from planner.masks.documents import Documents as Documents
from planner.masks.documents import Varlen as Varlen
from planner.masks.leading import Global as Global
from planner.masks.leading import Keys as Keys
from planner.masks.leading import Prefix as Prefix
from planner.masks.mask import MASKS as MASKS
from planner.masks.mask import And as And
from planner.masks.mask import Mask as Mask
from planner.masks.mask import Or as Or
from planner.masks.parsing import forms as forms
from planner.masks.parsing import parse as parse
from planner.masks.plain import Causal as Causal
from planner.masks.plain import Full as Full
from planner.masks.slices import Slices as Slices
from planner.masks.tree import Tree as Tree
from planner.masks.window import Window as Window

for _module in iter_modules(__path__):  # a mask is known once its file lies here
    import_module(f"{__name__}.{_module.name}")
