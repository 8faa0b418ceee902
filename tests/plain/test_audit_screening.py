"""Weights are screened in packs: few calls where they are as wanted, and each wrong one is read."""

from functools import partial

import numpy as np
import pytest

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit import Case
from ringloom.runtimes.audit.probes.probing import ProbeResult, probe, slices
from ringloom.runtimes.audit.probes.questions import Answer, Question, inputs
from ringloom.runtimes.audit.probes.screening import packs_of

TOKENS, HEADS, KV_HEADS = 300, 4, 2
WORK = Workload(TOKENS, heads=HEADS, kv_heads=KV_HEADS, head_dim=16, dtype="float32")
WANTED = WORK.allowed(range(TOKENS), range(TOKENS)).astype(float)
# Questions of 300 columns: 256 in the output, 16 in each of 16 dimensions; 112 of 7 with gradients.
FEWEST = 2 + 3


class Dense:
    """Attention at equal scores whose pairs count as often as multiplicities say, in both passes.

    Those of a head may differ, and those of a gradient from the output's: [heads, queries, keys].
    """

    def __init__(self, ahead: Array, **behind: Array) -> None:
        self.weights = {"out": ahead, "dq": ahead, "dk": ahead, "dv": ahead} | behind
        self.calls = 0

    def ask(self, case: Case, question: Question) -> Answer:
        self.calls += 1
        arrays = {name: x.astype(np.float64) for name, x in inputs(case, question).items()}
        v = np.repeat(arrays["v"], WORK.group, 1)
        out, *others = (self.weights[name] for name in ("out", "dq", "dk", "dv"))
        if question.dout is None:
            return Answer((out @ v).astype(np.float32))
        q, k, dout = arrays["q"], np.repeat(arrays["k"], WORK.group, 1), arrays["dout"]
        own = dout @ v.swapaxes(2, 3)
        scores = (own - (own * out).sum(-1, keepdims=True)) * WORK.softmax_scale
        dq, dk, dv = others
        grads = {
            "dq": (dq * scores) @ k,
            "dk": self.shared((dk * scores).swapaxes(2, 3) @ q),
            "dv": self.shared(dv.swapaxes(1, 2) @ dout),
        }
        narrow = {name: x.astype(np.float32) for name, x in grads.items()}
        return Answer((out @ v).astype(np.float32), **narrow)

    @staticmethod
    def shared(x: Array) -> Array:
        return np.asarray(x.reshape(1, KV_HEADS, HEADS // KV_HEADS, *x.shape[2:]).sum(2))


def of_heads(*changes: tuple[int, int, int, float]) -> Array:
    """Weights of the mask for each head, with changes of (head, query, key, times)."""
    times = np.repeat(WANTED[None], HEADS, 0)
    for head, query, key, number in changes:
        times[head, query, key] = number
    return np.asarray(times / times.sum(-1, keepdims=True))


def probed(dense: Dense) -> ProbeResult:
    case = Case(WORK, 1, (np.arange(TOKENS),))
    return probe(case, partial(dense.ask, case), gradients=True)


FAIR = of_heads()[0]


def test_without_a_fault_few_calls_show_all_weights() -> None:
    dense = Dense(of_heads())
    seen = probed(dense)
    assert dense.calls == FEWEST
    for lanes in seen.weights.values():
        np.testing.assert_allclose(lanes.first, FAIR, rtol=1e-5)
        assert not lanes.others


@pytest.mark.parametrize(
    "changes",
    [
        [(0, 299, 0, 2)],
        [(0, 0, 299, 1)],
        [(2, 150, 149, 0)],
        [(3, 200, 100, 0.5)],
        [(1, 250, 64, 0), (1, 250, 251, 1)],  # within a pack: the row's sum is right
        [(0, 280, 33, 0), (0, 280, 34, 0), (0, 280, 32, 2), (0, 280, 35, 2)],
    ],
    ids=["twice", "leak", "lost", "less", "moved", "exchanged"],
)
def test_a_wrong_weight_is_read_off_in_few_calls(
    changes: list[tuple[int, int, int, float]],
) -> None:
    dense = Dense(weights := of_heads(*changes))
    out = probed(dense).weights["out"]
    head = changes[0][0]
    np.testing.assert_allclose(out.others.get((0, head), out.first), weights[head], atol=1e-6)
    if head:
        np.testing.assert_allclose(out.first, FAIR, atol=1e-6)
    assert dense.calls <= FEWEST + 3 * len(changes)


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize("times", [0.0, 0.9, float("nan")])
def test_a_wrong_gradient_of_one_head_is_read_off(name: str, times: float) -> None:
    dense = Dense(of_heads(), **{name: of_heads()})
    dense.weights[name][1, 299, 70] *= times
    seen = probed(dense)
    for tensor, lanes in seen.weights.items():
        if tensor != name:
            np.testing.assert_allclose(lanes.first[~seen.blind], FAIR[~seen.blind], rtol=1e-4)
    lanes = seen.weights[name]
    lane = (0, 1) if name == "dq" else (0, 0)
    weight = lanes.others.get(lane, lanes.first)[299, 70] * TOKENS
    share = 1 if name == "dq" else 2  # of the heads of a group
    assert not abs(weight - 1) < 0.05 / share
    assert dense.calls <= FEWEST + 3 or np.isnan(times)  # which spreads to all sums


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("times", [0.0, 2.0])
def test_weights_of_a_head_that_are_a_multiple_take_no_further_call(
    name: str, times: float
) -> None:
    dense = Dense(of_heads(), **({} if name == "out" else {name: of_heads()}))
    dense.weights[name][2:] *= times
    seen = probed(dense)
    lanes, sees = seen.weights[name], ~seen.blind
    lane = (0, 2) if name in ("out", "dq") else (0, 1)
    np.testing.assert_allclose(lanes.first[sees], FAIR[sees], rtol=1e-4)
    np.testing.assert_allclose(lanes.others[lane][sees], times * FAIR[sees], rtol=1e-3, atol=1e-6)
    assert dense.calls <= FEWEST + 3


def test_a_gradient_that_flows_where_nothing_is_attended_is_read_off() -> None:
    lanes = probed(Dense(of_heads(), dv=of_heads((0, 10, 200, 1)))).weights["dv"]
    assert lanes.first[10, 200] > 0.01


def test_packs_of_16_bits_hold_their_factors() -> None:
    case = Case(Workload(4096, heads=1, head_dim=64, dtype="bfloat16"), 1)
    packs = packs_of(case, 4096, 64, 0)
    assert packs.size == 4
    assert ((packs.factors * 64) % 1 == 0).all()
    assert packs.factors.min() >= 1 > packs.factors.max() - 1
    parts = [*packs.slices()]
    assert len(parts) == 16
    assert (parts[0].start, parts[-1].stop) == (0, 4096)


def test_slices_hold_all_columns_that_are_wrong() -> None:
    assert [*slices(np.array([0, 0, 1, 0, 1, 1, 0], bool), 3)] == [(2, 3), (5, 2)]
    assert [*slices(np.zeros(4, bool), 3)] == []
