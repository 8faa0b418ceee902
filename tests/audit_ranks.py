"""Audits in a row on the same ranks, which are processes and meet over gloo."""

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

Row = tuple[str, tuple[str, ...], list[str]]  # a name, the kinds allowed, the kinds found
Body = Callable[[int], list[Row]]


def on_ranks(body: Body, ranks: int, seconds: float = 280) -> list[Row]:
    """Returns what a body returns on rank 0; it runs on every rank."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        one = partial(_rank, body, ranks, folder)
        workers = [context.Process(target=one, args=(n,), daemon=True) for n in range(ranks)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(seconds)
            worker.kill()
        assert [worker.exitcode for worker in workers] == [0] * ranks
        rows: list[Any] = json.loads(Path(folder, "rows.json").read_text())
    return [(name, tuple(kinds), answer) for name, kinds, answer in rows]


def _rank(body: Body, ranks: int, folder: str, rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = f"file://{folder}/meeting-point"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    rows = body(rank)
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def planted(name: str, every: int, rank: int) -> list[Row]:
    """Audits an implementation, first as it is, then with every so many-th of its faults."""
    import ringloom as rl
    from planted import SUBJECTS, faults_of
    from planted_subtle import SUBTLE, random_test
    from planting import RANKS

    subject, rows = SUBJECTS[name](), list[Row]()
    how: Any = {"ranks": RANKS, "rank": rank, "layout": subject.layout, "pass_": subject.pass_}
    kinds = [fault.kind for fault in rl.audit(subject.attend, subject.work, **how).faults]
    rows.append(("right", (), kinds))
    for fault in faults_of(name)[::every]:
        with fault.plant(subject) as attend:
            audit = rl.audit(attend, subject.work, **how)
            assert fault not in SUBTLE or not random_test(attend, subject), fault.name
        rows.append((f"{name}: {fault.name}", fault.kinds, [f.kind for f in audit.faults]))
    return rows


def right(ranks: int, seeds: list[int], rank: int) -> list[Row]:
    """Audits emitted programs that are right: drawn schedules, masks, lengths, heads and dtypes."""
    import random

    import ringloom as rl
    from ringloom.codegen import emit
    from ringloom.runtimes.emitted import load

    rows = list[Row]()
    for seed in seeds:
        draw = random.Random(seed)
        heads, kv_heads = draw.choice([(1, 1), (2, 2), (4, 2), (3, 1)])
        seq = draw.randrange(4 * ranks, 12 * ranks)
        first = draw.randrange(1, seq)
        masks = ["causal", "full", f"causal & window:{draw.randrange(1, seq)}", f"window:{first},3"]
        masks += [f"causal & documents:{first},{seq - first}", f"prefix:{first}"]
        schedule = draw.choice(["ring", "zigzag", "striped", "allgather"])
        work = rl.Workload(
            seq,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=draw.choice([8, 16]),
            dtype=draw.choice(["float32", "float32", "bfloat16", "float64"]),
            mask=draw.choice(masks),
        )
        plans = rl.plan(schedule, work, ranks, pass_="both")
        partition = plans.first.partition
        layout = {
            name: [side.positions(n) for n in range(ranks)]
            for name, side in (("q", partition.q), ("kv", partition.kv))
        }
        attend = load(emit(plans, "torch")).attention
        audit = rl.audit(attend, work, ranks=ranks, rank=rank, layout=layout)
        assert audit.report.could_not_run is None
        answer = [f"{fault.kind}: {fault.sentence}" for fault in audit.faults]
        rows.append((f"{seed}: {schedule} on {ranks}, {work.python}", (), answer))
    return rows


def right_peers(ranks: int, package: bool, rank: int) -> list[Row]:
    """Audits other libraries that are right: PyTorch's ring template, and the package."""
    from itertools import product

    import ringloom as rl
    from ringloom.auditing.adapters import pytorch_ring, ring_attention_pytorch

    cases = list[tuple[Any, str, str, str, int]]()  # attend, mask, layout, pass, tokens
    for exchange in ("all-gather", "all-to-all"):
        for causal in (True, False):
            ring = pytorch_ring(balanced=False, causal=causal, exchange=exchange)
            cases.append((ring, "causal" if causal else "full", "contiguous", "both", 5 * ranks))
        cases.append((pytorch_ring(exchange=exchange), "causal", "head-tail", "both", 6 * ranks))
    for striped, causal in product((True, False), repeat=2) if package else ():
        ring = ring_attention_pytorch(striped=striped, causal=causal, bucket=8)
        mask, layout = "causal" if causal else "full", "striped" if striped else "contiguous"
        cases.append((ring, mask, layout, "forward", 8 * ranks))
    rows = list[Row]()
    for (attend, mask, layout, pass_, seq), dtype in product(cases, ("float32", "bfloat16")):
        if pass_ == "forward" and dtype != "float32":  # on CPUs the package computes in no other
            continue
        work = rl.Workload(seq, heads=2, head_dim=8, dtype=dtype, mask=mask)
        given: Any = {"ranks": ranks, "rank": rank, "layout": layout, "pass_": pass_}
        audit = rl.audit(attend, work, **given)
        answer = [f"{fault.kind}: {fault.sentence}" for fault in audit.faults]
        if audit.report.could_not_run:
            answer.append(audit.report.could_not_run)
        rows.append((f"{attend.__qualname__} {layout} on {ranks}, {work.python}", (), answer))
    return rows


def leaving(rank: int) -> list[Row]:
    """Audits a ring on each half of the ranks, first as it is, then with messages to all ranks."""
    import torch
    import torch.distributed as dist

    import ringloom as rl
    from planted import WORK
    from planting import emitted

    half = len(ranks := range(dist.get_world_size())) // 2
    groups = [dist.new_group([*ranks[:half]]), dist.new_group([*ranks[half:]])]
    ring = emitted("ring", "contiguous", WORK, ranks=half)

    def attend(q: Any, k: Any, v: Any, group: Any) -> Any:
        return ring.attend(q, k, v, group=group)

    def spoiled(q: Any, k: Any, v: Any, group: Any) -> Any:
        dist.all_gather([torch.empty_like(k) for _ in ranks], k.detach().contiguous())
        return attend(q, k, v, group)

    rows = list[Row]()
    for function, kinds in ((attend, ()), (spoiled, ("too many ranks",))):
        given: Any = {"ranks": half, "rank": rank % half, "group": groups[rank // half]}
        audit = rl.audit(function, WORK, **given)
        assert audit.report.sent["forward"].sum() > 0
        rows.append((function.__name__, kinds, [fault.kind for fault in audit.faults]))
    return rows
