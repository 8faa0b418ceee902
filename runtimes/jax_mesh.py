"""The JAX backend: a plan's emitted program on a mesh of devices, virtual ones on a CPU.

here      where this process has, or can still get, one device per rank
child     else: a process with that many virtual devices, which ends with the run
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from codegen.emitting import emit
from planner.errors import PlanError
from planner.ir import Held, Move, Plan, Step
from planner.passes.adjoint import adjoint
from planner.passes.trim import trim
from planner.planning import Pair, derive
from runtimes import dense
from runtimes.arrays import Array, check_arrays, dtype_of, wide
from runtimes.backends import RankError, ended
from runtimes.oracle import Results, passes

DEVICES = 8  # virtual devices that a process gets, at least
CHILD = "from runtimes.jax_mesh import child; child()"
Plans = tuple[Plan | None, Plan | None]  # forward, backward


def run(
    plan: Plan | Pair, q: Array, k: Array, v: Array, dout: Array | None = None
) -> Array | Results:
    """Run a plan's JAX program on arrays in sequence order: out, or with `dout` (out, dq, dk, dv).

    Arguments and errors as in `runtimes.oracle.run`.
    """
    found = passes(plan)
    ahead, back = found.get("forward"), found.get("backward")
    if dout is None:
        if ahead is None:
            raise PlanError("a backward plan alone needs dout")
        return forward(ahead, q, k, v)[0]
    work = next(iter(found.values())).workload
    check_arrays(work, q=q, k=k, v=v, dout=dout)
    if ahead is None:
        out, lse = dense.forward(work, q, k, v)
        given = out.astype(wide(work.dtype)), lse.astype(wide(work.dtype))
        dq, dk, dv = on_devices((None, back), "backward", q, k, v, dout, *given)
        return out.astype(dtype_of(work.dtype)), dq, dk, dv
    plans = ahead, back or derive(adjoint(trim(ahead)))
    out, dq, dk, dv = on_devices(plans, "both", q, k, v, dout)
    return out, dq, dk, dv


def forward(plan: Plan, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Run a forward plan: out in the workload's dtype, and lse [batch, heads, seq], not rounded."""
    if plan.pass_ != "forward":
        raise PlanError(f"{plan.name} is a {plan.pass_} plan, not a forward plan")
    check_arrays(plan.workload, q=q, k=k, v=v)
    out, lse = on_devices((plan, None), "forward", q, k, v)
    return out, lse[..., 0]


def on_devices(plans: Plans, what: str, *arrays: Array) -> list[Array]:
    """Results in sequence order, from this process or, where it lacks devices, from a child."""
    program = program_of(*plans)
    if program.devices is not None:
        return program.run(what, *arrays)
    return in_child(program.ranks, program.source, what, arrays)


@lru_cache(maxsize=4)
def program_of(ahead: Plan | None, back: Plan | None) -> "Program":
    """The program of a forward plan, of a pair, or of a backward plan alone."""
    held = bool(ahead and ahead.start) or (ahead is None and bool(back and back.start))
    if held:
        ahead, back = ahead and fetched(ahead), back and fetched(back)
    if ahead is None:
        if back is None:
            raise PlanError("there is no plan to run")
        ahead = replace(back, pass_="forward", start=(), buffers=(), steps=())
    return Program(ahead.ranks, emit((ahead, back) if back else ahead, "jax"))


def fetched(plan: Plan) -> Plan:
    """The plan with a first step that brings the copies which it has at its start."""
    moves = [move for held in plan.start for move in bring(plan, held)]
    return replace(plan, start=(), buffers=(), steps=(Step((), tuple(moves)), *plan.steps))


def bring(plan: Plan, held: Held) -> list[Move]:
    """Messages from the homes of held blocks, a column of blocks at a time."""
    homes = plan.side(held.tensors[0]).homes
    return [
        Move(held.tensors, block[some], homes[block[some]], held.rank[some])
        for block in held.blocks.T
        for some in [(block >= 0) & (homes[block] != held.rank)]
    ]


class Program:
    """An emitted program, executed as a module, and its functions compiled once."""

    def __init__(self, ranks: int, source: str) -> None:
        self.ranks, self.source = ranks, source
        self.compiled = dict[str, Callable[..., Any]]()

    @cached_property
    def module(self) -> ModuleType:
        """The program as a module of its own."""
        module = ModuleType("emitted")
        exec(compile(self.source, "<emitted>", "exec"), module.__dict__)
        return module

    @cached_property
    def devices(self) -> list[Any] | None:
        """One device per rank, or None where this process cannot have so many."""
        import jax

        with suppress(RuntimeError):  # once devices are there, there are no more
            jax.config.update("jax_num_cpu_devices", max(DEVICES, self.ranks))
        for kind in (None, "cpu"):
            if len(found := jax.devices(kind)) >= self.ranks:
                return list(found[: self.ranks])
        return None

    def run(self, what: str, *arrays: Array) -> list[Array]:
        """Results of "forward", "both" or "backward" for arrays in sequence order."""
        import jax

        context = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
        with context(arrays[0].dtype == np.float64):
            sides = {"forward": (0, 1, 1), "both": (0, 1, 1, 0), "backward": (0, 1, 1, 0, 0, 0)}
            whole = [
                self.ordered(x.reshape(*x.shape[:3], -1), side)
                for x, side in zip(arrays, sides[what], strict=True)
            ]
            back = {"forward": (0, 0), "both": (0, 0, 1, 1), "backward": (0, 1, 1)}
            found = self.function(what)(*whole)
            return [self.restored(x, side) for x, side in zip(found, back[what], strict=True)]

    def positions(self, side: int) -> Array:
        """The positions of all ranks one after the other, -1 for padding."""
        function = (self.module.positions, self.module.kv_positions)[side]
        return np.concatenate([function(rank) for rank in range(self.ranks)])

    def ordered(self, x: Array, side: int) -> Array:
        """An array in sequence order put into layout order, padding zero."""
        at = self.positions(side)
        zero = x.dtype.type(0)
        return np.where((at >= 0)[:, None], x[:, :, np.maximum(at, 0)], zero)

    def restored(self, x: Any, side: int) -> Array:
        """A result in layout order put into sequence order."""
        at = self.positions(side)
        order = np.argsort(at, kind="stable")[np.count_nonzero(at < 0) :]
        return np.ascontiguousarray(np.asarray(x)[:, :, order])

    def function(self, what: str) -> Callable[..., Any]:
        """The compiled function behind "forward", "both" or "backward"."""
        import jax

        if what not in self.compiled:
            self.compiled[what] = jax.jit(getattr(self, f"_{what}"))
        return self.compiled[what]

    @cached_property
    def where(self) -> Any:
        """The mesh of this process as the program wants to know it."""
        from jax.sharding import Mesh

        return self.module.Where(Mesh(np.array(self.devices), ("sp",)), "sp", None, None)

    def _lengths(self) -> tuple[Any, int, int]:
        return self.where, self.module.SEQ, self.module.KV_SEQ

    def _forward(self, q: Any, k: Any, v: Any) -> Any:
        out, lse, _ = self.module.run_forward(q, k, v, *self._lengths())
        return out.astype(q.dtype), lse

    def _both(self, q: Any, k: Any, v: Any, dout: Any) -> Any:
        import jax

        def attend(*inputs: Any) -> Any:
            return self.module.attention(*inputs, mesh=self.where.mesh)

        out, pull_back = jax.vjp(attend, q, k, v)
        return out, *pull_back(dout)

    def _backward(self, q: Any, k: Any, v: Any, dout: Any, out: Any, lse: Any) -> Any:
        *_, kept = self.module.run_forward(q, k, v, *self._lengths())
        return self.module.run_backward(*self._lengths(), (q, k, v, out, lse, kept), dout)


# ---- the child


def in_child(ranks: int, source: str, what: str, arrays: tuple[Array, ...]) -> list[Array]:
    """The same in a process with enough virtual devices; raises RankError where it fails."""
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "run.pickle")
        place.write_bytes(pickle.dumps((ranks, source, what, arrays)))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(place)],
            env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            how = ended(done.returncode)
            raise RankError(f"the JAX program failed on {ranks} devices ({how}):\n{done.stderr}")
        found: list[Array] = pickle.loads(place.read_bytes())
        return found


def child() -> None:
    """Run what the file named on the command line says, and leave the results there."""
    place = Path(sys.argv[1])
    ranks, source, what, arrays = pickle.loads(place.read_bytes())
    program = Program(ranks, source)
    if program.devices is None:
        raise RuntimeError(f"no {ranks} devices")
    place.write_bytes(pickle.dumps(program.run(what, *arrays)))
