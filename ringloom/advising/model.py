"""Reads the shape of a decoder-only model from the config.json of a Hugging Face model.

Parameters are the matrices and biases of attention, the matrices of a gated feed-forward layer, two
norms per layer and one at the end, and the embeddings, which count once if input and output share
them. Models with other layers are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringloom.planner.disk import from_json, read
from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.given import require_integer
from ringloom.planner.masks import Mask, parse
from ringloom.planner.workload import LARGEST_SIZE, Workload

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "phi3")
TIED = ("gemma", "gemma3_text")  # families whose default tie_word_embeddings is true
BIASED = ("qwen2",)  # families whose query, key and value projections have biases
HEAD_DIMS = {"gemma": 256, "gemma3_text": 256}  # default head_dim
WINDOW_PATTERNS = {"gemma3_text": 6}  # default: every sixth layer has no window
UNSUPPORTED = {  # config key: the reason why the model is refused
    "kv_lora_rank": "latent attention, whose keys and values are compressed",
    "attn_logit_softcapping": "soft-capped scores, which plans cannot express",
    "text_config": "several models: save its text_config as a separate file",
}


@dataclass(frozen=True)
class Model:
    """The sizes of a model; `windowed` of its layers see only the last `window` keys."""

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
        """Returns each mask with the number of its layers; some models have windowed layers."""
        if not self.windowed or self.window is None or self.window >= work.kv_seq:
            return [(self.layers, work.mask)]
        narrow = work.mask & parse(f"window:{self.window - 1}")
        counts = [(self.layers - self.windowed, work.mask), (self.windowed, narrow)]
        return [(count, mask) for count, mask in counts if count]

    def layer_matrices(self, tensor: int = 1) -> int:
        """Returns the weights in the matrices of one layer on one of `tensor` ranks."""
        heads, kv_heads = self.heads // tensor, max(1, self.kv_heads // tensor)
        attention = 2 * (heads + kv_heads) * self.head_dim * self.width
        return attention + 3 * self.width * (self.ff // tensor)

    def head_matrix(self, tensor: int = 1) -> int:
        """Returns the weights of the output projection to logits on one of `tensor` ranks."""
        return -(-self.vocab // tensor) * self.width

    def layer(self, tensor: int = 1) -> int:
        """Returns the parameters of one layer on one of `tensor` ranks, including all norms."""
        heads, kv_heads = self.heads // tensor, max(1, self.kv_heads // tensor)
        biases = (heads + 2 * kv_heads) * self.head_dim * self.biased
        return self.layer_matrices(tensor) + biases + 2 * self.width

    def parameters(self, tensor: int = 1) -> int:
        """Returns the parameters of the model on one of `tensor` ranks."""
        vocabulary = self.head_matrix(tensor) * (1 if self.tied else 2)
        return self.layers * self.layer(tensor) + vocabulary + self.width


def read_model(config: str | Path | Mapping[str, Any]) -> Model:
    """Returns the shape of a model; `config`: its config.json, or the content of that file.

    Raises RingloomError for missing or invalid sizes, and for models that are not supported:
    mixtures of experts, latent attention, families with other layers.
    """
    if isinstance(config, Mapping):
        return _model(config)
    return read(config, lambda content: _model(_parse(content)), f"model config {config}")


def _parse(content: bytes) -> Mapping[str, Any]:
    if not isinstance(config := from_json(content), dict):
        raise RingloomError(f"a model config must be a JSON object, not {brief(config)}")
    return config


def _model(config: Mapping[str, Any]) -> Model:
    family = config.get("model_type", "llama")
    for key, reason in UNSUPPORTED.items():
        if config.get(key) is not None:
            raise RingloomError(f"the config has {key}: {reason}")
    if experts := [key for key in config if "expert" in key and config[key]]:
        raise RingloomError(f"the config has {experts[0]}: mixtures of experts are not modelled")
    if family not in FAMILIES:
        raise RingloomError(
            f"model_type {brief(family)} is not one of {', '.join(FAMILIES)}: if its layers are"
            " the same as Llama's, with gated feed-forward layers, set it to llama"
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
        head_dim=_size(config, "head_dim", HEAD_DIMS.get(family, max(1, width // heads))),
        ff=_size(config, "intermediate_size"),
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", family in TIED)),
        biased=bool(config.get("attention_bias", family in BIASED)),
        windowed=windowed,
        window=window,
    )


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Returns a size; raises RingloomError if it is missing or not a positive integer."""
    if (value := config.get(key)) is None:
        if default is None:
            raise RingloomError(f"the config has no {key}")
        return default
    return require_integer(f"the config's {key}", value, 1, LARGEST_SIZE)


def _windows(config: Mapping[str, Any], family: str, layers: int) -> tuple[int, int | None]:
    """Returns the number of layers with a sliding window, and the keys in a window."""
    is_off = config.get("use_sliding_window", family not in ("qwen2", "qwen3")) is False
    if config.get("sliding_window") is None or is_off:
        return 0, None
    window = _size(config, "sliding_window")
    if (kinds := config.get("layer_types")) is not None:
        if len(kinds) != layers or {*kinds} - {"full_attention", "sliding_attention"}:
            raise RingloomError(
                f"layer_types must name {layers} layers, each full_attention or sliding_attention"
            )
        return list(kinds).count("sliding_attention"), window
    if family in WINDOW_PATTERNS:
        full = layers // _size(config, "sliding_window_pattern", WINDOW_PATTERNS[family])
        return layers - full, window
    if family in ("qwen2", "qwen3"):
        return max(0, layers - _size(config, "max_window_layers", layers)), window
    return (0, None) if family in ("llama", "gemma") else (layers, window)
