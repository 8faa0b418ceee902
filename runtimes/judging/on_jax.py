"""Runs a JAX program that is being judged, in one process with a virtual device for every rank."""

import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringloom.codegen.frame.masks import boxes
from ringloom.runtimes.arrays import Array, load_arrays, save_arrays
from ringloom.runtimes.emitted import load
from ringloom.runtimes.judging.case import Case, Layout, layouts, layouts_error
from ringloom.runtimes.machine import RankError, describe_exit
from ringloom.runtimes.process_tree import limit_memory

CHILD = "from ringloom.runtimes.judging.on_jax import child; child()"
Parts = list[Array]


def run(case: Case, inputs: Sequence[Array], folder: Path, end: float) -> list[Parts]:
    """Returns the parts of all ranks; raises RankError if the process fails or is late."""
    (folder / "run.pickle").write_bytes(pickle.dumps((case, inputs)))
    seconds = end - time.monotonic()
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", CHILD, str(folder)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "TMPDIR": str(folder)},
            timeout=max(0.1, seconds),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RankError(f"the JAX program is not done after {seconds:.3g} s") from None
    files = [folder / f"parts-{rank}.npz" for rank in range(case.ranks)]
    if process.returncode or not all(file.exists() for file in files):
        error = folder / "error.txt"
        text = error.read_text(encoding="utf-8") if error.exists() else "it left no traceback"
        raise RankError(f"the JAX program failed ({describe_exit(process.returncode)}):\n{text}")
    return [*map(load_arrays, files)]


def child() -> None:
    """Executes the program in the folder named on the command line, and saves its parts there."""
    folder = Path(sys.argv[1])
    case, inputs = pickle.loads((folder / "run.pickle").read_bytes())
    try:
        for rank, parts in enumerate(attend(case, inputs, folder)):
            save_arrays(folder / f"parts-{rank}.npz", parts)
    except BaseException:
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        raise


def attend(case: Case, inputs: Sequence[Array], folder: Path) -> list[Parts]:
    """Executes the program; returns the parts of each rank, which the module `case` defines."""
    import jax
    from jax.sharding import Mesh

    jax.config.update("jax_num_cpu_devices", case.ranks)
    jax.config.update("jax_enable_x64", True)
    mesh = Mesh(np.array(jax.devices()[: case.ranks]), ("sp",))
    limit_memory(case.memory)
    program = load(case.source, folder)
    try:
        tables = [program.make_tables(boxes(case.work, any_length=False))] if case.dynamic else []
        q_layout, kv_layout = layouts(program, case, tables)
    except ValueError as error:
        return [[np.array(str(error)[:400])]] * case.ranks
    positions = [[q, kv] for q, kv in zip(q_layout, kv_layout, strict=True)]
    if layouts_error(case, q_layout, kv_layout):
        return positions
    sides = q_layout, kv_layout, kv_layout
    qkv = [_in_layout(x, side, 1.0) for x, side in zip(inputs, sides, strict=False)]

    def attend_all(q: Any, k: Any, v: Any, *sinks: Any) -> Any:
        options = dict(zip(("sinks",), sinks, strict=False))
        return program.attention(q, k, v, *tables, **options, mesh=mesh)

    function = jax.jit(attend_all)
    if not case.backward:
        return _split([function(*qkv, *inputs[4:])], sides[:1], positions)
    out, pull_back = jax.vjp(function, *qkv, *inputs[4:])
    gradients = pull_back(jax.numpy.asarray(_in_layout(inputs[3], q_layout, 0.0)))
    return _split([out, *gradients], (q_layout, *sides), positions)


def _in_layout(x: Array, layout: Layout, padding: float) -> Array:
    """Returns a global array in layout order, with the value `padding` for padding."""
    positions = np.concatenate(layout)
    return np.where((positions >= 0)[:, None], x[:, :, positions], x.dtype.type(padding))


def _split(
    results: Sequence[Any], sides: Sequence[Layout], positions: Sequence[Parts]
) -> list[Parts]:
    """Splits results into the parts of ranks; dsinks, which is a sum, goes to rank 0."""
    arrays = [np.asarray(x) for x in results]
    cuts = [np.cumsum([*map(len, side)])[:-1] for side in sides]
    shards = [np.split(x, cut, axis=2) for x, cut in zip(arrays, cuts, strict=False)]
    sums = arrays[len(sides) :]
    return [
        [*(x[rank] for x in shards), *(x if rank == 0 else 0 * x for x in sums), *positions[rank]]
        for rank in range(len(positions))
    ]
