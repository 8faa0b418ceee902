"""Dense attention, with which tests of every runtime and target compare their results."""

from collections.abc import Sequence

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.reference import dense
from ringloom.runtimes.validation import EXACT, distance


def assert_dense(
    work: Workload,
    inputs: Sequence[Array],
    results: Sequence[Array],
    sinks: Array | None = None,
    lse: Array | None = None,
) -> None:
    """Out, and where `inputs` have dout all gradients, are those of dense attention; lse, too."""
    within, more = EXACT["float64" if work.dtype == "float64" else "float32"]
    out, right_lse = dense.forward(work, *inputs[:3], sinks=sinks)
    truths = [out, *(dense.backward(work, *inputs, sinks=sinks) if len(inputs) > 3 else ())]
    for number, (result, truth) in enumerate(zip(results, truths, strict=True)):
        error = distance(result, truth)
        assert error <= (more if number else within), f"{error:.1e} from dense attention"
    assert lse is None or distance(lse, right_lse) <= within
