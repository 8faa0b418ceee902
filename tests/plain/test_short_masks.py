"""Windows and documents shorten schedules: rounds and messages, as closed forms of the mask.

On P contiguous shards of c tokens a causal window reaches k = ceil(left / c) shards back. A shard
is seen by the k after it, as far as there are any: N = k P - k (k + 1) / 2 pairs of ranks in all.
"""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ringloom as rl
from ringloom.planner.ir import Plan
from ringloom.planner.schedules import SCHEDULES

SHARD = 8  # tokens
ranks, reaches = st.integers(2, 9), st.integers(1, 9)


def plans(name: str, P: int, mask: str, seq: int = 0) -> rl.Plans:
    work = rl.Workload(seq or P * SHARD, heads=8, kv_heads=8, mask=mask)
    layout = "contiguous" if "layout" in SCHEDULES[name].parameters else None
    return rl.plan(name, work, P, pass_="both", layout=layout)


def sent(plan: Plan) -> dict[str, Fraction]:
    """Shards of each tensor that are sent, by all ranks together."""
    tokens = dict[str, int]()
    for _, move in plan.moves():
        side = plan.partition.side(move.side)
        count = int((side.sizes * side.head_counts)[move.flat()[0]].sum())
        for tensor in move.tensors:
            tokens[tensor] = tokens.get(tensor, 0) + count
    return {tensor: Fraction(count, 8 * SHARD) for tensor, count in tokens.items()}


def pairs(P: int, k: int) -> int:
    return k * P - k * (k + 1) // 2


RINGS = "ring", "striped", "zigzag", "cache-ring", "groups"


@given(st.sampled_from(RINGS), ranks, reaches)
def test_a_ring_ends_where_the_window_does(name: str, P: int, k: int) -> None:
    k = min(k, P - 1)
    for left in (SHARD * (k - 1) + 1, SHARD * k):
        forward, backward = plans(name, P, f"causal & window:{left}")
        assert forward.rounds == backward.rounds == k + 1
        assert sent(forward) == {"KV": pairs(P, k)}
        # A block's gradient goes along the ranks that saw it, and from the last one to its owner.
        assert sent(backward) == {"KV": pairs(P, k), "DKV": pairs(P, k) + P - 1}


@given(st.sampled_from(["tokenring", "pass-q", "burst", "bidirectional"]), ranks, reaches)
def test_queries_and_both_ways_around_end_there_too(name: str, P: int, k: int) -> None:
    assume(P != 3 or name != "bidirectional")  # among three ranks it is one whole exchange
    k = min(k, P - 1)
    forward, backward = plans(name, P, f"causal & window:{SHARD * k}")
    rounds = min(k, P // 2) + 1 if name == "bidirectional" else k + 1
    assert forward.rounds == backward.rounds == rounds
    queries = name in ("tokenring", "pass-q")
    tensors = ("Q", "OUT") if queries else ("KV",)
    assert sent(forward) == dict.fromkeys(tensors, pairs(P, k))
    back = ("KV", "DKV") if name == "bidirectional" else ("Q", "DOUT", "STATS", "DQ")
    total = dict.fromkeys(back, pairs(P, k))
    if name == "burst" and k == P - 1:  # the last one goes all the way round, to its owner
        total["DQ"] += 1
    assert sent(backward) == total


@given(st.sampled_from(["broadcast", "double-ring", "balanced"]), ranks, reaches)
def test_others_send_as_few_messages(name: str, P: int, k: int) -> None:
    k = min(k, P - 1)
    total = sent(plans(name, P, f"causal & window:{SHARD * k}").forward)
    assert total.get("KV", 0) + total.get("Q", 0) == pairs(P, k)
    assert total.get("OUT", 0) == total.get("Q", 0)


@given(ranks, reaches, st.integers(1, 9 * SHARD), st.integers(0, SHARD), st.sampled_from([0, 1, 2]))
def test_a_halo_is_what_a_window_reaches_and_global_tokens_go_to_each_rank_once(
    P: int, k: int, left: int, globals_: int, stages: int
) -> None:
    """stages=1: the tokens that all see are gathered before the one round that needs them."""
    name, mask = f"group-cast:stages={stages}", f"causal & (window:{left} | global:{globals_})"
    work = rl.Workload(P * SHARD, heads=8, mask=mask)
    forward, backward = rl.plan(name, work, P, pass_="both")
    before = [rank * SHARD for rank in range(P)]
    seen = Fraction(sum(min(tokens, left + globals_) for tokens in before), SHARD)
    assert sent(forward) == ({"KV": seen} if seen else {})
    assert sent(backward) == ({"KV": seen, "DKV": seen} if seen else {})
    if stages:
        assert forward.rounds <= 1 + stages


@given(
    st.sampled_from([*RINGS[:4], "tokenring", "bidirectional", "group-cast", "balanced"]),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_documents_of_whole_shards_are_rings_of_their_own(name: str, many: int, d: int) -> None:
    """Of d shards each: P = many d ranks, d rounds where the mask is causal."""
    assume(many * d != 3 or name != "bidirectional")
    P, lengths = many * d, ",".join([str(d * SHARD)] * many)
    plan = plans(name, P, f"causal & documents:{lengths}").forward
    total = sent(plan)
    assert total.get("KV", 0) + total.get("Q", 0) == many * d * (d - 1) // 2
    if name not in ("bidirectional", "balanced"):
        assert plan.rounds == d
    for _, move in plan.moves():
        assert (move.src // d == move.dst // d).all()


@pytest.mark.parametrize("name", ["allgather", "llama3"])
def test_gathers_stay_whole_and_their_sums_do_not(name: str) -> None:
    forward, backward = plans(name, 8, f"causal & window:{SHARD}")
    assert sent(forward) == {"KV": 8 * 7}
    assert sent(backward) == {"KV": 8 * 7, "DKV": 7}
    assert sent(plans("halo", 8, f"causal & window:{SHARD}").forward) == {"KV": 7}


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 8), st.integers(1, 60))
def test_no_window_makes_any_schedule_send_more_or_take_longer(
    name: str, P: int, left: int
) -> None:
    short, whole = (plans(name, P, mask, 61) for mask in (f"causal & window:{left}", "causal"))
    for windowed, causal in zip(short, whole, strict=True):
        if name not in ("halo", "group-cast", "groups"):  # other pieces
            assert windowed.rounds <= causal.rounds
            most = sent(causal)
            assert all(amount <= most.get(t, 0) for t, amount in sent(windowed).items())
