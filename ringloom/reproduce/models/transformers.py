"""Transformer shapes: what a layer and a model cost besides attention, in parameters and flop."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A decoder: `width` elements per token, `ff` inside the FFN, `matrices` of the FFN.

    `kv_heads` defaults to `heads`; `head_dim` to width / heads.
    """

    name: str
    width: int
    ff: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    matrices: int = 3  # gate, up and down; 2 where there is no gate
    vocab: int = 32000

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.width // self.heads)

    @property
    def attention_weights(self) -> int:
        """Parameters of one layer's query, key, value and output projections."""
        return 2 * self.width * (self.heads + self.kv_heads) * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Parameters of one layer's projections and FFN, norms left out."""
        return self.attention_weights + self.matrices * self.width * self.ff

    @property
    def parameters(self) -> int:
        """Parameters of the model, the embedding and the output matrix apart, norms left out."""
        return self.layers * self.layer_weights + 2 * self.vocab * self.width
