"""run(plan, q, k, v)       plans on real arrays, in sequence order in and out
forward(plan, q, k, v)   the same with lse

A backend is a function `execute(plans, function, *arrays)` that does what the function of that name
in an emitted program does, with whole arrays; the heavy libraries of a backend in the table are
imported when it is asked for. lse is [batch, heads, seq, 1].

    attention   q, k, v                   ->  out
    attention   q, k, v, dout             ->  out, dq, dk, dv
    forward     q, k, v                   ->  out, lse
    backward    q, k, v, dout, out, lse   ->  dq, dk, dv
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from planner.errors import RingloomError
from planner.planning import backward_of
from planner.plans import AnyPlans, Plans
from planner.verify import ensure_verified
from runtimes.arrays import Array, check_arrays, dtype_of, wide
from runtimes.reference import dense

Execute: TypeAlias = Callable[..., Sequence[Array]]
BACKENDS = {
    "numpy": "runtimes.reference.oracle",
    "jax": "runtimes.jax.mesh",
    "torch": "runtimes.torch.launch",
}


def run(
    plan: AnyPlans,
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None = None,
    *,
    backend: str | Execute = "numpy",
) -> Any:
    """Attend `q` [batch, heads, seq, head_dim] to `k` and `v` [batch, kv_heads, kv_seq, head_dim].

    Arrays are of the workload's dtype and in sequence order, in and out. Returns out, with `dout`
    (out, dq, dk, dv). `plan` is a forward plan, a backward plan or both. With `dout`, a forward
    plan alone is followed by its adjoint, and a backward plan alone takes out and lse from dense
    attention. Raises RingloomError for an unknown backend, for arrays that do not fit, and with the
    verifier's sentence for a wrong plan.
    """
    plans, execute = ensure_verified(plan), executor(backend)
    work = plans.workload
    check_arrays(work, q=q, k=k, v=v, **({} if dout is None else {"dout": dout}))
    if dout is None:
        return execute(forward_of(plans), "attention", q, k, v)[0]
    if plans.forward is None:
        out, lse = (x.astype(wide(work.dtype)) for x in dense.forward(work, q, k, v))
        gradients = execute(plans, "backward", q, k, v, dout, out, lse[..., None])
        return out.astype(dtype_of(work.dtype)), *gradients
    both = Plans(plans.forward, plans.backward or backward_of(plans.forward))
    return tuple(execute(both, "attention", q, k, v, dout))


def forward(
    plan: AnyPlans, q: Array, k: Array, v: Array, *, backend: str | Execute = "numpy"
) -> tuple[Array, Array]:
    """out as in `run`, and lse [batch, heads, seq], which is not rounded."""
    plans = forward_of(ensure_verified(plan))
    check_arrays(plans.workload, q=q, k=k, v=v)
    out, lse = executor(backend)(plans, "forward", q, k, v)
    return out, lse[..., 0]


def forward_of(plans: Plans) -> Plans:
    """Returns the forward plan alone; raises RingloomError where there is none."""
    if plans.forward is None:
        raise RingloomError(f"{plans.name}: a backward plan alone needs dout")
    return Plans(forward=plans.forward)


def executor(backend: str | Execute) -> Execute:
    """Returns a backend by its name; raises RingloomError, with the known ones, for another."""
    if not isinstance(backend, str):
        return backend
    if backend not in BACKENDS:
        raise RingloomError(f"unknown backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    execute: Execute = import_module(BACKENDS[backend]).execute
    return execute
