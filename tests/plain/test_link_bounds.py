"""Link bounds of a few ranks: what comes in over all links, worked out by hand."""

import pytest

from ringloom.planner.ir import Pass
from ringloom.planner.masks import Full
from ringloom.planner.workload import Workload
from ringloom.simulator.bounds import lower_bound
from ringloom.simulator.hardware import hardware
from ringloom.simulator.scenario import Scenario

A100 = hardware("a100-nvlink")
PASSES: tuple[Pass, ...] = ("forward", "backward")


def test_the_link_bound_of_two_ranks_is_what_both_have_to_receive_in_the_mean() -> None:
    """Infinitely fast chips: half of all pairs is of own queries and keys, another quarter not.

    To all pairs of a head go the 256 keys that a rank does not own, of 32 bytes, and 256 queries,
    whose OUT comes in at the other rank: 16 bytes each and 4 of the log-sum-exp. For another third
    of what is not own goes a third of them, in the mean over heads. DOUT and DQ are 16 bytes each.
    """
    work = Workload(seq=512, heads=1, head_dim=8, mask=Full())
    machine = A100.changed({"peak.bfloat16": 1e30, "intra.alpha": 0, "intra.bandwidth": 1e3})
    forward, backward = (lower_bound(work, 2, pass_, machine).seconds for pass_ in PASSES)
    assert forward == pytest.approx(256 * (32 + 36) / 3 / 1e3)
    assert backward == pytest.approx(256 * (32 + 32) / 3 / 1e3)


def test_own_queries_with_all_keys_are_enough_where_queries_share_keys() -> None:
    work = Workload(seq=512, heads=4, kv_heads=1, head_dim=8, mask=Full())
    machine = A100.changed({"peak.bfloat16": 1e30, "intra.alpha": 0, "intra.bandwidth": 1e3})
    assert lower_bound(work, 2, "forward", machine).seconds == pytest.approx(256 * 32 / 1e3)


def test_results_of_rows_computed_away_come_in_somewhere() -> None:
    """8 keys per query stay; a query costs Q, OUT and its log-sum-exp, or DOUT and DQ."""
    work = Workload(seq=512, kv_seq=4096, heads=1, head_dim=8, v_head_dim=4, mask=Full())
    machine = A100.changed({"peak.bfloat16": 1e30, "intra.alpha": 0, "intra.bandwidth": 1e3})
    rows = 256  # of each of two ranks: all queries with own keys are half of all pairs
    sizes = {"forward": 16 + 8 + 4, "backward": 8 + 16}
    for pass_ in PASSES:
        bound = lower_bound(work, 2, pass_, machine)
        assert bound.seconds == pytest.approx(rows * sizes[pass_] / 1e3)


def test_own_tokens_of_a_causal_mask_fill_half_of_their_box() -> None:
    """Two ranks: half of the pairs is n (n + 1) / 4, of which own tokens see o (o + 1) / 2."""
    n, o = 512, 256
    work = Workload(seq=n, heads=1, head_dim=8)
    machine = A100.changed({"peak.bfloat16": 1e30, "intra.alpha": 0, "intra.bandwidth": 1e3})
    beyond = n * (n + 1) / 4 + o * (o - 1) / 2 - o * o  # pairs of the box that are not own by own
    # To all pairs of the box go 256 keys of 32 bytes and 256 queries of 36, in a straight line.
    size = beyond / (n * n - o * o) * (n - o) * (32 + 36)
    assert lower_bound(work, 2, "forward", machine).seconds == pytest.approx(size / 1e3)


def test_a_slow_link_takes_its_rate_from_the_sum_of_all() -> None:
    work = Workload(seq=2**14, mask=Full())
    slow = A100.changed({"intra.bandwidth": 1e7, "intra.alpha": 0})
    even, uneven = (
        lower_bound(work, 8, "forward", slow, Scenario(links=links))
        for links in ({}, {("s0", 0): 1e-3})
    )
    assert (even.why, even.group) == ("link", "rank")
    assert uneven.seconds == pytest.approx(even.seconds * 8 / 7.001)


def test_pairs_of_nodes_of_several_sizes_go_where_they_cost_least() -> None:
    """Nodes of 2 and 1 ranks; the bound is that of the best of many ways to share out pairs."""
    work = Workload(seq=600, heads=4, kv_heads=1, head_dim=8, mask=Full())
    rates = {"inter.bandwidth": 1e3, "inter.alpha": 0, "intra.alpha": 0, "node.ranks": 2}
    machine = A100.changed(rates | {"peak.bfloat16": 1e30})
    bound = lower_bound(work, 3, "forward", machine)

    def size(pairs: int, own: int) -> float:
        """Own queries need these keys; all keys are enough for own x 600 pairs."""
        return 32 * max(0.0, pairs / own - own) if pairs <= own * 600 else float("inf")

    shares = range(0, 600**2 + 1, 1000)
    least = min(size(share, 400) + size(600**2 - share, 200) for share in shares)
    assert bound.group == "node"
    assert bound.seconds == pytest.approx(least / 3e3)  # the links of three ranks
