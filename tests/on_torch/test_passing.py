"""Collectives that emitted torch programs call, and errors that their self-check allows."""

from typing import Any

import pytest

from ringloom.codegen import emit
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

torch = pytest.importorskip("torch")

from in_memory import distributed  # noqa: E402
from rank_threads import assert_exact, load  # noqa: E402
from ringloom.codegen.torch.parts.check import limits_of  # noqa: E402  only where torch is
from ringloom.codegen.torch.parts.vocabulary import messages  # noqa: E402

OLD, NEW = (
    ("all_gather_into_tensor", "reduce_scatter_tensor"),
    ("all_gather_single", "reduce_scatter_single"),
)


@pytest.mark.parametrize(("offered", "missing"), [(NEW, OLD), (OLD, NEW)])
def test_collectives_are_called_by_the_name_that_this_torch_has(
    offered: tuple[str, ...], missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both names of each in some versions; the old one warns there."""
    for name in missing:
        monkeypatch.setattr(distributed, name, None)
    pair = plan("allgather", Workload(16, heads=2, head_dim=4, dtype="float64"), 2, pass_="both")
    assert_exact(load(emit(pair, "torch")), pair)


class OnGpu:
    """A tensor on a GPU, as far as a first call of a group asks."""

    is_cuda = True

    def new_zeros(self, size: int) -> Any:
        return torch.zeros(size)


def test_all_ranks_make_the_first_call_of_a_group_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, group = list[Any](), OnGpu()  # any object
    monkeypatch.setattr(messages.dist, "all_reduce", lambda x, group: calls.append(group))
    for _ in range(2):
        messages.initialise(group, OnGpu())
        messages.initialise(group, torch.zeros(1))
    assert calls == [group]
    partly, tables = (plan(name, Workload(64), 4, pass_="both") for name in ("burst", "balanced"))
    for text in (emit(pair, "torch", dynamic=True) for pair in (partly, tables)):
        assert text.index("    initialise(group") < text.index("works = dist.batch_isend_irecv")


def test_the_self_check_allows_what_rounding_makes() -> None:
    """An error of 0.05 passed once, where all values were as small."""
    truth = torch.rand(1000, dtype=torch.float64) / 20
    (limit, slope) = limits_of([(truth.bfloat16(), truth)] * 2).tolist()
    rounding = (truth.bfloat16().double() - truth).abs().max().item()
    assert rounding < limit < 1e-3
    assert slope == 10 * limit
    assert limits_of([(truth, truth)] * 2).tolist() == [1e-11] * 2
