"""Runs plans with a backend, on arrays in sequence order.

run(plan, q, k, v)       returns out, and gradients if dout is given
forward(plan, q, k, v)   returns out and lse
record(plan, q, k, v)    returns the results of `run` and the events, from virtual ranks that take
                         turns on one processor, or from the emitted torch program

A backend is a function `execute(plans, function, *arrays)`. It does the same as the function of an
emitted program that `function` names, but takes and returns whole arrays. The library of a backend
is imported on first use. lse is [batch, heads, seq, 1].

    attention   q, k, v                   ->  out
    attention   q, k, v, dout             ->  out, dq, dk, dv [, dsinks]
    forward     q, k, v                   ->  out, lse
    backward    q, k, v, dout, out, lse   ->  dq, dk, dv [, dsinks]

For a workload with sinks, `sinks` [heads] is a keyword argument. Then out and lse include the
sinks, and dsinks is the last gradient.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from ringloom.planner.errors import RingloomError, unknown
from ringloom.planner.optional import import_optional
from ringloom.planner.planning import backward_of
from ringloom.planner.plans import AnyPlans, Plans
from ringloom.planner.verify import ensure_verified
from ringloom.runtimes.arrays import Array, check_arrays, dtype_of, sum_dtype_of
from ringloom.runtimes.recording.events import Recorded
from ringloom.runtimes.reference import dense

Execute: TypeAlias = Callable[..., Sequence[Array]]
BACKENDS = {
    "numpy": "ringloom.runtimes.reference.oracle",
    "jax": "ringloom.runtimes.jax.mesh",
    "torch": "ringloom.runtimes.torch.launch",
}
RECORDERS = {
    "numpy": "ringloom.runtimes.reference.oracle",
    "torch": "ringloom.runtimes.recording.of_torch",
}


def run(
    plan: AnyPlans,
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None = None,
    *,
    sinks: Array | None = None,
    backend: str | Execute = "numpy",
) -> Any:
    """Runs a plan on arrays and returns out, with gradients if `dout` is given.

    Shapes: `q` [batch, heads, seq, head_dim], `k` [batch, kv_heads, kv_seq, head_dim], `v` [batch,
    kv_heads, kv_seq, v_head_dim], out [batch, heads, seq, v_head_dim], `sinks` [heads]. All arrays
    have the workload's dtype and are in sequence order. Without `dout` returns out, with `dout`
    (out, dq, dk, dv), followed by dsinks if the workload has sinks. `plan` is a forward plan, a
    backward plan or both. With `dout`, a forward plan alone is followed by its adjoint, and a
    backward plan alone takes out and lse from dense attention. Raises RingloomError for a backend
    that is unknown or not installed, for missing or mismatched arrays, and with the verifier's
    message for a wrong plan.
    """
    plans, work = ensure_verified(plan), Plans.of(plan).workload
    check_arrays(work, sinks, q=q, k=k, v=v, **({} if dout is None else {"dout": dout}))
    execute = _with_sinks(executor(backend), sinks)
    if dout is None:
        return execute(forward_of(plans), "attention", q, k, v)[0]
    if plans.forward is None:
        out, lse = (
            x.astype(sum_dtype_of(work.dtype)) for x in dense.forward(work, q, k, v, sinks=sinks)
        )
        gradients = execute(plans, "backward", q, k, v, dout, out, lse[..., None])
        return out.astype(dtype_of(work.dtype)), *gradients
    pair = Plans(plans.forward, plans.backward or backward_of(plans.forward))
    return tuple(execute(pair, "attention", q, k, v, dout))


def forward(
    plan: AnyPlans,
    q: Array,
    k: Array,
    v: Array,
    *,
    sinks: Array | None = None,
    backend: str | Execute = "numpy",
) -> tuple[Array, Array]:
    """Returns out as in `run`, and lse [batch, heads, seq], which is not rounded.

    If the workload has sinks, out and lse include them.
    """
    plans = forward_of(ensure_verified(plan))
    check_arrays(plans.workload, sinks, q=q, k=k, v=v)
    out, lse = _with_sinks(executor(backend), sinks)(plans, "forward", q, k, v)
    return out, lse[..., 0]


def record(
    plan: AnyPlans,
    *arrays: Array,
    backend: str = "torch",
    sinks: Array | None = None,
    **options: Any,
) -> tuple[Any, list[Recorded]]:
    """Returns the results of `run` and the events of each pass; the backend receives `options`.

    Raises RingloomError as `run` does, and for a backend that cannot record.
    """
    if backend not in RECORDERS:
        executor(backend)  # raises for an unknown backend
        raise RingloomError(
            f"a {backend} run cannot be recorded: its ranks run in one compiled program, which"
            f" reports no events per rank; backends that can record: {', '.join(RECORDERS)}"
        )
    log = list[Recorded]()
    execute = partial(import_optional(backend, RECORDERS[backend]).execute, log=log, **options)
    return run(plan, *arrays, sinks=sinks, backend=execute), log


def _with_sinks(execute: Execute, sinks: Array | None) -> Execute:
    return execute if sinks is None else partial(execute, sinks=sinks)


def forward_of(plans: Plans) -> Plans:
    """Returns the forward plan alone; raises RingloomError if there is none."""
    if plans.forward is None:
        raise RingloomError(f"{plans.name}: a backward plan alone needs dout")
    return Plans(forward=plans.forward)


def executor(backend: str | Execute) -> Execute:
    """Returns a backend by its name, which is also the name of the extra that installs it.

    Raises RingloomError for an unknown name, and if the backend's library is not installed.
    """
    if callable(backend):
        return backend
    if str(backend) not in BACKENDS:
        raise RingloomError(unknown("backend", backend, BACKENDS))
    execute: Execute = import_optional(backend, BACKENDS[backend]).execute
    return execute
