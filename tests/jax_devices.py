"""jax on eight virtual devices, set up so that compiling, which takes most of the time, is quick.

XLA gets its older emitters of kernels, which compile a third faster, where it is known to have
both; processes that tests start without `QUICK`, and nightly runs, compile as users do.
"""

import os
from importlib.metadata import version
from types import ModuleType

import pytest

jax = pytest.importorskip("jax")
both = os.environ.get("RINGLOOM_PROFILE") != "nightly" and version("jaxlib").startswith("0.10.")
older = ["--xla_cpu_use_fusion_emitters=false"] if both else []
QUICK = {
    "XLA_FLAGS": " ".join([*os.environ.get("XLA_FLAGS", "").split(), *older]),
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XLA_FLAGS", QUICK["XLA_FLAGS"])
    jax.devices()  # XLA reads its flags now and never again

import jax.extend  # noqa: E402
from jax.sharding import Mesh  # noqa: E402, F401


def self_check(source: str, *seq: int) -> int:
    """Return the exit status of `python FILE --seq SEQ`, run in this process."""
    module, wide = ModuleType("emitted"), jax.config.jax_enable_x64
    exec(compile(source, "<emitted>", "exec"), module.__dict__)
    try:
        status: int = module.main(*seq)
    finally:
        jax.config.update("jax_enable_x64", wide)
    return status
