"""Masks: rules for which (query, key) pairs are allowed; most files here define a mask."""

from importlib import import_module
from pkgutil import iter_modules

from ringloom.planner.masks.blocks import Blocks as Blocks
from ringloom.planner.masks.chunks import BlockCausal as BlockCausal
from ringloom.planner.masks.chunks import Chunks as Chunks
from ringloom.planner.masks.documents import Documents as Documents
from ringloom.planner.masks.documents import Varlen as Varlen
from ringloom.planner.masks.leading import Global as Global
from ringloom.planner.masks.leading import Keys as Keys
from ringloom.planner.masks.leading import Prefix as Prefix
from ringloom.planner.masks.mask import MASKS as MASKS
from ringloom.planner.masks.mask import And as And
from ringloom.planner.masks.mask import Mask as Mask
from ringloom.planner.masks.mask import Or as Or
from ringloom.planner.masks.parsing import forms as forms
from ringloom.planner.masks.parsing import parse as parse
from ringloom.planner.masks.plain import Causal as Causal
from ringloom.planner.masks.plain import Full as Full
from ringloom.planner.masks.slices import Slices as Slices
from ringloom.planner.masks.tree import Tree as Tree
from ringloom.planner.masks.window import Window as Window

for _module in iter_modules(__path__):  # importing a file registers its masks
    import_module(f"{__name__}.{_module.name}")
