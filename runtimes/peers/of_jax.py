"""Wraps a public JAX ring as a function of global arrays in layout order."""

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec

from ringloom.planner.errors import RingloomError

FILE = "ringattention/ringattention_jax.py"


def ringattention(checkout: str, block: int | None, chunk: int) -> Callable[..., Any]:
    """Returns the ring of a checkout of haoliuhl/ringattention.

    block: tokens that attend to each other, 1 for causal, None for full. chunk: tokens per kernel
    call. Raises RingloomError if the checkout has no such file.
    """
    path = Path(checkout, FILE)
    spec = spec_from_file_location("ringattention_jax", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise RingloomError(f"no {path}: clone https://github.com/haoliuhl/ringattention")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    def attend(q: Any, k: Any, v: Any, *, mesh: Any) -> Any:
        (axis,) = mesh.axis_names
        settings = {
            "causal_block_size": block,
            "deterministic": True,
            "dropout_rng": None,
            "attn_pdrop": 0.0,
            "query_chunk_size": chunk,
            "key_chunk_size": chunk,
            "policy": jax.checkpoint_policies.nothing_saveable,
            "dtype": q.dtype,
            "precision": None,
            "prevent_cse": True,
        }

        def ring(q: Any, k: Any, v: Any) -> Any:
            return module.ring_attention(q, k, v, None, None, None, axis, False, settings)

        spec = PartitionSpec(None, axis)
        specs = {"mesh": mesh, "in_specs": (spec,) * 3, "out_specs": spec, "check_vma": False}
        out = jax.shard_map(ring, **specs)(*(x.swapaxes(1, 2) for x in (q, k, v)))
        return out.swapaxes(1, 2)

    return attend
