"""Counts the bytes on one chip: parameters and their states, and activations of one micro-batch.

A parameter takes 2 bytes, its gradient 2, and its optimizer states 12: a copy of the parameter and
two moments in 32 bit. The chips with the same part of the parameters shard

    ZeRO 0    nothing
    ZeRO 1    optimizer states
    ZeRO 3    everything, except the largest part that is gathered at a time, with its gradient

Tensor-parallel ranks shard activations, as in sequence parallelism.
"""

from ringloom.advising.costs import WIDTH, Checkpoint, Split, Zero, local_tokens
from ringloom.advising.model import Model

STATES = 12  # bytes of optimizer states per parameter
LSE = 4  # bytes of the log-sum-exp per query and head


def parameter_bytes(model: Model, split: Split, zero: Zero) -> int:
    """Returns the bytes of parameters, gradients and optimizer states on a chip."""
    count, replicas = model.parameters(split.tensor), split.replicas
    if zero == 0:
        return (2 * WIDTH + STATES) * count
    if zero == 1:
        return 2 * WIDTH * count + -(-STATES * count // replicas)
    gathered = max(model.layer(split.tensor), model.head_matrix(split.tensor))
    return -(-(2 * WIDTH + STATES) * count // replicas) + 2 * WIDTH * gathered


def kept_bytes(model: Model, seq: int, split: Split, checkpoint: Checkpoint) -> int:
    """Returns the bytes of activations that all layers keep for the backward pass.

    With full checkpointing, a layer keeps only its input. Without it, a layer keeps the inputs of
    its matrix products, norms and attention.
    """
    tokens = local_tokens(seq, split)
    if checkpoint == "full":
        return model.layers * tokens * -(-model.width * WIDTH // split.tensor)
    heads, kv_heads = model.heads // split.tensor, max(1, model.kv_heads // split.tensor)
    attention = 2 * (heads + kv_heads) * model.head_dim * WIDTH + LSE * heads
    return model.layers * tokens * (attention + _layer_bytes(model, split.tensor))


def work_bytes(model: Model, seq: int, split: Split, checkpoint: Checkpoint) -> int:
    """Returns the temporary bytes of the current layer, without attention.

    A layer needs the gradients of its activations and, with full checkpointing, the activations.
    """
    copies = 2 if checkpoint == "full" else 1
    return copies * local_tokens(seq, split) * _layer_bytes(model, split.tensor)


def logit_bytes(model: Model, seq: int, split: Split) -> int:
    """Returns the bytes of a micro-batch's logits and of their gradients, in 16 bit."""
    return 2 * WIDTH * local_tokens(seq, split) * -(-model.vocab // split.tensor)


def _layer_bytes(model: Model, tensor: int) -> int:
    """Returns the bytes per token of the norms and the feed-forward layer of one layer."""
    return -(-(4 * model.width + 3 * model.ff) * WIDTH // tensor)
