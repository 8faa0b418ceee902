"""Asks a JAX function of global arrays in layout order, on a mesh with one axis."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.probes.questions import Answer, Question, inputs
from ringloom.runtimes.audit.running.asking import check_result, discard, has_parameter, widen
from ringloom.runtimes.jax.mesh import devices

AXIS = "sp"


class Asker:
    """A function of q, k and v, [batch, heads, slots, head_dim], which are sharded along slots.

    The function receives `mesh`, with the axis "sp", if it has a parameter of this name. It is
    traced once for each kind of question; if it cannot be traced, it is called directly.
    """

    def __init__(
        self,
        attend: Callable[..., Any],
        case: Case,
        mesh: Mesh,
        note: Callable[[str], None] = discard,
    ) -> None:
        self.case, self.mesh, self.note, self.calls = case, mesh, note, 0
        options = {"mesh": mesh} if has_parameter(attend, "mesh") else {}

        def forward(q: Any, k: Any, v: Any) -> Any:
            out = attend(q, k, v, **options)
            return out[0] if isinstance(out, tuple | list) else out

        def both(q: Any, k: Any, v: Any, dout: Any) -> Any:
            out, pull_back = jax.vjp(forward, q, k, v)
            return out, *pull_back(dout.astype(out.dtype))

        self.plain = forward, both
        self.traced = jax.jit(forward), jax.jit(both)
        self.can_trace = True

    @staticmethod
    def on_devices(
        attend: Callable[..., Any], case: Case, note: Callable[[str], None] = discard
    ) -> "Asker":
        """Returns an asker on one device per rank, which on a CPU are virtual."""
        if len(chips := devices(case.ranks)) < case.ranks:
            raise RingloomError(f"this process cannot have {case.ranks} JAX devices")
        return Asker(attend, case, Mesh(np.array(chips), (AXIS,)), note)

    def change(self, case: Case) -> None:
        """Replaces the case by one with known positions."""
        self.case = case

    def ask(self, question: Question) -> Answer:
        """Calls the function on all slots."""
        self.calls += 1
        with _precision(self.case.work.dtype == "float64"):
            arrays = [self._sharded(x) for x in inputs(self.case, question).values()]
            self.note(f"call {self.calls}: in the function")
            try:
                results = self._call(arrays)
            except RingloomError:
                raise
            except Exception as error:
                text = f"the function raised {type(error).__name__}: {error}"[:400]
                self.note(f"call {self.calls}: is done")
                return Answer(np.zeros(0), complaints=((0, "crash", text),))
            self.note(f"call {self.calls}: is done")
            widened = (widen(np.asarray(x)) for x in results)
            tensors: dict[str, Any] = dict(zip(("out", "dq", "dk", "dv"), widened, strict=False))
            complaints = check_result(results[0], arrays[0], arrays[2], 0, str(results[0].dtype))
        if any(kind == "wrong shape" for _, kind, _ in complaints):
            return Answer(np.zeros(0), complaints=complaints)
        return Answer(**tensors, complaints=complaints)

    def _call(self, arrays: list[Any]) -> list[Any]:
        with_gradients = len(arrays) > 3
        if self.can_trace:
            try:
                results = self.traced[with_gradients](*arrays)
                return list(results) if with_gradients else [results]
            except Exception:  # a direct call fails again if tracing was not the cause
                self.can_trace = False
        results = self.plain[with_gradients](*arrays)
        return list(results) if with_gradients else [results]

    def _sharded(self, array: Array) -> Any:
        if array.shape[2] % len(self.mesh.devices.flat):
            return jax.numpy.asarray(array)
        spec = PartitionSpec(None, None, AXIS)
        return jax.device_put(array, NamedSharding(self.mesh, spec))


def _precision(double: bool) -> AbstractContextManager[Any]:
    context: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    result: AbstractContextManager[Any] = context(double)
    return result
