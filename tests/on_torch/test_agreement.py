"""Ranks that call attention differently, or one of them wrongly: all refuse, before any sends.

Three processes meet over gloo once and go through all cases, each of which has a rank that does
something else. A program for all of them runs in the world, one for two of them in a group.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ringloom.codegen import emit, mask_tables
from ringloom.planner.masks import Causal, Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.emitted import load

torch = pytest.importorskip("torch")

RANKS, SEQ = 3, 24
WORK = Workload(seq=SEQ, heads=2, kv_heads=1, head_dim=4, mask=Causal(), dtype="float32")
SHORT = 1.0  # seconds that a rank waits for others that do not come
Call = Callable[[ModuleType, Any, list[Any]], Any]  # of a program, its group and q, k, v


def sources() -> dict[str, str]:
    """Programs for two and for three ranks by their names; by tables where a name says so."""
    made = dict[str, str]()
    for ranks in (2, RANKS):
        for schedule in ("zigzag", "ring"):
            both = plan(schedule, WORK, ranks, pass_="both")
            made[f"{schedule}-{ranks}"] = emit(both, "torch")
    uneven = replace(WORK, seq=SEQ - 1)
    made["uneven"] = emit(plan("zigzag", uneven, RANKS, pass_="both"), "torch")
    made["dynamic"] = emit(plan("ring", WORK, RANKS, pass_="both"), "torch", dynamic=True)
    return made


@dataclass(frozen=True)
class Case:
    """A call that a rank makes differently, and words of the error that all ranks raise."""

    call: Call
    said: Sequence[str]
    source: str = "zigzag-3"


def attend(program: ModuleType, group: Any, inputs: list[Any], **more: Any) -> Any:
    return program.attention(*inputs, group=group, **more)


def on(*ranks: int, do: Callable[[Any], Any]) -> Call:
    """Attention of tensors that are changed on some ranks."""

    def call(program: ModuleType, group: Any, inputs: list[Any]) -> Any:
        changed = [do(x) for x in inputs] if group.rank() in ranks else inputs
        return attend(program, group, changed)

    return call


def without_gradients(program: ModuleType, group: Any, inputs: list[Any]) -> Any:
    given = [x.requires_grad_() for x in inputs]
    with torch.set_grad_enabled(group.rank() != 1):
        return attend(program, group, given)


def another_plan(program: ModuleType, group: Any, inputs: list[Any]) -> Any:
    other = load(SOURCES[f"ring-{group.size()}"])
    return attend(other if group.rank() == 1 else program, group, inputs)


def whole(program: ModuleType, group: Any, _: list[Any]) -> Any:
    return attend(program, group, wholes())


def another_seq(program: ModuleType, group: Any, inputs: list[Any]) -> Any:
    return attend(program, group, inputs, seq=SEQ + 2 * (group.rank() == 1))


def other_tables(program: ModuleType, group: Any, _: list[Any]) -> Any:
    mask = Full() if group.rank() == 1 else Causal()
    made = mask_tables(plan("ring", replace(WORK, mask=mask), RANKS, pass_="both"), "torch")
    given = program.Tables(made)
    q, k, v = (program.shard(x, group.rank(), given) for x in wholes())
    return program.attention(q, k, v, given, group=group)


def compiled(program: ModuleType, group: Any, inputs: list[Any]) -> Any:
    function = torch.compile(
        lambda *x: program.attention(*x, group=group), fullgraph=True, backend="eager"
    )
    return function(*(x[:, :, group.rank() % 2 :] for x in inputs))


DTYPES = {
    "float32 bfloat16": (1, "bfloat16"),
    "float32 float64": (1, "float64"),
    "float16 float32": (0, "float16"),
}
OTHERS = {
    **{
        name: Case(
            on(rank, do=lambda x, kind=kind: x.to(getattr(torch, kind))),
            [f"ranks [{rank}]: torch.{kind} on cpu", "torch.float32 on cpu"],
        )
        for name, (rank, kind) in DTYPES.items()
    },
    "batch": Case(on(1, do=lambda x: x.repeat(2, 1, 1, 1)), ["batch 1", "ranks [1]: ", "batch 2"]),
    "heads": Case(on(1, do=lambda x: x.repeat(1, 2, 1, 1)), ["heads 2:1", "heads 4:2"]),
    "length": Case(on(1, do=lambda x: x[:, :, :-2]), [f"{SEQ} tokens", "ranks [1]: "]),
    "plan": Case(another_plan, ["program ", "ranks [1]: "]),
    "autograd": Case(
        without_gradients, ["ranks [1]: ", "gradients not wanted", "gradients wanted"]
    ),
    "gradients of one": Case(on(0, do=lambda x: x.requires_grad_()), ["ranks [0]: "]),
    "a type on one rank": Case(on(0, do=lambda x: x.long()), ["q is torch.int64"]),
    "dimension": Case(on(1, do=lambda x: x[..., :2]), ["ranks [1]: q is torch.float32 [1, 2, "]),
    "shard": Case(on(1, do=lambda x: x[:, :, :-1]), ["ranks [1]: q is", "pass shard(x, rank)"]),
    "whole sequence": Case(whole, [f"a shard has {SEQ} tokens", "pass shard(x, rank), or seq="]),
    "whole on one": Case(on(1, do=lambda _: torch.zeros(1, 1, SEQ, 4)), [f"a shard has {SEQ} tok"]),
    "seq": Case(another_seq, [f"ranks [1]: seq is {SEQ + 2}, but "]),
}
ALONE = {
    "uneven shards": Case(
        on(0, 2, do=lambda x: x[:, :, 1:]),
        ["on ranks [1]: torch.float32", "ranks [0]: q is", "ranks [2]: q is", "shard(x, rank)"],
        "uneven",
    ),
    "another seq": Case(another_seq, ["program is for 23 tokens only"], "uneven"),
    "a shard, compiled": Case(compiled, ["ranks [0, 2]: torch.float32", "ranks [1]: q is "]),
    "tables": Case(other_tables, ["ranks [1]: ", ", tables "], "dynamic"),
}
CASES = {
    **{f"{name}, 3 ranks": case for name, case in (OTHERS | ALONE).items()},
    **{f"{name}, 2 ranks": replace(case, source="zigzag-2") for name, case in OTHERS.items()},
}
SOURCES = dict[str, str]()


def wholes() -> list[Any]:
    random = np.random.default_rng(0)
    shapes = ((1, 2, SEQ, 4), (1, 1, SEQ, 4), (1, 1, SEQ, 4))
    return [torch.from_numpy(random.normal(size=shape).astype(np.float32)) for shape in shapes]


def shards(program: ModuleType, rank: int) -> list[Any]:
    length = program.PLAN.get("seq", SEQ)
    return [program.shard(x[:, :, :length], rank) for x in wholes()]


# ---- what a rank does


def outcome(call: Callable[[], Any]) -> str:
    """The error of a call, with its type; "" if there is none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def asked_on_gpus(group: Any) -> list[str]:
    """Outcomes of calls with tensors as of GPUs, which are described and never read."""
    program, device = load(SOURCES["zigzag-3"]), torch.device("cuda")

    def ask(dtype: str, batch: int = 1) -> str:
        """The outcome; dtypes are but names in what ranks compare."""
        q = SimpleNamespace(dtype=dtype, device=device, shape=(batch, 2, 8, 4), is_cpu=False)
        return outcome(lambda: program.check_agreement(group, q, q, "", "", -1))

    store = torch.distributed.distributed_c10d._get_process_group_store(group)
    odd, said = group.rank() == 1, list[str]()
    said.append(ask("float16" if odd else "float32"))  # the first call: all refuse
    said.append(ask("float32"))
    said.append(ask("float32"))
    store.set_timeout(timedelta(seconds=SHORT))
    said.append(ask("float32", 2) if odd else ask("float32"))  # a later change of one rank alone
    return said


def play(rank: int, folder: str, made: dict[str, str]) -> None:
    """All cases on one rank; its outcomes go to a file."""
    torch.set_num_threads(1)
    SOURCES.update(made)
    where = f"file://{folder}/meeting-point"
    limit = timedelta(seconds=60)
    dist = torch.distributed
    try:
        dist.init_process_group("gloo", where, limit, RANKS, rank)
        pair = dist.new_group([0, 1])
        said = dict[str, Any]()
        for name, case in CASES.items():
            program = load(made[case.source])
            group = dist.group.WORLD if program.RANKS == RANKS else pair
            if rank < program.RANKS:
                inputs = shards(program, rank) if case.source != "dynamic" else []
                said[name] = outcome(lambda: case.call(program, group, inputs))  # noqa: B023
        program = load(made["zigzag-3"])  # nothing of all that is left over
        said["right"] = program.attention(*shards(program, rank), seq=SEQ)
        said["gpu"] = asked_on_gpus(dist.group.WORLD)
        torch.save(said, Path(folder, f"said-{rank}.pt"))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc())
        raise


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outcomes of all cases on each rank."""
    folder = tmp_path_factory.mktemp("agreement")
    context, made = multiprocessing.get_context("forkserver"), sources()
    workers = [
        context.Process(target=play, args=(rank, str(folder), made), daemon=True)
        for rank in range(RANKS)
    ]
    for worker in workers:
        worker.start()
    end = time.monotonic() + 120
    for worker in workers:
        worker.join(end - time.monotonic())
        worker.kill()
        worker.join()
    errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
    assert [worker.exitcode for worker in workers] == [0] * RANKS, "\n".join(errors)
    files = [folder / f"said-{rank}.pt" for rank in range(RANKS)]
    return [torch.load(file, weights_only=False) for file in files]


# ---- what is held


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_refuse_what_one_of_them_does(name: str, said: list[dict[str, Any]]) -> None:
    ranks = 2 if name.endswith("2 ranks") else RANKS
    texts = {one[name] for one in said[:ranks]}
    assert len(texts) == 1, texts
    (text,) = texts
    assert text.startswith("ValueError: ")
    for words in CASES[name].said:
        assert words in text


def test_calls_after_refused_ones_are_exact(said: list[dict[str, Any]]) -> None:
    program = load(sources()["zigzag-3"])
    out = program.unshard([one["right"] for one in said])
    exact = torch.nn.functional.scaled_dot_product_attention(
        *wholes(), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(out, exact, rtol=0, atol=1e-6)


def test_ranks_of_gpus_compare_their_first_call_and_those_that_change(
    said: list[dict[str, Any]],
) -> None:
    first, *later = zip(*(one["gpu"] for one in said), strict=True)
    assert len({*first}) == 1
    assert "ranks [1]: float16 on cuda" in first[0]
    assert "ranks [0, 2]: float32 on cuda" in first[0]
    assert later[:2] == [("",) * RANKS] * 2
    assert later[2][0] == later[2][2] == ""
    changed = later[2][1]
    assert changed.startswith("RuntimeError: rank 1 waited for all ranks to make the same")
    assert "batch 2" in changed
    assert ", after float32 on cuda, batch 1" in changed
