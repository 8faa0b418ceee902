"""Checks variants of a sample that must not change its results.

strides             inputs with other strides
interleaved         another call between the passes, as in pipelines
without_gradients   inputs that need no gradients, as in inference
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.place import Place
from ringloom.runtimes.audit.probes.questions import FORMS, Answer, Level, Question
from ringloom.runtimes.audit.probes.samples import (
    FAINT,
    NAMES,
    ROUNDING,
    TOLERANCE_16,
    said_faults,
    sample,
    whole,
)
from ringloom.runtimes.audit.report import KINDS, Fault

Ask = Callable[[Question], Answer]


def variants(case: Case, ask: Ask, at: Place, answer: Answer) -> list[Fault]:
    """Returns the fault of the first variant whose results differ from the sample's `answer`."""
    for look in (strides, interleaved, without_gradients):
        if faults := [*look(case, ask, at, answer)]:
            return faults
    return []


def strides(case: Case, ask: Ask, at: Place, answer: Answer) -> Iterator[Fault]:
    """Yields the fault of results that depend on the strides of inputs."""
    asked = [("transposed", sample(case, case.seed), answer)]
    if case.passes == "both":
        ones = np.ones(case.side("q").width)
        dout = tuple(Level(ones, dim) for dim in range(case.work.v_head_dim))
        flat = replace(sample(case, case.seed), dout=dout)
        asked.append(("expanded", flat, ask(flat)))
    for form, question, right in asked:
        if name := differing(case, at, right, ask(replace(question, form=form))):
            yield _fault("depends on strides", f"{name} differs {FORMS[form]}", name)
            return


def interleaved(case: Case, ask: Ask, at: Place, answer: Answer) -> Iterator[Fault]:
    """Yields the fault of results that another call changes before they are used."""
    question = replace(sample(case, case.seed), between=sample(case, case.seed + 1))
    if name := differing(case, at, answer, ask(question)):
        when = "its result is used" if name == "out" else "its backward pass"
        said = f"another call, made after this one and before {when}, changes {name}"
        yield _fault("depends on calls", said, name)


def without_gradients(case: Case, ask: Ask, at: Place, answer: Answer) -> Iterator[Fault]:
    """Yields the fault of results for inputs that need no gradients."""
    if case.passes == "forward":  # the sample itself needed no gradients
        return
    forward = replace(case, passes="forward")
    question = replace(sample(forward, case.seed), watch=True)
    alone = ask(question)
    known = {kind for _, kind, _ in answer.said}
    yield from (fault for fault in said_faults(alone) if fault.kind not in known)
    right = replace(answer, dq=None, dk=None, dv=None)
    if differing(forward, at, right, alone):
        yield _fault("wrong values", "out differs where inputs need no gradients", "out")
        return
    yield from interleaved(forward, ask, at, right)


def differing(case: Case, at: Place, one: Answer, other: Answer) -> str | None:
    """Returns the name of the first result that differs by more than rounding, if any."""
    results = zip(NAMES, whole(case, at, one), whole(case, at, other), strict=False)
    for name, a, b in results:
        a, b = (np.nan_to_num(x.astype(np.float64), nan=np.inf) for x in (a, b))
        largest = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
        allowed = max(FAINT, TOLERANCE_16 * ROUNDING[case.work.dtype]) * largest
        with np.errstate(invalid="ignore"):
            if not np.all((a == b) | (np.abs(a - b) <= allowed)):
                return name
    return None


def _fault(kind: str, said: str, name: str) -> Fault:
    pass_ = "forward" if name == "out" else "backward"
    return Fault(kind, f"{said}: {KINDS[kind]}", pass_, name)
