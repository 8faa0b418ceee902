"""Audits of 4,096 keys in low precision, and of padding and replicated keys: slots in one process.

Probing asks at equal scores, so a matrix of weights stands for the attention.
"""

import numpy as np
import pytest

from ringloom.planner.workload import Workload
from ringloom.runtimes.audit import Case
from ringloom.runtimes.audit.faults.verdicts import judge
from ringloom.runtimes.audit.probes.probing import probe
from ringloom.runtimes.audit.probes.questions import Answer, Question, inputs

torch = pytest.importorskip("torch")
from ringloom.runtimes.torch.rank import to_torch  # noqa: E402

KEYS = 4096
FAULTS = {
    "attended twice": (63, 2000, 2),
    "document leak": (63, 999, 1),
    "keys lost": (63, 3000, 0),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["", *FAULTS])
def test_one_pair_of_4096_keys_is_seen(kind: str, dtype: str) -> None:
    """The last 64 queries of a sequence, whose rows have thousands of keys."""
    mask = f"causal & documents:1000,{KEYS - 1000}"
    work = Workload(64, KEYS, heads=1, head_dim=512, dtype=dtype, mask=mask)
    case = Case(work, 1, (np.arange(64),), (np.arange(KEYS),), passes="forward")
    weights = work.allowed(range(64), range(KEYS)).astype(np.float32)
    if kind:
        *pair, number = FAULTS[kind]
        weights[tuple(pair)] = number
    p = torch.tensor(weights / weights.sum(1, keepdims=True))

    def ask(question: Question) -> Answer:
        out = (p @ to_torch(inputs(case, question)["v"]).float()).to(getattr(torch, dtype))
        return Answer(out.float().numpy())

    faults = judge(case, probe(case, ask, gradients=False))[0]
    assert [fault.kind for fault in faults] == ([kind] if kind else [])
    if kind:
        assert (faults[0].query, faults[0].key, faults[0].pairs) == (*FAULTS[kind][:2], 1)


@pytest.mark.parametrize("padding", [False, True])
def test_padding_and_replicated_keys(padding: bool) -> None:
    """Keys are on both ranks and each rank reads its own; padding is read, or not."""
    work = Workload(20, heads=1, head_dim=8, dtype="float32")
    q = tuple(np.append(half, -1) for half in np.split(np.arange(20), 2))
    case = Case(work, 2, q, (np.append(np.arange(20), -1),) * 2, passes="forward")
    sides = case.side("q"), case.side("kv")
    weights = work.allowed(sides[0].positions.clip(0), sides[1].positions.clip(0)).astype(float)
    weights *= sides[0].ranks[:, None] == sides[1].ranks
    weights[:, sides[1].positions < 0] = 0
    if padding:
        weights[4, 20] = 1
    p = torch.tensor(weights / weights.sum(1, keepdims=True)).float()

    def ask(question: Question) -> Answer:
        return Answer((p @ to_torch(inputs(case, question)["v"])).numpy())

    faults = judge(case, probe(case, ask, gradients=False))[0]
    assert [fault.kind for fault in faults] == ["padding attended"] * padding
