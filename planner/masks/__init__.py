"""Masks: which (query, key) pairs are allowed, as regions with areas in closed form."""

from planner.masks.language import (
    And,
    Blocks,
    Causal,
    Documents,
    Full,
    Global,
    Mask,
    Or,
    Pair,
    Prefix,
    Window,
    region_of,
)

__all__ = [
    "And",
    "Blocks",
    "Causal",
    "Documents",
    "Full",
    "Global",
    "Mask",
    "Or",
    "Pair",
    "Prefix",
    "Window",
    "region_of",
]
