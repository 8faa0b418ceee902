"""refuse_apart(rows)   a name has all tensors of its queries: refuses loops in which they part."""

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import QUERY_SIDE
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import HELD, OWN, Exchange, Send, Start


def refuse_apart(rows: Expansion) -> None:
    """Raises PlanError if some tensors of queries travel in messages of their own.

    But for those that the forward pass has left: to these, an exchange brings the others.
    """
    due = set(QUERY_SIDE[rows.plan.pass_])
    left = {"Q", "STATS"} if (HELD, None) in rows.values["q"].named else set[str]()
    tensors = {OWN: due, HELD: due}
    moves = [s for s in rows.loops.statements if isinstance(s, Exchange | Start | Send)]
    for s in sorted(moves, key=lambda s: s.when.first):
        if s.side != "q" or s.sums:
            continue
        sent = {*s.tensors} if isinstance(s, Exchange) else tensors.get(_source(s), {*s.tensors})
        if not due - left <= sent or tensors.setdefault(s.name, sent) != {*s.tensors}:
            raise PlanError(f"{' and '.join(s.tensors)} of queries travel apart from the rest")


def _source(s: Start | Send) -> str:
    """The name of what is sent, or named."""
    return s.part.value if isinstance(s, Start) else s.parts[0].value
