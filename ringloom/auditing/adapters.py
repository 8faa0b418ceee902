"""Wraps attention functions of other libraries for an audit.

    # mine.py                                                ringloom audit mine.py:attend ...
    from ringloom.auditing.adapters import pytorch_ring
    attend = pytorch_ring()

Emitted programs need no adapter: `ringloom audit attention.py:attention`.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ringloom.planner.optional import import_optional

Attend = Callable[..., Any]


def flash_shaped(function: Attend, **options: Any) -> Attend:
    """Wraps a function of [batch, tokens, heads, head_dim], as in flash-attn.

    options: passed to each call, such as causal=True. Raises RingloomError without torch.
    """
    peers = import_optional("torch", "ringloom.runtimes.peers.of_torch")
    attend: Attend = peers.flash_shaped(function, **options)
    return attend


def pytorch_ring(
    *, balanced: bool = True, causal: bool = True, exchange: str = "all-gather"
) -> Attend:
    """Returns PyTorch's ring template, forward and backward, on CPUs or GPUs.

    `context_parallel` of PyTorch 2.13 has no sharding strategy for CPU kernels, so this calls the
    underlying template with the flash attention of the device. balanced: head-tail (zigzag) shards
    instead of contiguous shards. exchange: all-gather or all-to-all. Raises RingloomError for any
    other exchange, and without torch.
    """
    peers = import_optional("torch", "ringloom.runtimes.peers.of_torch")
    attend: Attend = peers.pytorch_ring(balanced, causal, exchange)
    return attend


def ring_attention_pytorch(
    *, striped: bool = False, causal: bool = True, bucket: int = 16
) -> Attend:
    """Returns the ring of the package ring-attention-pytorch; bucket: tokens per kernel call.

    Raises RingloomError without this package: pip install 'ringloom[peers]'.
    """
    peers = import_optional("torch", "ringloom.runtimes.peers.of_torch")
    import_optional("peers", "ring_attention_pytorch")
    attend: Attend = peers.ring_attention_pytorch(striped, causal, bucket)
    return attend


def transformers_attention(program: ModuleType, name: str = "ringloom-audit") -> Attend:
    """Registers an emitted program in transformers as `name`; returns it for an audit.

    Raises RingloomError without transformers, and for a name that is in use.
    """
    attend: Attend = import_optional("hf", "ringloom.runtimes.peers.of_torch").transformers(
        program, name
    )
    return attend


def jax_ring(checkout: str, *, block: int | None = 1, chunk: int = 8) -> Attend:
    """Returns the JAX ring in a checkout of https://github.com/haoliuhl/ringattention.

    block: tokens that see each other, 1 for causal, None for full; chunk: tokens per kernel call.
    Raises RingloomError if there is no such checkout, and without JAX.
    """
    peers = import_optional("jax", "ringloom.runtimes.peers.of_jax")
    attend: Attend = peers.ringattention(checkout, block, chunk)
    return attend
