"""Names the first pair with a wrong weight, by probing a program as audits do.

One execution asks all questions: each of them is a batch row.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case as Audited
from ringloom.runtimes.audit.faults.verdicts import judge
from ringloom.runtimes.audit.probes.probing import probe
from ringloom.runtimes.audit.probes.questions import Answer, Question, inputs
from ringloom.runtimes.judging.case import Case, Layout

Run = Callable[[Sequence[Array]], Sequence[Sequence[Array]]]  # inputs to the parts of ranks
PAIRS = 1 << 30  # maximum number of pairs to compute, over all heads and questions
RESULTS = "out", "dq", "dk", "dv"


def first_wrong_pair(case: Case, q: Layout, kv: Layout, run: Run) -> str:
    """Returns a sentence with a fault's kind and its first wrong pair, or "" if there is none.

    `q` and `kv` are the positions of ranks. Attention with sinks and long sequences are not probed.
    """
    work, (q_shards, kv_shards) = case.work, (_whole(q), _whole(kv))
    if work.sinks:
        return ""
    passes = "both" if case.backward else "forward"
    audited = Audited(work, case.ranks, q_shards, kv_shards, passes)
    try:
        asked = list[Question]()

        def note(question: Question) -> Answer:
            asked.append(question)
            return _answer([np.zeros(shape) for shape in _shapes(audited)])

        probe(audited, note, case.backward, screened=False)
        if len(asked) * work.batch * work.heads * work.seq * work.kv_seq > PAIRS:
            return ""
        answers, number = answered(case, audited, asked, run), count()
        seen = probe(audited, lambda _: answers[next(number)], case.backward, screened=False)
        faults, _, _ = judge(audited, seen)
    except Exception:  # a hostile file may answer anything
        return ""
    return f"{faults[0].kind}: {faults[0].sentence}" if faults else ""


def answered(case: Case, audited: Audited, questions: Sequence[Question], run: Run) -> list[Answer]:
    """Returns the answers to questions from one execution of the program."""
    work, sides = case.work, {name: audited.side(name) for name in ("q", "kv")}
    rows = {name: list[Array]() for name in ("q", "k", "v", "dout")}
    for question in questions:
        given = inputs(audited, question)
        for name, arrays in rows.items():
            side = sides["q" if name in ("q", "dout") else "kv"]
            array = given.get(name, np.zeros((*given["q"].shape[:3], work.v_head_dim)))
            ordered = np.zeros((*array.shape[:2], side.tokens, array.shape[3]), array.dtype)
            held = side.positions >= 0
            ordered[:, :, side.positions[held]] = array[:, :, held]
            arrays.append(ordered)
    parts = run([np.concatenate(arrays) for arrays in rows.values()])
    number = len(RESULTS) if case.backward else 1
    whole = [np.concatenate([part[n] for part in parts], axis=2) for n in range(number)]
    split = zip(*(np.split(x, len(questions)) for x in whole), strict=True)
    return [_answer(results) for results in split]


def _answer(results: Sequence[Array]) -> Answer:
    named: dict[str, Any] = dict(zip(RESULTS, results, strict=False))
    return Answer(**named)


def _shapes(audited: Audited) -> Sequence[tuple[int, ...]]:
    """Returns the shapes of one question's results over all slots."""
    work, slots = audited.work, [len(audited.side(name).ranks) for name in ("q", "kv")]
    sides = (work.heads, slots[0]), (work.kv_heads, slots[1])
    dims = (sides[0], work.v_head_dim), (sides[0], work.head_dim)
    keys = (sides[1], work.head_dim), (sides[1], work.v_head_dim)
    every = [(work.batch, *side, dim) for side, dim in (*dims, *keys)]
    return every if audited.passes == "both" else every[:1]


def _whole(layout: Layout) -> tuple[Any, ...]:
    return tuple(np.asarray(shard, np.int64) for shard in layout)
