"""The self-check of a decoder layer: output and all gradients against the reference."""

import sys
from argparse import ArgumentParser
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from codegen.jax.parts.layers.layer import init, reference
from codegen.jax.parts.masked import wide
from codegen.jax.parts.stubs import decoder_layer, example, shard, unshard

RANKS = CHECKED = EVERY = 1
PLAN: dict[str, Any] = {}

# ---- Self-check


def main(seq: int = CHECKED) -> int:
    """Compare a layer of small widths with the reference; 0 if the errors are small."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), "sp")
    on_cpu = mesh.devices[0].platform == "cpu"
    jax.config.update("jax_enable_x64", on_cpu)
    dtype = jnp.dtype("float64" if on_cpu else str(PLAN["dtype"]))
    random = np.random.default_rng(1)
    x, dy = (jnp.asarray(random.standard_normal((1, seq, 64)), dtype) for _ in range(2))
    given = init(0, dtype, dim=64, hidden=96), x, dy
    exact = gradients(reference, *jax.tree.map(lambda x: x.astype(wide(x)), given))
    rough, values = gradients(reference, *given), gradients(partial(our_layer, mesh), *given)
    wrong = False
    for name, truth in exact.items():
        unit = max(1.0, float(jnp.abs(truth).max()))
        error, rounding = (float(jnp.abs(x[name] - truth).max()) / unit for x in (values, rough))
        limit = {"float64": 1e-11, "float32": 5e-5}.get(dtype.name, 2 * rounding)
        print(f"{name:14} error {error:.1e}, at most {limit:.1e}")
        wrong |= not error <= limit
    return int(wrong)


@partial(jax.jit, static_argnums=0)
def gradients(layer, params, x, dy):
    """Output, and gradients of x and of the parameters by name."""  # every
    """Output, and gradients of x and of the parameters by name, of one token in EVERY."""  # some
    y, pull = jax.vjp(layer, params, x)  # every
    dparams, dx = pull(dy)  # every
    y, pull = jax.vjp(lambda *given: layer(*given)[:, ::EVERY], params, x)  # some
    dparams, dx = pull(dy[:, ::EVERY])  # some
    return {"y": y, "dx": dx, **dparams}


def our_layer(mesh, params, x):
    """The layer of this program, of and in the order of the sequence."""
    x = jnp.concatenate([shard(x, rank, 1) for rank in range(RANKS)], 1)
    x = lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))  # or XLA fails
    y = decoder_layer(params, x, example(), mesh=mesh)  # given
    y = decoder_layer(params, x, mesh=mesh)  # bound
    return unshard(jnp.split(y, RANKS, 1), 1)


if __name__ == "__main__":
    words = ArgumentParser(description=main.__doc__)
    words.add_argument("--seq", type=int, default=CHECKED)  # free
    words.add_argument("--seq", type=int, default=CHECKED, choices=[CHECKED])  # fixed
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main(words.parse_args().seq))
