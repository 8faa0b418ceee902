"""Checks variants of a sample that must not change its results.

check_strides             inputs with other strides
check_interleaved         another call between the passes, as in pipelines
check_without_gradients   inputs that need no gradients, as in inference
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.grid import Grid
from ringloom.runtimes.audit.probes.questions import FORMS, Answer, Level, Question
from ringloom.runtimes.audit.probes.samples import (
    IMPRECISE,
    complaint_faults,
    first_difference,
    sample,
)
from ringloom.runtimes.audit.report import KINDS, Fault

Ask = Callable[[Question], Answer]


def check_variants(case: Case, ask: Ask, grid: Grid, answer: Answer) -> list[Fault]:
    """Returns the fault of the first variant whose results differ from the sample's `answer`."""
    for check in (check_strides, check_interleaved, check_without_gradients):
        if faults := [*check(case, ask, grid, answer)]:
            return faults
    return []


def check_strides(case: Case, ask: Ask, grid: Grid, answer: Answer) -> Iterator[Fault]:
    """Yields the fault of results that depend on the strides of inputs."""
    variants = [("transposed", sample(case, case.seed), answer)]
    if case.passes == "both":
        ones = np.ones(case.side("q").width)
        dout = tuple(Level(ones, dim) for dim in range(case.work.v_head_dim))
        flat = replace(sample(case, case.seed), dout=dout)
        variants.append(("expanded", flat, ask(flat)))
    for form, question, expected in variants:
        variant = ask(replace(question, form=form))
        if name := first_difference(case, grid, expected, variant, IMPRECISE):
            yield _fault("depends on strides", f"{name} differs {FORMS[form]}", name)
            return


def check_interleaved(case: Case, ask: Ask, grid: Grid, answer: Answer) -> Iterator[Fault]:
    """Yields the fault of results that another call changes before they are used."""
    question = replace(sample(case, case.seed), between=sample(case, case.seed + 1))
    if name := first_difference(case, grid, answer, ask(question), IMPRECISE):
        moment = "the use of its result" if name == "out" else "its backward pass"
        text = f"{name} of a call changes if another call runs before {moment}"
        yield _fault("depends on calls", text, name)


def check_without_gradients(case: Case, ask: Ask, grid: Grid, answer: Answer) -> Iterator[Fault]:
    """Yields the fault of results for inputs that need no gradients."""
    if case.passes == "forward":  # the sample itself needed no gradients
        return
    forward = replace(case, passes="forward")
    question = replace(sample(forward, case.seed), watch=True)
    variant = ask(question)
    known = {kind for _, kind, _ in answer.complaints}
    yield from (fault for fault in complaint_faults(variant) if fault.kind not in known)
    expected = replace(answer, dq=None, dk=None, dv=None)
    if first_difference(forward, grid, expected, variant, IMPRECISE):
        yield _fault("wrong values", "out differs if inputs need no gradients", "out")
        return
    yield from check_interleaved(forward, ask, grid, expected)


def _fault(kind: str, text: str, name: str) -> Fault:
    pass_ = "forward" if name == "out" else "backward"
    return Fault(kind, f"{text}: {KINDS[kind]}", pass_, name)
