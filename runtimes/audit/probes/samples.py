"""Compares results on random inputs with dense attention in float64.

The unit of errors is the error of dense attention in the workload's dtype on the same inputs, but
at least the rounding error of the largest result.
"""

from collections.abc import Iterator

import numpy as np

from ringloom.runtimes.arrays import Array, dtype_of
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.grid import Grid
from ringloom.runtimes.audit.probes.factors import with_factor
from ringloom.runtimes.audit.probes.questions import Answer, Noise, Question, inputs
from ringloom.runtimes.audit.probes.slices import by_column
from ringloom.runtimes.audit.probes.weights import ROUGH
from ringloom.runtimes.audit.report import KINDS, Fault, Measured
from ringloom.runtimes.reference import dense

NAMES = "out", "dq", "dk", "dv"
# Allowed units. The errors of merging over many ranks, and of rounding partial results to 16 bit as
# in some libraries, are smaller.
TOLERANCE, TOLERANCE_16 = 64.0, 16.0
ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}
IMPRECISE = 0.02  # share of the largest result below which an error counts as imprecision


def sample(case: Case, seed: int, poison: bool = False, watch: bool = False) -> Question:
    """Returns a question of standard normal inputs."""
    q, k, v, dout = ((Noise(seed, stream),) for stream in range(4))
    return Question(q, k, v, dout if case.passes == "both" else None, poison, watch)


def measure(case: Case, grid: Grid, seed: int, answer: Answer) -> dict[str, Measured]:
    """Returns the errors of an answer to `sample(case, seed)` by tensor."""
    results, truths = in_sequence(case, grid, answer), dense_results(case, seed)
    rounded, work = list(truths), case.work
    if work.dtype != "float64":
        rounded = dense_results(case, seed, work.dtype)
    allowed = TOLERANCE_16 if work.dtype in ROUGH else TOLERANCE
    rounding = ROUNDING[work.dtype]
    errors = dict[str, Measured]()
    for name, result, truth, dense_result in zip(NAMES, results, truths, rounded, strict=False):
        largest = float(np.max(np.abs(truth), initial=0.0))
        unit = max(max_error(dense_result, truth), rounding * largest, 1e-300)
        error = Measured(max_error(result, truth), unit, allowed)
        errors[name] = with_factor(error, result, truth, dense_result, rounding)
    return errors


def dense_results(case: Case, seed: int, precision: str = "float64") -> list[Array]:
    """Returns dense results on a sample's inputs: out, and dq, dk, dv if both passes run."""
    work, arrays = case.work, inputs(case, sample(case, seed))
    slots = {"q": case.side("q").first_slots(), "k": case.side("kv").first_slots()}
    sizes = {"q": work.seq, "k": work.kv_seq}
    order = {name: slots[name][: sizes[name]] for name in slots}
    q, k, v = (arrays[n][:, :, order["q" if n == "q" else "k"]] for n in "qkv")
    out = dense.forward(work, q, k, v, precision)[0]
    if "dout" not in arrays:
        return [out]
    return [out, *dense.backward(work, q, k, v, arrays["dout"][:, :, order["q"]], precision)]


def in_sequence(case: Case, grid: Grid, answer: Answer) -> list[Array]:
    """Returns the results of an answer in sequence order, summed over replicated keys."""
    results = [answer.out[:, :, grid.rows]]
    if answer.dq is not None:
        keys = (by_column(case, answer.gradient(name)) for name in ("dk", "dv"))
        results += [answer.dq[:, :, grid.rows], *(x[:, :, : case.work.kv_seq] for x in keys)]
    return results


def max_error(result: Array, truth: Array) -> float:
    """Returns the largest absolute difference, or infinity if a result is not finite."""
    error = np.abs(result.astype(np.float64) - truth.astype(np.float64))
    return float(np.max(np.where(np.isfinite(error), error, np.inf), initial=0.0))


def is_same(case: Case, grid: Grid, first: Answer, second: Answer) -> bool:
    """Returns True if answers differ by no more than allowed errors."""
    return first_difference(case, grid, first, second) is None


def first_difference(
    case: Case, grid: Grid, first: Answer, second: Answer, tolerance: float = 0.0
) -> str | None:
    """Returns the name of the first result that differs by more than rounding, or None.

    `tolerance`: a minimum for the allowed difference, as a share of the largest value.
    """
    results = zip(
        NAMES, in_sequence(case, grid, first), in_sequence(case, grid, second), strict=False
    )
    for name, a, b in results:
        a, b = (np.nan_to_num(x.astype(np.float64), nan=np.inf) for x in (a, b))
        largest = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
        allowed = max(tolerance, TOLERANCE_16 * ROUNDING[case.work.dtype]) * largest
        with np.errstate(invalid="ignore"):
            if not np.all((a == b) | (np.abs(a - b) <= allowed)):
                return name
    return None


def sample_faults(
    case: Case, grid: Grid, seed: int, answer: Answer, errors: dict[str, Measured], known: bool
) -> Iterator[Fault]:
    """Yields a fault on random inputs, unless other faults are `known`."""
    results, truths = in_sequence(case, grid, answer), dense_results(case, seed)
    if not np.isfinite(answer.out[:, :, grid.rows[~grid.wanted.any(axis=1)]]).all():
        yield Fault("empty rows", f"rows without keys are not finite: {KINDS['empty rows']}")
        return
    wrong = [name for name, error in errors.items() if not error.exact]
    if known or not wrong:
        return
    name = wrong[0]
    if errors[name].close:
        yield _factor_fault(name, errors[name])
        return
    result, truth = (dict(zip(NAMES, xs, strict=False))[name] for xs in (results, truths))
    difference = np.abs(result.astype(np.float64) - truth)
    worst = int(np.argmax(np.nan_to_num(difference, nan=np.inf)))
    _, head, token, _ = np.unravel_index(worst, difference.shape)
    error = errors[name]
    if not np.isfinite(error.error):
        kind = "not finite"
    elif error.error < IMPRECISE * float(np.abs(truth).max()) and case.work.dtype not in ROUGH:
        kind = "imprecise"
    else:
        kind = "wrong values" if name == "out" else "wrong gradient"
    side = "query" if name in ("out", "dq") else "key"
    text = (
        f"{', '.join(wrong)} on random inputs: the error of {name} is {error.error:.3g}, "
        f"{error.units:.3g}x that of dense attention in {dtype_of(case.work.dtype)}, worst at "
        f"{side} {token} of head {head}: {KINDS[kind]}"
    )
    location = {side: int(token), **_rank_fields(grid, side, int(token))}
    yield Fault(
        kind, text, "forward" if name == "out" else "backward", name, **location, head=int(head)
    )


def _factor_fault(name: str, error: Measured) -> Fault:
    """Returns the fault of results that have a common factor."""
    kind = "wrong values" if name == "out" else "gradient scaled"
    head = f"{'KV ' * (name in ('dk', 'dv'))}head {error.head}"
    text = f"{name} of {head} is {error.factor:.4g}x that of dense attention on random inputs"
    pass_ = "forward" if name == "out" else "backward"
    return Fault(kind, f"{text}: {KINDS[kind]}", pass_, name, batch=error.batch, head=error.head)


def _rank_fields(grid: Grid, side: str, token: int) -> dict[str, int]:
    ranks, indices = (
        (grid.query_ranks, grid.query_indices)
        if side == "query"
        else (grid.key_ranks, grid.key_indices)
    )
    return {f"{side}_rank": int(ranks[token]), f"{side}_index": int(indices[token])}


def complaint_faults(answer: Answer) -> tuple[Fault, ...]:
    """Returns a fault for each kind of complaint in an answer."""
    complaints = {kind: (rank, text) for rank, kind, text in answer.complaints[::-1]}
    return tuple(
        Fault(
            kind,
            f"{text}: {KINDS[kind]}",
            "backward" if kind == "crash" and answer.backward else "forward",
            query_rank=rank,
        )
        for kind, (rank, text) in complaints.items()
    )
