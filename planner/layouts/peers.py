"""Names of layouts in other libraries: printed next to ours, and accepted as aliases."""

from typing import TypeVar

Layout = TypeVar("Layout")

PEERS: dict[str, dict[str, str]] = {  # layout -> its name elsewhere -> libraries
    "contiguous": {"the order of the sequence in every library": ""},
    "striped": {
        "stripe": "ring-flash-attention",
        "strip": "yunchang",
        "Striped": "Transformer Engine JAX",
    },
    "zigzag": {
        "zigzag": "ring-flash-attention, yunchang",
        "head-tail": "PyTorch",
        "dual-chunk swap": "Transformer Engine, Megatron-LM, MaxText",
        "causal halves": "BurstAttention",
    },
    "per-document": {
        "per-document head-tail": "PyTorch, WLB-LLM",
        "dual-chunk swap of packed sequences": "Transformer Engine",
    },
    "whole-document": {"whole documents": "FlashCP"},
    "heap": {"min-heap dispatch": "MagiAttention"},
    "snake": {"PTRR, round-robin by processing time": "PyTorch"},
    "even-work": {"uneven shards": "MagiAttention"},
}
PEER_NAMES = {
    layout: ", ".join(f"{name} ({where})" if where else name for name, where in peers.items())
    for layout, peers in PEERS.items()
}


def _plain(name: str) -> str:
    """Returns the alias for a name, up to its comma: head-tail, dual-chunk-swap, ptrr."""
    return name.partition(",")[0].lower().replace(" ", "-")


ALIASES = {
    _plain(name): layout
    for layout, peers in PEERS.items()
    for name, where in peers.items()
    if where
}


def own_name(layout: Layout) -> Layout | str:
    """Returns our name for a layout that has a name of another library; else the argument."""
    return ALIASES.get(_plain(layout), layout) if isinstance(layout, str) else layout
