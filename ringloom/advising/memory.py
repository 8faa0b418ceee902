"""Bytes on one chip: parameters and their states, and the activations of one micro-batch.

Of each parameter 2 bytes, of its gradient 2, of optimizer states 12: a copy of the parameter and
two moments in 32 bit. They are divided by the chips with the same part of the parameters:

    ZeRO 0    nothing
    ZeRO 1    optimizer states
    ZeRO 3    all of them; the largest part that is gathered at a time counts whole, with gradient

Tensor-parallel ranks divide activations between them, as sequence parallelism does.
"""

from ringloom.advising.costs import WIDTH, Checkpoint, Split, Zero, local_tokens
from ringloom.advising.model import Model

STATES = 12  # bytes of optimizer states per parameter
LSE = 4  # bytes of one query's log-sum-exp, per head


def parameter_bytes(model: Model, split: Split, zero: Zero) -> int:
    """Returns the bytes of parameters, gradients and optimizer states on a chip."""
    own, copies = model.parameters(split.tensor), split.replicas
    if zero == 0:
        return (2 * WIDTH + STATES) * own
    if zero == 1:
        return 2 * WIDTH * own + -(-STATES * own // copies)
    gathered = max(model.layer(split.tensor), model.head_matrix(split.tensor))
    return -(-(2 * WIDTH + STATES) * own // copies) + 2 * WIDTH * gathered


def kept_bytes(model: Model, seq: int, split: Split, checkpoint: Checkpoint) -> int:
    """Returns the bytes of activations that all layers keep for the backward pass.

    With full checkpointing that is the input of each layer, else all that its matrix products, its
    norms and its attention read again.
    """
    tokens = local_tokens(seq, split)
    if checkpoint == "full":
        return model.layers * tokens * -(-model.width * WIDTH // split.tensor)
    heads, kv_heads = model.heads // split.tensor, max(1, model.kv_heads // split.tensor)
    attention = 2 * (heads + kv_heads) * model.head_dim * WIDTH + LSE * heads
    return model.layers * tokens * (attention + _layer(model, split.tensor))


def work_bytes(model: Model, seq: int, split: Split, checkpoint: Checkpoint) -> int:
    """Returns the bytes of the layer at work, attention left out.

    They are the gradients of its activations and, with full checkpointing, these activations.
    """
    copies = 2 if checkpoint == "full" else 1
    return copies * local_tokens(seq, split) * _layer(model, split.tensor)


def logit_bytes(model: Model, seq: int, split: Split) -> int:
    """Returns the bytes of a micro-batch's logits and of their gradients, in 16 bit."""
    return 2 * WIDTH * local_tokens(seq, split) * -(-model.vocab // split.tensor)


def _layer(model: Model, tensor: int) -> int:
    """Returns the bytes per token of a layer: inputs and outputs of its norms, feed-forward."""
    return -(-(4 * model.width + 3 * model.ff) * WIDTH // tensor)
