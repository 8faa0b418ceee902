"""Starts the workers of a sweep: joblib processes on this machine, or a Dask or Ray cluster."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ringloom.planner.errors import RingloomError, unknown
from ringloom.planner.given import require_integer
from ringloom.planner.optional import import_optional

BACKENDS = ("loky", "dask", "ray")
IDLE_TIMEOUT = 20  # seconds after which idle processes end, for example if the sweep is killed


@contextmanager
def workers(backend: str, address: str | None, jobs: int | None) -> Iterator[int]:
    """Makes joblib use the workers of a backend; yields their number.

    Without `jobs`, all cores or workers are used. Without an address, Dask and Ray start a cluster
    on this machine. Raises RingloomError for a library that is not installed, for a cluster that
    cannot be reached, and for more jobs than Ray has CPUs.
    """
    joblib = import_optional("sweep", "joblib")
    if backend not in BACKENDS:
        raise RingloomError(unknown("backend", backend, BACKENDS))
    if jobs is not None:
        require_integer("jobs", jobs, 1)
    with ExitStack() as stack:
        try:
            options = _connect(backend, address, stack)
        except OSError as error:
            reason = " ".join(str(error).split())
            raise RingloomError(f"cannot reach {backend} at {address}: {reason}") from None
        stack.enter_context(joblib.parallel_config(backend, n_jobs=jobs or -1, **options))
        limit: int = joblib.effective_n_jobs(-1)
        if backend == "ray" and jobs and jobs > limit:
            raise RingloomError(f"{jobs} jobs are more than the {limit} CPUs of the Ray cluster")
        yield jobs or limit


def _connect(backend: str, address: str | None, stack: ExitStack) -> dict[str, Any]:
    """Connects to a backend and returns its options for joblib; the stack closes connections."""
    match backend:
        case "dask":
            distributed = import_optional("dask", "distributed")
            return {"client": stack.enter_context(distributed.Client(address))}
        case "ray":
            ray = import_optional("ray", "ray")
            import_optional("ray", "ray.util.joblib").register_ray()
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
            stack.callback(ray.shutdown)
            return {}
    if address:
        raise RingloomError("loky takes no address: it runs on this machine")
    return {"idle_worker_timeout": IDLE_TIMEOUT}
