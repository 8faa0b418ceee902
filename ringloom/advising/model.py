"""The shape of a decoder-only model, read from the config.json of a Hugging Face model.

Counted are the matrices of attention and of a gated feed-forward layer, their biases in attention,
two norms per layer and one at the end, and the vocabulary, once if both ends share it. Models of
other shapes are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringloom.planner.disk import from_json, read
from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.given import whole
from ringloom.planner.masks import Mask, parse
from ringloom.planner.workload import LONGEST, Workload

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "phi3")
TIED = ("gemma", "gemma3_text")  # families whose configs leave tie_word_embeddings out, being true
BIASED = ("qwen2",)  # families whose query, key and value projections have biases
NARROW = {"gemma": 256, "gemma3_text": 256}  # head_dim where a config leaves it out
EVERY = {"gemma3_text": 6}  # every sixth layer has no window, where a config does not say
LACKING = {  # keys of what cannot be counted or planned, and why
    "kv_lora_rank": "latent attention, whose keys and values are compressed",
    "attn_logit_softcapping": "soft-capped scores, which plans cannot express",
    "text_config": "several models: save its text_config as a file of its own",
}


@dataclass(frozen=True)
class Model:
    """Sizes of a model; `windowed` of its layers see only the last `window` keys."""

    family: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    tied: bool
    biased: bool = False
    windowed: int = 0
    window: int | None = None

    def attention(self, seq: int, mask: Mask | str) -> Workload:
        """Returns the attention of one layer over one sequence, in bfloat16."""
        return Workload(seq, None, self.heads, self.kv_heads, self.head_dim, mask=mask)

    def masks(self, work: Workload) -> list[tuple[int, Mask]]:
        """Returns how many layers have which mask: some models give layers a window."""
        if not self.windowed or self.window is None or self.window >= work.kv_seq:
            return [(self.layers, work.mask)]
        narrow = work.mask & parse(f"window:{self.window - 1}")
        counts = [(self.layers - self.windowed, work.mask), (self.windowed, narrow)]
        return [(count, mask) for count, mask in counts if count]

    def layer_matrices(self, tensor: int = 1) -> int:
        """Returns the weights of one layer's matrices on one of `tensor` tensor-parallel ranks."""
        heads, kv_heads = self.heads // tensor, max(1, self.kv_heads // tensor)
        attention = 2 * (heads + kv_heads) * self.head_dim * self.width
        return attention + 3 * self.width * (self.ff // tensor)

    def head_matrix(self, tensor: int = 1) -> int:
        """Returns the weights of the matrix from the last layer to logits, on one such rank."""
        return -(-self.vocab // tensor) * self.width

    def layer(self, tensor: int = 1) -> int:
        """Returns all parameters of one layer on one such rank; norms are on every rank."""
        heads, kv_heads = self.heads // tensor, max(1, self.kv_heads // tensor)
        biases = (heads + 2 * kv_heads) * self.head_dim * self.biased
        return self.layer_matrices(tensor) + biases + 2 * self.width

    def parameters(self, tensor: int = 1) -> int:
        """Returns all parameters on one such rank."""
        vocabulary = self.head_matrix(tensor) * (1 if self.tied else 2)
        return self.layers * self.layer(tensor) + vocabulary + self.width


def read_model(given: str | Path | Mapping[str, Any]) -> Model:
    """Returns the shape of a model, from its config.json or from what that file contains.

    Raises RingloomError for missing or impossible sizes, and for models that cannot be counted:
    mixtures of experts, latent attention, families with other layers.
    """
    if isinstance(given, Mapping):
        return _model(given)
    return read(given, lambda content: _model(_table(content)), f"model config {given}")


def _table(content: bytes) -> Mapping[str, Any]:
    if not isinstance(table := from_json(content), dict):
        raise RingloomError(f"a model config is an object of names and values, not {brief(table)}")
    return table


def _model(config: Mapping[str, Any]) -> Model:
    family = config.get("model_type", "llama")
    for key, why in LACKING.items():
        if config.get(key) is not None:
            raise RingloomError(f"the config has {key}: {why}")
    if experts := [key for key in config if "expert" in key and config[key]]:
        raise RingloomError(
            f"the config has {experts[0]}: mixtures of experts are not modelled, as the load of"
            " experts and their all-to-alls are not"
        )
    if family not in FAMILIES:
        raise RingloomError(
            f"model_type {brief(family)} is not one of {', '.join(FAMILIES)}: if the layers are"
            " those of Llama, with gated feed-forward layers, write llama instead"
        )
    width, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    layers = _size(config, "num_hidden_layers")
    windowed, window = _windows(config, family, layers)
    return Model(
        family=family,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", heads),
        head_dim=_size(config, "head_dim", NARROW.get(family, max(1, width // heads))),
        ff=_size(config, "intermediate_size"),
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", family in TIED)),
        biased=bool(config.get("attention_bias", family in BIASED)),
        windowed=windowed,
        window=window,
    )


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Returns a size; raises RingloomError where it is missing or not a positive integer."""
    if (value := config.get(key)) is None:
        if default is None:
            raise RingloomError(f"the config has no {key}")
        return default
    return whole(f"the config's {key}", value, 1, LONGEST)


def _windows(config: Mapping[str, Any], family: str, layers: int) -> tuple[int, int | None]:
    """Returns how many layers have a sliding window, and how many keys it shows."""
    off = config.get("use_sliding_window", family != "qwen2" and family != "qwen3") is False
    if config.get("sliding_window") is None or off:
        return 0, None
    window = _size(config, "sliding_window")
    if (kinds := config.get("layer_types")) is not None:
        if len(kinds) != layers or {*kinds} - {"full_attention", "sliding_attention"}:
            raise RingloomError(
                f"layer_types must name {layers} layers, each full_attention or sliding_attention"
            )
        return list(kinds).count("sliding_attention"), window
    if family in EVERY:
        full = layers // _size(config, "sliding_window_pattern", EVERY[family])
        return layers - full, window
    if family in ("qwen2", "qwen3"):
        return max(0, layers - _size(config, "max_window_layers", layers)), window
    return (0, None) if family in ("llama", "gemma") else (layers, window)
