"""The ranks that a message goes from and to, in a step and in all of them."""

import numpy as np

from planner.columns import distinct
from planner.errors import PlanError
from planner.loops.expand import pairs
from planner.loops.form import Guard, Ints, Loops, Root, Send, Shift


def everybody(loops: Loops, s: Send) -> Ints:
    """The ranks that run a send whose way is the same in all steps: an interval, or all of them.

    More may be sent then than planned: inputs that nobody reads, or sums that are zero.
    """
    steps = s.when.steps
    ranks = distinct(np.concatenate([pairs(loops, s, t)[0] for t in steps]))
    whole = len(ranks) == ranks[-1] - ranks[0] + 1
    return ranks if whole else loops.coordinates()[:, -1]


def is_stepwise(s: Send) -> bool:
    """True if the way of a message changes with the step."""
    return isinstance(s.hop, Shift) and any(e.step for e in s.hop.by)


def is_rooted(s: Send) -> bool:
    """True for a broadcast, and for sums that go to one rank. Raises PlanError if some are out."""
    if not isinstance(s.hop, Root):
        return False
    if s.when.guard != Guard() or s.tensors == ("OUT",):
        raise PlanError("a broadcast among some ranks, or outputs that are merged on one of them")
    return True


def sends_inputs(s: object) -> bool:
    """True for messages of copies."""
    return isinstance(s, Send) and not s.sums
