"""JAX programs, and the public ring of haoliuhl, on eight virtual devices of one process.

    race(sources, seq, rounds, checkout)    seconds of every round by (name, backward)

`checkout` is a folder with https://github.com/haoliuhl/ringattention, of which the one module that
has the ring is loaded; it imports flax and einops. All see the same random inputs in float32, one
batch of HEADS x `seq` x HEAD_DIM, each in its own layout and sharding, and must agree.
"""

import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from rounds import Times, in_rounds, timed

DEVICES = 8
HEADS, HEAD_DIM = 8, 64
CHUNK = 512  # rows and columns that the public ring takes at a time, at most
PEER = "haoliuhl"
COMPILED = "compiled"
Found = dict[tuple[str, bool], list[Times]]


def race(sources: dict[str, str], seq: int, rounds: int, checkout: Path | None = None) -> Found:
    """Seconds of every program in `sources`, and of the public ring where there is one, in turn.

    With (COMPILED + name, backward) come the seconds that compiling it took, once.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_race, (sources, seq, rounds, checkout))


def _race(sources: dict[str, str], seq: int, rounds: int, checkout: Path | None) -> Found:
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), ("sp",))
    random = np.random.default_rng(0)
    q, k, v, dout = random.standard_normal((4, 1, HEADS, seq, HEAD_DIM)).astype(np.float32)
    runs: dict[tuple[str, bool], Callable[[], Times]] = {}
    taken: Found = {}
    truth: list[Any] = []
    for name, function, order, axis in _rivals(sources, checkout, mesh, seq):
        where = jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec(*[None] * axis, "sp", None, *[None] * (2 - axis))
        )
        inputs = [
            jax.device_put(np.moveaxis(x[:, :, order], 2, axis), where) for x in (q, k, v, dout)
        ]
        for backward, made in ((False, function), (True, _with_gradients(function))):
            given, box = inputs if backward else inputs[:3], list[Any]()
            lowered = jax.jit(made).lower(*given)
            taken[COMPILED + name, backward] = [timed(lambda: box.append(lowered.compile()))]  # noqa: B023
            runs[name, backward] = _call(box[0], given)
        results = [np.moveaxis(np.asarray(x), axis, 2) for x in box[0](*inputs)]
        ordered = [x[:, :, np.argsort(order)] for x in results]
        for a, b in zip(ordered, truth or ordered, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=5e-5, err_msg=name)
        truth = truth or ordered
    for backward in (False, True):  # apart, so that rivals run close to each other
        rivals = [key for key in runs if key[1] == backward]
        taken |= in_rounds(lambda key: runs[key](), rivals, rounds)
    return taken


def _call(function: Callable[..., Any], inputs: list[Any]) -> Callable[[], Times]:
    import jax

    return lambda: timed(lambda: jax.block_until_ready(function(*inputs)))


def _with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of q, k, v and dout that gives out, dq, dk and dv."""
    import jax

    def both(q: Any, k: Any, v: Any, dout: Any) -> list[Any]:
        out, pull = jax.vjp(function, q, k, v)
        return [out, *pull(dout)]

    return both


def _rivals(sources: dict[str, str], checkout: Path | None, mesh: Any, seq: int) -> list[Any]:
    """(name, function of q, k and v, the order of its tokens, its token axis)"""
    rivals = list[Any]()
    for name, source in sources.items():
        program = ModuleType("emitted")
        exec(compile(source, "<emitted>", "exec"), program.__dict__)
        # A program by hand has the constants of what it was written for.
        vars(program).update(RANKS=DEVICES, HEADS=HEADS, KV_HEADS=HEADS, HEAD_DIM=HEAD_DIM)
        vars(program)["SCALE"] = HEAD_DIM**-0.5
        order = np.concatenate([np.asarray(program.positions(r, seq)) for r in range(DEVICES)])
        rivals.append((name, partial(program.attention, mesh=mesh), order, 2))
    if checkout:
        public = _public(checkout, mesh, min(CHUNK, seq // DEVICES))
        rivals.append((PEER, public, np.arange(seq), 1))
    return rivals


def _public(checkout: Path, mesh: Any, chunk: int) -> Callable[..., Any]:
    """The public ring over the axis "sp", causal, with the settings of its README."""
    import jax

    where = checkout / "ringattention" / "ringattention_jax.py"
    spec = spec_from_file_location("ringattention_jax", where)
    if spec is None or spec.loader is None or not where.exists():
        sys.exit(f"no checkout of haoliuhl/ringattention at {checkout}: {where} is missing")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    settings = {
        "causal_block_size": 1,
        "deterministic": True,
        "dropout_rng": None,
        "attn_pdrop": 0.0,
        "query_chunk_size": chunk,
        "key_chunk_size": chunk,
        "policy": jax.checkpoint_policies.nothing_saveable,
        "dtype": jax.numpy.float32,
        "precision": None,
        "prevent_cse": True,
    }

    def ring(q: Any, k: Any, v: Any) -> Any:
        return module.ring_attention(q, k, v, None, None, None, "sp", True, settings)

    place = jax.sharding.PartitionSpec(None, "sp", None, None)
    specs = {"in_specs": (place,) * 3, "out_specs": place, "check_vma": False}
    mapped: Callable[..., Any] = jax.shard_map(ring, mesh=mesh, **specs)
    return mapped
