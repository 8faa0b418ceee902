"""refuse_separate_tensors(rows)   refuses loops that send tensors of the same queries apart."""

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import QUERY_SIDE
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import HELD, OWN, Exchange, Send, Start


def refuse_separate_tensors(rows: Expansion) -> None:
    """Raises PlanError if a message of queries lacks some of their tensors.

    Tensors that the forward pass has left on a rank may be absent.
    """
    required = set(QUERY_SIDE[rows.plan.pass_])
    optional = {"Q", "STATS"} if (HELD, None) in rows.values["q"].named else set[str]()
    tensors = {OWN: required, HELD: required}
    moves = [s for s in rows.loops.statements if isinstance(s, Exchange | Start | Send)]
    for s in sorted(moves, key=lambda s: s.when.first):
        if s.side != "q" or s.sums:
            continue
        sent = {*s.tensors} if isinstance(s, Exchange) else tensors.get(_source(s), {*s.tensors})
        if not required - optional <= sent or tensors.setdefault(s.name, sent) != {*s.tensors}:
            raise PlanError(f"a message of queries contains only {' and '.join(s.tensors)}")


def _source(s: Start | Send) -> str:
    """Returns the name of the value that is sent or named."""
    return s.part.value if isinstance(s, Start) else s.parts[0].value
