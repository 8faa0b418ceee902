"""Groups in memory: they do what gloo does, and notice what gloo would let pass."""

import multiprocessing
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringloom.runtimes.machine import RankError

torch = pytest.importorskip("torch")

from in_memory import distributed as memory_dist  # noqa: E402  only where torch is
from in_memory import network as memory_group  # noqa: E402
from in_memory.network import MemoryGroup  # noqa: E402
from in_memory.threads import on_threads  # noqa: E402

RANKS = 4


def drawn(rank: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


def exchanged(dist: Any, group: Any) -> list[Any]:
    """Something of everything, on one rank: over groups in memory or over gloo."""
    rank, size = group.rank(), group.size()
    own, results = drawn(rank, 8, 3), list[Any]()

    def between(tensors: list[Any], to: int, source: int) -> list[Any]:
        buffers = [torch.empty_like(x) for x in tensors]
        ops = [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x in tensors]
        ops += [dist.P2POp(dist.irecv, x, group=group, group_peer=source) for x in buffers]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return buffers

    results += between(
        [own, own.double(), 2 * own.bfloat16()], (rank + 1) % size, (rank - 1) % size
    )
    sharded, gathered, reduced = torch.empty(8, 3), torch.empty(8 * size, 3), torch.empty(2, 3)
    works = [
        dist.all_to_all_single(sharded, own, group=group, async_op=True),
        dist.all_gather_into_tensor(gathered, own, group=group, async_op=True),
        dist.reduce_scatter_tensor(reduced, own, group=group, async_op=True),
    ]
    for work in reversed(works):
        work.wait()
    sizes = [1, 2, 2, 3]
    ragged = torch.empty(sizes[rank] * size, 3)
    dist.all_to_all_single(ragged, own, [sizes[rank]] * size, sizes, group=group)
    most = own.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    shown, total = own.clone(), own.clone()
    dist.broadcast(shown, group=group, group_src=2)
    dist.reduce(total, group=group, group_dst=1)
    total = total if rank == 1 else own  # of the others gloo says nothing
    members = dist.get_process_group_ranks(group)
    row = [members[rank // 2 * 2 + place] for place in range(2)]
    pair = dist.new_group(row[::-1], use_local_synchronization=True)
    halved = torch.empty(4, 3)
    dist.reduce_scatter_tensor(halved, own, group=pair)
    things: list[Any] = [None] * size
    dist.all_gather_object(things, {"rank": rank}, group=group)
    assert [thing["rank"] for thing in things] == list(range(size))
    dist.barrier(group)
    return [
        *results,
        shown,
        total,
        sharded,
        gathered,
        reduced,
        ragged,
        most,
        halved,
        torch.tensor([pair.rank(), pair.size()]),
    ]


def in_gloo(rank: int, folder: str) -> None:
    dist = torch.distributed
    where = f"file://{folder}/meeting-point"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=RANKS)
    torch.save(exchanged(dist, dist.group.WORLD), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def test_what_arrives_is_what_arrives_over_gloo(tmp_path: Path) -> None:
    ours, _ = on_threads(RANKS, lambda group: exchanged(memory_dist, group))
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=in_gloo, args=(r, str(tmp_path))) for r in range(RANKS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        worker.kill()
    for rank in range(RANKS):
        theirs = torch.load(tmp_path / f"{rank}.pt")
        for one, other in zip(ours[rank], theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_the_log_holds_every_message_and_every_share_of_a_collective() -> None:
    def body(group: MemoryGroup) -> None:
        x = torch.ones(4, 2)
        memory_dist.all_gather_into_tensor(torch.empty(16, 2), x, group=group)
        memory_dist.all_to_all_single(torch.empty(4, 2), x, group=group)
        if group.rank() == 0:
            group.send(x, 3).wait()
        if group.rank() == 3:
            group.receive(torch.empty_like(x), 0).wait()

    _, network = on_threads(RANKS, body)
    assert Counter((m.kind, m.bytes) for m in network.log) == {
        ("all_gather", 32): 12,
        ("all_to_all", 8): 12,
        ("send", 32): 1,
    }
    assert {(m.src, m.dst) for m in network.log if m.kind == "send"} == {(0, 3)}


def test_messages_of_a_pair_arrive_in_the_order_they_were_sent() -> None:
    def body(group: MemoryGroup) -> list[float]:
        if group.rank():
            works = [group.send(torch.tensor([float(n)]), 0) for n in range(9)]
            for work in reversed(works):
                work.wait()
            return []
        buffers = [torch.empty(1) for _ in range(9)]
        works = [group.receive(x, 1) for x in buffers]
        for work in reversed(works):
            work.wait()
        return [x.item() for x in buffers]

    assert on_threads(2, body)[0][0] == list(range(9))


# ---- what is noticed


def both_wait(group: MemoryGroup) -> None:
    """Each waits for its send before it receives: over gloo fine while messages are small."""
    other = 1 - group.rank()
    group.send(torch.ones(2), other).wait()
    group.receive(torch.empty(2), other).wait()


def one_is_gone(group: MemoryGroup) -> None:
    if group.rank():
        group.receive(torch.empty(2), 0).wait()


def never_waits(group: MemoryGroup) -> None:
    if group.rank():
        group.receive(torch.empty(2), 0).wait()
    else:
        group.send(torch.ones(2), 1)


def changes(group: MemoryGroup) -> None:
    x = torch.zeros(2)
    if group.rank():
        group.receive(x, 0).wait()
    else:
        work = group.send(x, 1)
        x += 1
        work.wait()


def too_short(group: MemoryGroup) -> None:
    work = group.receive(torch.empty(3), 0) if group.rank() else group.send(torch.ones(2), 1)
    work.wait()


def other_type(group: MemoryGroup) -> None:
    x = torch.empty(2)
    work = group.receive(x.int(), 0) if group.rank() else group.send(x, 1)
    work.wait()


def other_collective(group: MemoryGroup) -> None:
    x = torch.ones(2)
    if group.rank():
        memory_dist.all_reduce(x, group=group)
    else:
        memory_dist.all_to_all_single(torch.empty(2), x, group=group)


def stacked(group: MemoryGroup) -> None:
    memory_dist.all_gather_into_tensor(torch.empty(2, 3), torch.ones(3), group=group)


def not_contiguous(group: MemoryGroup) -> None:
    group.send(torch.ones(4, 2).T, 1 - group.rank())


def to_itself(group: MemoryGroup) -> None:
    group.send(torch.ones(1), group.rank())


NOTICED: dict[Callable[[MemoryGroup], None], tuple[type[Exception], str]] = {
    both_wait: (
        RankError,
        r"every rank waits for another one\nrank 0: send of float32 \[2\] to rank 1\nrank 1: send",
    ),
    one_is_gone: (RankError, r"rank 1: receive of float32 \[2\] from rank 0\nranks \[0\] are done"),
    never_waits: (RankError, r"never waited for: send of float32 \[2\] to rank 1 of rank 0"),
    changes: (RankError, "the tensor changed while it was being sent"),
    too_short: (RankError, r"receive of float32 \[3\] from rank 0 .* what came is float32 \[2\]"),
    other_type: (RankError, "what came is float32"),
    other_collective: (RankError, "others call all_"),
    stacked: (ValueError, r"float32 \[2, 3\] is not 2 times float32 \[3\]"),
    not_contiguous: (ValueError, "has to be contiguous"),
    to_itself: (ValueError, "sends to itself"),
}


@pytest.mark.parametrize("body", NOTICED, ids=lambda body: body.__name__)
def test_what_would_fail_on_a_cluster_fails_here(body: Callable[[MemoryGroup], None]) -> None:
    error, said = NOTICED[body]
    with pytest.raises(error, match=said):
        on_threads(2, body, timeout=5.0)


def test_a_buffer_holds_nan_until_its_message_was_waited_for() -> None:
    def body(group: MemoryGroup) -> Any:
        x = torch.ones(2)
        if not group.rank():
            group.send(x, 1).wait()
            return x
        work = group.receive(x, 0)
        early = x.clone()
        work.wait()
        return early

    (_, early), _ = on_threads(2, body)
    assert early.isnan().all()


def test_a_rank_that_fails_ends_the_run_of_those_that_wait_for_it() -> None:
    def body(group: MemoryGroup) -> None:
        if group.rank():
            raise KeyError("enough")
        group.receive(torch.empty(1), 1).wait()

    with pytest.raises(KeyError, match="enough"):
        on_threads(2, body, timeout=5.0)


def test_whatever_is_no_group_in_memory_goes_to_torch() -> None:
    assert memory_dist.ReduceOp is torch.distributed.ReduceOp
    assert not memory_dist.is_initialized()
    with pytest.raises(ValueError, match="process group has not been initialized"):
        memory_dist.all_reduce(torch.ones(3))


def test_ends_that_are_offered_at_the_same_time_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a thread is interrupted while the queue of their message is being made."""

    class Slow(defaultdict[object, deque[Any]]):
        def __missing__(self, key: object) -> deque[Any]:
            made = deque[Any]()
            time.sleep({"rank 0": 0.03, "rank 1": 0.02}[threading.current_thread().name])
            self[key] = made
            return made

    monkeypatch.setattr(memory_group, "defaultdict", Slow)

    def body(group: Any) -> None:
        work = group.receive(torch.ones(1), 0) if group.rank() else group.send(torch.ones(1), 1)
        work.wait()

    on_threads(2, body)
