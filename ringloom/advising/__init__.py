"""advise(model, gpus, hardware, seq)   ranks splits into tensor, context and data parallelism.

model       the shape of a model, from its Hugging Face config.json
memory      bytes of parameters, gradients, optimizer states and activations
costs       flops of matrix products, bytes of collectives, and seconds of both
attention   the fastest schedule of a split, simulated
ranking     the splits that fit, the fastest first
"""

from ringloom.advising.ranking import Advice, advise

__all__ = ["Advice", "advise"]
