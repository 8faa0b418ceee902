"""The JAX backend: a plan's emitted program on a mesh of devices, virtual ones on a CPU.

here      where this process has, or can still get, one device per rank
child     else: a process with that many virtual devices, which ends with the run
"""

import os
import pickle
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from codegen import emit
from planner.errors import PlanError
from planner.ir import Plan
from planner.planning import Pair
from runtimes import dense
from runtimes.arrays import Array, check_arrays, dtype_of, wide
from runtimes.backends import RankError, ended
from runtimes.jax.program import Program
from runtimes.oracle import Results
from runtimes.pairs import completed, passes

CHILD = "from runtimes.jax.mesh import child; child()"
EMITTED = lru_cache(maxsize=4)(emit)


def run(
    plan: Plan | Pair, q: Array, k: Array, v: Array, dout: Array | None = None
) -> Array | Results:
    """Run a plan's JAX program on arrays in sequence order: out, or with `dout` (out, dq, dk, dv).

    Arguments and errors as in `runtimes.oracle.run`.
    """
    plans = passes(plan)
    program = completed(plans, dout is not None)
    if dout is None:
        return forward(plans["forward"], q, k, v)[0]
    work = next(iter(plans.values())).workload
    check_arrays(work, q=q, k=k, v=v, dout=dout)
    if "forward" in plans:
        out, dq, dk, dv = on_devices(program, "both", q, k, v, dout)
        return out, dq, dk, dv
    out, lse = (x.astype(wide(work.dtype)) for x in dense.forward(work, q, k, v))
    dq, dk, dv = on_devices(program, "backward", q, k, v, dout, out, lse[..., None])
    return out.astype(dtype_of(work.dtype)), dq, dk, dv


def forward(plan: Plan, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Run a forward plan: out in the workload's dtype, and lse [batch, heads, seq], not rounded."""
    if plan.pass_ != "forward":
        raise PlanError(f"{plan.name} is a {plan.pass_} plan, not a forward plan")
    check_arrays(plan.workload, q=q, k=k, v=v)
    out, lse = on_devices(completed(passes(plan), False), "forward", q, k, v)
    return out, lse[..., 0]


def on_devices(plan: Plan | Pair, what: str, *arrays: Array) -> list[Array]:
    """Results in sequence order, from this process or, where it lacks devices, from a child."""
    one = plan if isinstance(plan, Plan) else plan[0]
    program = program_of(one.ranks, EMITTED(plan, "jax"))
    if program.devices is not None:
        return program.run(what, *arrays)
    return in_child(program, what, arrays)


@lru_cache(maxsize=4)
def program_of(ranks: int, source: str) -> Program:
    """A program that was run lately is not compiled again."""
    return Program(ranks, source)


def in_child(program: Program, what: str, arrays: tuple[Array, ...]) -> list[Array]:
    """The same in a process with enough virtual devices; raises RankError where it fails."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "run.pickle")
        place.write_bytes(pickle.dumps((program.ranks, program.source, what, arrays)))
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
    """Run what the file named on the command line says, and leave the results there."""
    place = Path(sys.argv[1])
    ranks, source, what, arrays = pickle.loads(place.read_bytes())
    program = Program(ranks, source)
    if program.devices is None:
        raise RuntimeError(f"no {ranks} devices")
    place.write_bytes(pickle.dumps(program.run(what, *arrays)))
