"""The JAX backend: runs a plan's emitted program on a mesh of devices, virtual ones on a CPU.

run        runs in this process, if it has or can still get one device per rank
in_child   otherwise runs in a child process with enough virtual devices

Arguments and results are in sequence order. Inside the program, arrays are padded and in layout
order.
"""

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ringloom.planner.plans import Plans
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.emitted import RESULTS, SIDES, load, source_of
from ringloom.runtimes.machine import RankError, child_environment, describe_exit
from ringloom.runtimes.process_tree import tree

MIN_DEVICES = 8  # virtual devices of a process
CHILD = "from ringloom.runtimes.jax.mesh import child; child()"
Call = tuple[int, str, str, tuple[Array, ...], Array | None]  # the arguments of `run`


def execute(plans: Plans, function: str, *arrays: Array, sinks: Array | None = None) -> list[Array]:
    """Runs plans on the backend `jax`, see `ringloom.runtimes.backends`."""
    if function == "attention" and len(arrays) == 3:
        return execute(plans, "forward", *arrays, sinks=sinks)[:1]
    call = plans.ranks, source_of(plans, "jax"), function, arrays, sinks
    return run(*call) if devices(plans.ranks) else in_child(call)


def devices(ranks: int) -> list[Any]:
    """Returns one device per rank, or [] if this process cannot have enough devices."""
    with suppress(RuntimeError):  # the number of devices is fixed at their first use
        jax.config.update("jax_num_cpu_devices", max(MIN_DEVICES, ranks))
    kinds = map(jax.devices, (None, "cpu"))
    return next((list(kind[:ranks]) for kind in kinds if len(kind) >= ranks), [])


def run(
    ranks: int, source: str, function: str, arrays: tuple[Array, ...], sinks: Array | None
) -> list[Array]:
    """Runs a function of an emitted program and returns its results; "attention" needs dout."""
    context = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with context(arrays[0].dtype == np.float64):
        program, functions = compile_program(ranks, source)
        inputs = (
            jax.numpy.concatenate([program.shard(x, r, side=side) for r in range(ranks)], axis=2)
            for x, side in zip(arrays, SIDES, strict=False)
        )
        results = functions[function](() if sinks is None else (sinks,), *inputs)
        sides = RESULTS[function]
        whole = (program.unshard([x], side=s) for x, s in zip(results, sides, strict=False))
        return [np.asarray(x) for x in (*whole, *results[len(sides) :])]


@lru_cache(maxsize=4)  # `ringloom run --check` runs one program a dozen times
def compile_program(ranks: int, source: str) -> tuple[ModuleType, dict[str, Callable[..., Any]]]:
    """Returns a program and its jitted functions, which take sinks and arrays in layout order."""
    program, mesh = load(source), Mesh(np.array(devices(ranks)), ("sp",))
    spec, everywhere = PartitionSpec(None, None, "sp"), PartitionSpec()

    def forward(sinks: Any, *inputs: Any) -> Any:
        run_forward = program.forward_with_sinks if sinks else program.forward
        out, (_, _, _, _, lse, *_) = run_forward(*inputs, *sinks, "sp")
        return out, lse

    def attention(sinks: Any, q: Any, k: Any, v: Any, dout: Any) -> Any:
        def attend(q: Any, k: Any, v: Any, *sinks: Any) -> Any:
            named = dict(zip(("sinks",), sinks, strict=False))
            return program.attention(q, k, v, **named, mesh=mesh, axis="sp")

        out, pull_back = jax.vjp(attend, q, k, v, *sinks)
        return out, *pull_back(dout)

    def backward(sinks: Any, q: Any, k: Any, v: Any, dout: Any, out: Any, lse: Any) -> Any:
        run_backward = program.backward_with_sinks if sinks else program.backward
        *gradients, last = run_backward("sp", (q, k, v, out, lse, *sinks), dout)
        return *gradients, jax.lax.psum(last, "sp") if sinks else last

    def on_shards(function: Any, results: int) -> Callable[..., Any]:
        def whole(sinks: Any, *arrays: Any) -> Any:
            specs = (everywhere, *[spec] * len(arrays))
            out = (*[spec] * results, *[everywhere] * (bool(sinks) and results > 2))
            options = {"mesh": mesh, "in_specs": specs, "out_specs": out, "check_vma": False}
            return jax.shard_map(function, **options)(sinks, *arrays)

        jitted: Callable[..., Any] = jax.jit(whole)
        return jitted

    return program, {
        "attention": jax.jit(attention),
        "forward": on_shards(forward, 2),
        "backward": on_shards(backward, 3),
    }


def in_child(call: Call) -> list[Array]:
    """Runs a program in a child process with enough devices; raises RankError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.pickle")
        file.write_bytes(pickle.dumps(call))
        command = [sys.executable, "-c", CHILD, str(file)]
        env = child_environment() | {"JAX_PLATFORMS": "cpu"}
        with tree(command, env=env, streams=subprocess.PIPE) as process:
            _, errors = process.communicate()
        if process.returncode:
            status, text = describe_exit(process.returncode), errors.decode(errors="replace")
            raise RankError(f"the JAX program failed on {call[0]} devices ({status}):\n{text}")
        results: list[Array] = pickle.loads(file.read_bytes())
        return results


def child() -> None:
    """Runs the call in the file named on the command line; replaces the file by the results."""
    file = Path(sys.argv[1])
    call: Call = pickle.loads(file.read_bytes())
    if not devices(call[0]):
        raise RuntimeError(f"no {call[0]} devices")
    file.write_bytes(pickle.dumps(run(*call)))
