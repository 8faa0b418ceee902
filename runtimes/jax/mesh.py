"""The JAX backend: a plan's emitted program on a mesh of devices, virtual ones on a CPU.

here      where this process has, or can still get, one device per rank
child     else: a process with that many virtual devices, which ends with the run

Whole arrays are in sequence order; inside they are in layout order, padded.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from planner.plans import Plans
from runtimes.arrays import Array
from runtimes.emitted import RESULTS, SIDES, source_of
from runtimes.errors import RankError, ended

DEVICES = 8  # virtual devices that a process gets, at least
CHILD = "from runtimes.jax.mesh import child; child()"


def execute(plans: Plans, function: str, *arrays: Array, sinks: Array | None = None) -> list[Array]:
    """The backend `jax`, see `runtimes.backends`."""
    program = program_of(plans.ranks, source_of(plans, "jax"))
    if function == "attention" and len(arrays) == 3:
        return execute(plans, "forward", *arrays, sinks=sinks)[:1]
    if program.devices is None:
        return in_child(program, function, arrays, sinks)
    return program.run(function, *arrays, sinks=sinks)


@lru_cache(maxsize=4)
def program_of(ranks: int, source: str) -> "Program":
    """Returns the program of a text; the last ones keep what they compiled."""
    return Program(ranks, source)


class Program:
    """An emitted program as a module, compiled once for each of its functions."""

    def __init__(self, ranks: int, source: str) -> None:
        self.ranks, self.source = ranks, source

    @cached_property
    def module(self) -> ModuleType:
        """The program, executed."""
        module = ModuleType("emitted")
        exec(compile(self.source, "<emitted>", "exec"), module.__dict__)
        return module

    @cached_property
    def devices(self) -> list[Any] | None:
        """One device per rank, or None where this process cannot have so many."""
        with suppress(RuntimeError):  # the number of devices is fixed at their first use
            jax.config.update("jax_num_cpu_devices", max(DEVICES, self.ranks))
        for kind in (None, "cpu"):
            if len(devices := jax.devices(kind)) >= self.ranks:
                return list(devices[: self.ranks])
        return None

    def run(self, function: str, *arrays: Array, sinks: Array | None = None) -> list[Array]:
        """Returns results of "attention" with dout, "forward" or "backward"."""
        context = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
        with context(arrays[0].dtype == np.float64):
            logits = () if sinks is None else (sinks,)
            results = self.functions[function](logits, *map(self.ordered, arrays, SIDES))
            sides = RESULTS[function]
            whole = (self.module.unshard([x], side=s) for x, s in zip(results, sides, strict=False))
            return [np.asarray(x) for x in (*whole, *results[len(sides) :])]

    def ordered(self, x: Array, side: str) -> Any:
        """Returns an array in layout order, padded with zeros, from one in sequence order."""
        shards = (self.module.shard(x, rank, side=side) for rank in range(self.ranks))
        return jax.numpy.concatenate(list(shards), axis=2)

    @cached_property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Compiled functions by name, on sinks, if any, and whole arrays in layout order."""
        module, mesh = self.module, Mesh(np.array(self.devices), ("sp",))
        spec, everywhere = PartitionSpec(None, None, "sp"), PartitionSpec()

        def forward(sinks: Any, *inputs: Any) -> Any:
            ahead = module.forward_with_sinks if sinks else module.forward
            out, (_, _, _, _, lse, *_) = ahead(*inputs, *sinks, "sp")
            return out, lse

        def attention(sinks: Any, q: Any, k: Any, v: Any, dout: Any) -> Any:
            def attend(q: Any, k: Any, v: Any, *sinks: Any) -> Any:
                named = dict(zip(("sinks",), sinks, strict=False))
                return module.attention(q, k, v, **named, mesh=mesh, axis="sp")

            out, pull_back = jax.vjp(attend, q, k, v, *sinks)
            return out, *pull_back(dout)

        def backward(sinks: Any, q: Any, k: Any, v: Any, dout: Any, out: Any, lse: Any) -> Any:
            back = module.backward_with_sinks if sinks else module.backward
            *gradients, last = back("sp", (q, k, v, out, lse, *sinks), dout)
            return *gradients, jax.lax.psum(last, "sp") if sinks else last

        def on_shards(function: Any, results: int) -> Callable[..., Any]:
            def run(sinks: Any, *arrays: Any) -> Any:
                specs = (everywhere, *[spec] * len(arrays))
                out = (*[spec] * results, *[everywhere] * (bool(sinks) and results > 2))
                options = {"mesh": mesh, "in_specs": specs, "out_specs": out, "check_vma": False}
                return jax.shard_map(function, **options)(sinks, *arrays)

            compiled: Callable[..., Any] = jax.jit(run)
            return compiled

        return {
            "attention": jax.jit(attention),
            "forward": on_shards(forward, 2),
            "backward": on_shards(backward, 3),
        }


def in_child(
    program: Program, function: str, arrays: tuple[Array, ...], sinks: Array | None
) -> list[Array]:
    """Runs the program in a process with enough virtual devices; raises RankError if it fails."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "run.pickle")
        place.write_bytes(pickle.dumps((program.ranks, program.source, function, arrays, sinks)))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(place)],
            env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            how = f"on {program.ranks} devices ({ended(done.returncode)})"
            raise RankError(f"the JAX program failed {how}:\n{done.stderr}")
        results: list[Array] = pickle.loads(place.read_bytes())
        return results


def child() -> None:
    """Runs the program in the file named on the command line, and leaves its results there."""
    place = Path(sys.argv[1])
    ranks, source, function, arrays, sinks = pickle.loads(place.read_bytes())
    program = Program(ranks, source)
    if program.devices is None:
        raise RuntimeError(f"no {ranks} devices")
    place.write_bytes(pickle.dumps(program.run(function, *arrays, sinks=sinks)))
