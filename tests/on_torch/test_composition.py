"""Emitted torch programs beside what a training code already uses: everything equals dense.

Four gloo processes start once and go through all scenes; each scene leaves its results in a file.
"""

import multiprocessing
import multiprocessing.connection
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ringloom.codegen import emit, mask_tables, save_tables
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

torch = pytest.importorskip("torch")

from ringloom.runtimes.emitted import load  # noqa: E402  only where torch is

RANKS, SEQ, DIM, BATCH = 4, 22, 16, 2
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 4
Results = dict[str, Any]


WORK = Workload(
    seq=SEQ, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, mask=Causal(), dtype="float64"
)
TABLES = "striped", "burst"  # one schedule for each of two groups
SOURCES = dict[str, str]()  # programs by their names, written once for all processes


def write_sources(folder: Path) -> None:
    """Emit the programs of all scenes, and the files of tables."""
    half = replace(WORK, heads=HEADS // 2, kv_heads=KV_HEADS // 2)
    by_name = [plan(name, WORK, 2, pass_="both") for name in TABLES]
    SOURCES["four"] = emit(plan("zigzag", WORK, RANKS, pass_="both"), "torch")
    SOURCES["two"] = emit(plan("zigzag", WORK, 2, pass_="both"), "torch")
    SOURCES["half"] = emit(plan("zigzag", half, 2, pass_="both"), "torch")
    SOURCES["dynamic"] = emit(by_name[0], "torch", dynamic=True)
    for number, pair in enumerate(by_name):
        save_tables(mask_tables(pair, "torch"), str(folder / f"tables-{number}.npz"))
    SOURCES["folder"] = str(folder)


class Block(torch.nn.Module):  # type: ignore[misc]
    """Projections around attention, which is a function of q, k and v."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(5)
        self.attend = attend
        for name, width in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            setattr(self, name, linear(DIM, width * HEAD_DIM, random))
        self.o = linear(HEADS * HEAD_DIM, DIM, random)

    def forward(self, x: Any) -> Any:
        qkv = (y.unflatten(-1, (-1, HEAD_DIM)) for y in (self.q(x), self.k(x), self.v(x)))
        out = self.attend(*(y.transpose(1, 2).contiguous() for y in qkv))
        return x + self.o(out.transpose(1, 2).flatten(2))


def linear(width_in: int, width_out: int, random: Any) -> Any:
    made = torch.nn.Linear(width_in, width_out, bias=False, dtype=torch.float64)
    torch.nn.init.normal_(made.weight, std=0.3, generator=random)
    return made


def dense_attention(q: Any, k: Any, v: Any) -> Any:
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=True, enable_gqa=True)


def inputs(batch: int = BATCH) -> tuple[Any, Any]:
    """x and dy [batch, SEQ, DIM] in the order of the sequence."""
    random = torch.Generator().manual_seed(9)
    x, dy = (torch.randn(batch, SEQ, DIM, generator=random, dtype=torch.float64) for _ in range(2))
    return x, dy


def wanted() -> Results:
    """y, dx and the gradients of the weights, on one device."""
    (x, dy), block = inputs(), Block(dense_attention)
    y = block(x.requires_grad_())
    y.backward(dy)
    grads = {name: value.grad for name, value in block.named_parameters()}
    return {"y": y.detach(), "dx": x.grad} | grads


# ---- scenes: what one rank does; rows of the batch and tokens say which part of y and dx it has


def stepped(block: Any, at: Any, rows: Any = slice(None), apply: Any = None) -> Results:
    """One forward and backward step on a shard."""
    x, dy = (t[rows][:, at] for t in inputs())
    x = x.clone().requires_grad_()
    y = (block if apply is None else apply)(x)
    y.backward(dy)
    grads = {name: whole(value.grad) for name, value in block.named_parameters()}
    return {"y": y.detach(), "dx": x.grad, "rows": rows, "at": at} | grads


def whole(x: Any) -> Any:
    """A tensor without its placement on a mesh."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def sum_weights(result: Results, group: Any = None) -> Results:
    """Gradients of weights are shares of the tokens: sum them."""
    for name, value in result.items():
        if name.endswith("weight"):
            torch.distributed.all_reduce(value, group=group)
    return result


def world(rank: int) -> tuple[Any, Any, Any]:
    program = load(SOURCES["four"])
    return program, Block(program.attention), program.positions(rank)


def checkpointed(rank: int) -> Results:
    """torch.utils.checkpoint around a block with attention in it."""
    _, block, at = world(rank)
    again = torch.utils.checkpoint.checkpoint
    return sum_weights(stepped(block, at, apply=lambda x: again(block, x, use_reentrant=False)))


def compiled(rank: int) -> Results:
    """torch.compile around a block with attention in it."""
    _, block, at = world(rank)
    return sum_weights(
        stepped(block, at, apply=torch.compile(block, backend="aot_eager", fullgraph=True))
    )


def subgroups(rank: int) -> Results:
    """Two groups of two ranks, neither in the order of the world; each has one batch row."""
    program = load(SOURCES["two"])
    groups = [torch.distributed.new_group(members) for members in ([0, 2], [1, 3])]
    own = groups[rank % 2]
    block = Block(lambda q, k, v: program.attention(q, k, v, group=own))
    at = program.positions(own.rank())
    return sum_weights(stepped(block, at, slice(rank % 2, rank % 2 + 1)))


def mesh_of(*names: str) -> Any:
    return torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def on_mesh(mesh: Any) -> tuple[Any, Any, Any, Any]:
    """A block whose sequence is sharded over "sp", its positions and its batch row."""
    program, group = load(SOURCES["two"]), mesh["sp"].get_group()
    block = Block(lambda q, k, v: program.attention(q, k, v, group=group))
    row = mesh["data"].get_local_rank()
    return program, block, program.positions(group.rank()), slice(row, row + 1)


def data_by_sequence(rank: int) -> Results:
    """A 2 x 2 mesh of data and sequence."""
    _, block, at, rows = on_mesh(mesh_of("data", "sp"))
    return sum_weights(stepped(block, at, rows))


def fully_sharded(rank: int) -> Results:
    """FSDP2 over all ranks of the mesh, with the sequence sharded over one of its axes."""
    fsdp = torch.distributed.fsdp
    mesh = mesh_of("data", "sp")
    _, block, at, rows = on_mesh(mesh)
    fsdp.fully_shard(block, mesh=mesh._flatten("all"))
    block.set_gradient_divide_factor(1.0)  # shares of the tokens are summed, not averaged
    return stepped(block, at, rows)


def tensor_parallel(rank: int) -> Results:
    """Heads over one axis of the mesh by DTensor, the sequence over the other."""
    parallel = torch.distributed.tensor.parallel
    mesh = mesh_of("tp", "sp")
    program, group = load(SOURCES["half"]), mesh["sp"].get_group()
    block = Block(lambda q, k, v: program.attention(q, k, v, group=group))
    split = {name: parallel.ColwiseParallel() for name in "qkv"}
    parallel.parallelize_module(block, mesh["tp"], split | {"o": parallel.RowwiseParallel()})
    return sum_weights(stepped(block, program.positions(group.rank())), group)


def tables_in_subgroups(rank: int) -> Results:
    """The same two groups, each with tables of its own schedule, through one program."""
    program = load(SOURCES["dynamic"])
    own = [torch.distributed.new_group(members) for members in ([0, 2], [1, 3])][rank % 2]
    made = program.load(Path(SOURCES["folder"], f"tables-{rank % 2}.npz"))
    block = Block(lambda q, k, v: program.attention(q, k, v, made, group=own))
    at = program.positions(own.rank(), made)
    return sum_weights(stepped(block, at, slice(rank % 2, rank % 2 + 1)))


SCENES = (
    checkpointed,
    tables_in_subgroups,
    subgroups,
    data_by_sequence,
    fully_sharded,
    tensor_parallel,
    compiled,
)


def play(rank: int, folder: str, sources: dict[str, str]) -> None:
    """All scenes on one rank."""
    torch.set_num_threads(1)
    SOURCES.update(sources)
    try:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting-point",
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=90),
        )
        for scene in SCENES:
            torch.save(scene(rank), Path(folder, f"{scene.__name__}-{rank}.pt"))
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    except BaseException:
        Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc())
        raise


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of all scenes."""
    folder = tmp_path_factory.mktemp("scenes")
    write_sources(folder)
    context = multiprocessing.get_context("forkserver")
    workers = [
        context.Process(target=play, args=(rank, str(folder), SOURCES), daemon=True)
        for rank in range(RANKS)
    ]
    for worker in workers:
        worker.start()
    while all(worker.exitcode in (None, 0) for worker in workers):
        alive = [worker.sentinel for worker in workers if worker.is_alive()]
        if not alive or not multiprocessing.connection.wait(alive, timeout=120):
            break
    for worker in workers:
        worker.kill()
        worker.join()
    errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
    assert [worker.exitcode for worker in workers] == [0] * RANKS, "\n".join(errors)
    return folder


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_attention_equals_dense(scene: Callable[[int], Results], played: Path) -> None:
    parts = [
        torch.load(played / f"{scene.__name__}-{rank}.pt", weights_only=False)
        for rank in range(RANKS)
    ]
    truth = wanted()
    seen = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    for part in parts:
        rows, at = part.pop("rows"), part.pop("at")
        seen[rows, at] += 1
        for name, value in part.items():
            right = truth[name][rows][:, at] if name in ("y", "dx") else truth[name]
            torch.testing.assert_close(value, right, rtol=0, atol=1e-11)
        assert part.keys() == truth.keys()
    assert (seen == (2 if scene is tensor_parallel else 1)).all()
