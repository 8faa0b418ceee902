"""jax on eight virtual devices, set up so that compiling, which takes most of the time, is quick.

XLA gets its older emitters of kernels, which compile a third faster, where it is known to have
both; processes that tests start, and nightly runs, compile as users do.
"""

import os
from importlib.metadata import version

import pytest

jax = pytest.importorskip("jax")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
with pytest.MonkeyPatch.context() as patch:
    if os.environ.get("RINGLOOM_PROFILE") != "nightly" and version("jaxlib").startswith("0.10."):
        patch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false", prepend=" ")
    jax.devices()  # XLA reads its flags now and never again

import jax.extend  # noqa: E402
from jax.sharding import Mesh  # noqa: E402, F401
