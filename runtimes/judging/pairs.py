"""Names the first pair with a wrong weight, by probing a program like an audit.

One execution asks all questions: each question is a batch row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case as Audited
from ringloom.runtimes.audit.faults.verdicts import judge
from ringloom.runtimes.audit.probes.probing import probe
from ringloom.runtimes.audit.probes.questions import Answer, Question, inputs
from ringloom.runtimes.judging.case import Case, Layout

Run = Callable[[Sequence[Array]], Sequence[Sequence[Array]]]  # inputs to the parts of ranks
MAX_PAIRS = 1 << 30  # pairs to compute, over all heads and questions
RESULTS = "out", "dq", "dk", "dv"


def first_wrong_pair(case: Case, q: Layout, kv: Layout, run: Run) -> str:
    """Returns a sentence on a fault and its first wrong pair, or "" if no fault shows.

    `q` and `kv` are the positions of ranks. Does not probe attention with sinks, or long sequences.
    """
    work, (q_shards, kv_shards) = case.work, (_integers(q), _integers(kv))
    if work.sinks:
        return ""
    passes = "both" if case.backward else "forward"
    audited = Audited(work, case.ranks, q_shards, kv_shards, passes)
    try:
        questions = list[Question]()

        def collect(question: Question) -> Answer:
            questions.append(question)
            return _answer([np.zeros(shape) for shape in _shapes(audited)])

        probe(audited, collect, case.backward, screened=False)
        if len(questions) * work.batch * work.heads * work.seq * work.kv_seq > MAX_PAIRS:
            return ""
        answers = iter(ask_together(case, audited, questions, run))
        result = probe(audited, lambda _: next(answers), case.backward, screened=False)
        faults, _, _ = judge(audited, result)
    except Exception:  # a hostile file may answer anything
        return ""
    return f"{faults[0].kind}: {faults[0].sentence}" if faults else ""


def ask_together(
    case: Case, audited: Audited, questions: Sequence[Question], run: Run
) -> list[Answer]:
    """Returns the answers to questions from one execution of the program."""
    work, sides = case.work, {name: audited.side(name) for name in ("q", "kv")}
    rows = {name: list[Array]() for name in ("q", "k", "v", "dout")}
    for question in questions:
        filled = inputs(audited, question)
        for name, arrays in rows.items():
            side = sides["q" if name in ("q", "dout") else "kv"]
            array = filled.get(name, np.zeros((*filled["q"].shape[:3], work.v_head_dim)))
            ordered = np.zeros((*array.shape[:2], side.tokens, array.shape[3]), array.dtype)
            is_token = side.positions >= 0
            ordered[:, :, side.positions[is_token]] = array[:, :, is_token]
            arrays.append(ordered)
    parts = run([np.concatenate(arrays) for arrays in rows.values()])
    number = len(RESULTS) if case.backward else 1
    whole = [np.concatenate([part[n] for part in parts], axis=2) for n in range(number)]
    split = zip(*(np.split(x, len(questions)) for x in whole), strict=True)
    return [_answer(results) for results in split]


def _answer(results: Sequence[Array]) -> Answer:
    arrays: dict[str, Any] = dict(zip(RESULTS, results, strict=False))
    return Answer(**arrays)


def _shapes(audited: Audited) -> Sequence[tuple[int, ...]]:
    """Returns the shapes of a question's results over all slots."""
    work, slots = audited.work, [len(audited.side(name).ranks) for name in ("q", "kv")]
    sides = (work.heads, slots[0]), (work.kv_heads, slots[1])
    dims = (sides[0], work.v_head_dim), (sides[0], work.head_dim)
    keys = (sides[1], work.head_dim), (sides[1], work.v_head_dim)
    shapes = [(work.batch, *side, dim) for side, dim in (*dims, *keys)]
    return shapes if audited.passes == "both" else shapes[:1]


def _integers(layout: Layout) -> tuple[Any, ...]:
    return tuple(np.asarray(shard, np.int64) for shard in layout)
