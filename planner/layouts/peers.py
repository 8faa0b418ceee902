"""Names of layouts in other libraries, which ringloom prints and accepts as aliases."""

from typing import TypeVar

Layout = TypeVar("Layout")

PEERS: dict[str, dict[str, str]] = {  # layout -> name elsewhere -> libraries
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
    layout: ", ".join(
        f"{name} ({libraries})" if libraries else name for name, libraries in peers.items()
    )
    for layout, peers in PEERS.items()
}


def _as_alias(name: str) -> str:
    """Returns the alias for a name, such as head-tail, dual-chunk-swap or ptrr."""
    return name.partition(",")[0].lower().replace(" ", "-")


ALIASES = {
    _as_alias(name): layout
    for layout, peers in PEERS.items()
    for name, libraries in peers.items()
    if libraries
}


def canonical_layout(layout: Layout) -> Layout | str:
    """Replaces the name of another library by the name in ringloom; returns others unchanged."""
    return ALIASES.get(_as_alias(layout), layout) if isinstance(layout, str) else layout
