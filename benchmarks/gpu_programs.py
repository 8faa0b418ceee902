"""Emitted programs on one GPU: exact, how fast, and how even the work of the ranks is.

    python benchmarks/gpu_programs.py [--ranks 8] [--tokens 8192] [--schedule zigzag] [--quick]

exact     the torch program over NCCL on one rank, and JAX programs on one device, against dense
          attention: within twice dense attention's own error
kinds     torch programs of every kind of kernel, mask and dtype, all ranks as threads on this
          chip: within three times it (`gpu_kinds.py`)
busy      all ranks' tiles in turn on this chip: messages stay in memory and cost nothing, so the
          time of a rank is that of its kernels and merges; beside it what the preset predicts
rate      flop per second of all tiles together over that of dense attention of the whole
          sequence, by flash kernels and by cuDNN's: what cutting it into tiles costs

Results go to benchmarks/results/ with chip, date and versions. Without a GPU it says so and ends.
"""

import argparse
import gc
import importlib.metadata
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from datetime import date
from itertools import chain, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_kinds import exact_kinds, exact_kinds_of_jax

from ringloom.codegen import emit
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import hardware, presets
from ringloom.simulator.prediction import simulate

RESULTS = Path(__file__).parent / "results"
FORWARD_AIM, BOTH_AIM = 0.90, 0.85
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
Row = dict[str, Any]


def work(seq: int) -> Workload:
    """Causal attention of a LLaMA-shaped layer."""
    heads = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    return Workload(seq=seq, mask=Causal(), dtype="bfloat16", **heads)


def flop(seq: int, backward: bool) -> float:
    """Of causal attention: the half that is computed, and 2.5 times as much backward."""
    return 2.0 * seq**2 * HEADS * HEAD_DIM * (3.5 if backward else 1.0)


def drawn(seq: int, device: str, seed: int = 0) -> list[Any]:
    """q, k, v, dout in bfloat16."""
    import torch

    random = torch.Generator(device).manual_seed(seed)
    shape = ((HEADS, seq), (KV_HEADS, seq), (KV_HEADS, seq), (HEADS, seq))
    return [
        torch.randn(1, *s, HEAD_DIM, generator=random, device=device, dtype=torch.bfloat16)
        for s in shape
    ]


def dense(inputs: list[Any], backward: bool) -> list[Any]:
    """PyTorch's own attention, and its gradients."""
    import torch

    q, k, v = (x.detach().requires_grad_(backward) for x in inputs[:3])
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(q, k, v, is_causal=True, enable_gqa=True)
    return [out, *(torch.autograd.grad(out, (q, k, v), inputs[3]) if backward else ())]


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of the device, after two runs that do not count."""
    import torch

    times = []
    for _ in range(repeats + 2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times[2:])


# ---- exact


def errors(results: list[Any], rounded: list[Any], truth: list[Any]) -> Iterator[Row]:
    """Largest errors beside those of dense attention in 16 bit."""
    for name, ours, own, right in zip(
        ("out", "dq", "dk", "dv"), results, rounded, truth, strict=True
    ):
        error, limit = (float((x.double() - right).abs().max()) for x in (ours, own))
        yield {"what": f"error of {name}", "value": error, "limit": 2 * limit}


def exact_torch(seq: int, schedule: str) -> Iterator[Row]:
    """The torch program over NCCL, on one rank."""
    import torch
    import torch.distributed as dist

    from ringloom.runtimes.emitted import load

    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1)
    program = load(emit(plan(schedule, work(seq), 1, pass_="both"), "torch"))
    q, k, v, dout = drawn(seq, "cuda")
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = program.attention(*inputs)
    results = [out, *torch.autograd.grad(out, inputs, dout)]
    rounded, truth = (
        dense([x.to(t) for x in (q, k, v, dout)], True) for t in (q.dtype, torch.float64)
    )
    for row in errors(results, rounded, truth):
        yield row | {"what": f"torch over NCCL, {row['what']}"}
    dist.destroy_process_group()


def exact_jax(seq: int, schedule: str) -> Iterator[Row]:
    """The JAX program with its kernels for GPUs, on one device."""
    import torch

    try:
        import jax

        device = jax.devices("cuda")[0]
    except (ImportError, RuntimeError) as error:
        yield {"what": f"jax was left out: {error}"}
        return
    import numpy as np

    source = emit(plan(schedule, work(seq), 1, pass_="both"), "jax")
    scope: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(source, "<emitted>", "exec"), scope)
    mesh = jax.sharding.Mesh(np.array([device]), ("sp",))
    q, k, v, dout = drawn(seq, "cuda")
    given = [jax.dlpack.from_dlpack(x) for x in (q, k, v, dout)]

    def both(q: Any, k: Any, v: Any, dout: Any) -> list[Any]:
        out, pull_back = jax.vjp(lambda *x: scope["attention"](*x, mesh=mesh), q, k, v)
        return [out, *pull_back(dout)]

    results = [torch.from_dlpack(x) for x in jax.jit(both)(*given)]
    rounded, truth = (
        dense([x.to(t) for x in (q, k, v, dout)], True) for t in (q.dtype, torch.float64)
    )
    for row in errors(results, rounded, truth):
        yield row | {"what": f"jax on one device, {row['what']}"}


# ---- busy and rate


def busy(ranks: int, tokens: int, schedule: str, backward: bool, repeats: int) -> list[float]:
    """Seconds of each rank's kernels and sums on this chip: the medians.

    Ranks are threads that call both passes themselves: autograd has one thread for a device, in
    which a rank would wait for messages of others that come after it.
    """

    from in_memory.distributed import installed
    from in_memory.threads import on_threads
    from ringloom.runtimes.emitted import load

    pair = plan(schedule, work(ranks * tokens), ranks, pass_="both")
    program = installed(load(emit(pair, "torch")))
    kernels = Kernels(program)

    def body(group: Any) -> float:
        q, k, v, dout = drawn(tokens, "cuda", group.rank())
        kernels.begin()
        results = program.forward(q, k, v, group.group_name, "", "", -1)
        if backward:
            program.backward(dout, [q, k, v, *results], group.group_name)
        return kernels.end()

    rounds = list[list[float]]()
    try:
        for _ in range(repeats):  # networks keep what was sent: each round has its own
            gc.collect()
            rounds.append(on_threads(ranks, body, 600.0)[0])
    finally:
        kernels.leave()
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


class Kernels:
    """Times the kernel calls and merges of a program by the rank that makes them.

    They are put on the chip one at a time: what runs between two events is one rank's.
    """

    NAMES = ("attend", "attend_backward", "merge", "add")

    def __init__(self, program: Any) -> None:
        import threading

        self.lock, self.here, self.program = threading.Lock(), threading.local(), program
        self.untimed = {n: getattr(program, n) for n in self.NAMES if hasattr(program, n)}
        for name, function in self.untimed.items():
            setattr(program, name, self.timed(function))

    def leave(self) -> None:
        """Give the program its own functions back."""
        for name, function in self.untimed.items():
            setattr(self.program, name, function)

    def begin(self) -> None:
        """Count from here on, in this thread."""
        self.here.events = list[tuple[Any, Any]]()

    def end(self) -> float:
        """Seconds of this thread's calls since it began."""
        import torch

        torch.cuda.synchronize()
        return sum(first.elapsed_time(last) for first, last in self.here.events) / 1e3

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function between two events of the device."""
        import torch

        def called(*args: Any, **kwargs: Any) -> Any:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with self.lock:
                if function.__name__.startswith("attend"):
                    function(*args, **kwargs)  # cuDNN prepares kernels at their first call
                first.record()
                result = function(*args, **kwargs)
                last.record()
            self.here.events.append((first, last))
            return result

        return called


PRICED = {"flash": "fa2", "cuDNN": "cudnn"}  # kernels of presets, by their names here


def predicted(
    ranks: int, tokens: int, schedule: str, passes: str, kernel: str = "cuDNN"
) -> list[float]:
    """The milliseconds of each rank by the preset of this chip; empty if there is none."""
    import torch

    chip = torch.cuda.get_device_name().lower()
    for preset in (name for name in presets() if name in chip):
        own = hardware(preset).kernels
        machine = f"{preset}:{PRICED[kernel]}" if PRICED[kernel] in own else preset
        plans = plan(schedule, work(ranks * tokens), ranks, pass_=passes)
        return [round(1e3 * t, 3) for t in simulate(plans, machine).busy.tolist()]
    return []


def rates(ranks: int, tokens: int, schedule: str, repeats: int) -> Iterator[Row]:
    """Busy time of each rank, and the rate of all tiles over that of dense attention."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {"flash": SDPBackend.FLASH_ATTENTION}
    if torch.cuda.get_device_capability() >= (9, 0):
        kernels["cuDNN"] = SDPBackend.CUDNN_ATTENTION
    whole = drawn(ranks * tokens, "cuda")
    for backward, aim in ((False, FORWARD_AIM), (True, BOTH_AIM)):
        passes = "both" if backward else "forward"
        what = f"{schedule}, {ranks} ranks x {tokens} tokens, {passes}"
        tiles, taken = dict[str, float](), dict[str, float]()
        for name, kernel in kernels.items():
            with sdpa_kernel(kernel):
                times = busy(ranks, tokens, schedule, backward, min(repeats, 5))
                taken[name] = seconds(lambda: dense(whole, backward), repeats)  # noqa: B023  at once
            tiles[name] = sum(times)
            yield {
                "what": f"busy by {name}, {what}: slowest / mean",
                "value": max(times) / statistics.mean(times),
                "milliseconds": [round(1e3 * t, 3) for t in times],
                "predicted": predicted(ranks, tokens, schedule, passes, name),
            }
        for ours, theirs in product(tiles, taken):
            yield {
                "what": f"rate of tiles by {ours} over dense attention by {theirs}, {what}",
                "value": taken[theirs] / tiles[ours],
                "aim": aim,
                "dense_teraflop_per_second": flop(ranks * tokens, backward) / taken[theirs] / 1e12,
            }


def main() -> int:
    """Print what was measured and keep it; 1 if something is not exact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192, help="of each rank")
    parser.add_argument("--schedule", default="zigzag")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and repeats")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no torch here: pip install 'ringloom[torch]'")
        return 0
    if not torch.cuda.is_available():
        print("no GPU here: torch.cuda.is_available() is False, so there is nothing to measure")
        return 0
    tokens, repeats = (1024, 3) if options.quick else (options.tokens, 15)
    rows = list[Row]()
    for row in chain(
        exact_torch(min(tokens, 4096), options.schedule),
        exact_kinds(4),
        rates(options.ranks, tokens, options.schedule, repeats),
        exact_jax(min(tokens, 4096), options.schedule),
        exact_kinds_of_jax(),
    ):
        print(json.dumps(row), flush=True)
        rows.append(row)
    chip = torch.cuda.get_device_name()
    about = {"chip": chip, "date": date.today().isoformat(), "versions": versions()}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{chip.replace(' ', '-').lower()}-{about['date']}.json"
    path.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"kept in {path}")
    return int(any(row["value"] > row["limit"] for row in rows if "limit" in row))


def versions() -> dict[str, str]:
    """The libraries that take part."""
    import torch

    known = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for name in ("jax", "jaxlib", "numpy"):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return known


if __name__ == "__main__":
    sys.exit(main())
