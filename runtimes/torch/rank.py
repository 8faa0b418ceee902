"""What one rank does with an emitted program: cut its shards, call a function, give results back.

attend      attention(q, k, v), and its gradients where dout is given
ahead       forward(q, k, v): out and lse
back        backward(dout, q, k, v, out, lse): dq, dk, dv
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from runtimes.arrays import Array
from runtimes.torch.arrays import to_numpy, to_torch

Parts = list[Array]  # what a rank has of each result
Body = Callable[[ModuleType, Any, Sequence[Array]], Parts]


@cache
def load(source: str) -> ModuleType:
    """An emitted program as a module, one for each text: it registers its operator once."""
    name = f"emitted_{sha256(source.encode()).hexdigest()[:16]}"
    path = Path(_folder().name, f"{name}.py")
    path.write_text(source, encoding="utf-8")
    program = ModuleType(name)
    program.__file__ = str(path)
    sys.modules[name] = program  # torch.compile looks there for the functions of a module
    exec(compile(source, path, "exec"), program.__dict__)
    return program


@cache
def _folder() -> TemporaryDirectory[str]:
    """The files of this process's programs."""
    return TemporaryDirectory(prefix="ringloom-programs-")


def positions(program: ModuleType, rank: int, side: str) -> Array:
    """The positions of a rank's queries ("q") or keys ("kv")."""
    of_keys = getattr(program, "kv_positions", program.positions)
    return np.asarray((program.positions if side == "q" else of_keys)(rank))


def shards(program: ModuleType, rank: int, arrays: Sequence[Array]) -> list[Any]:
    """A rank's tensors of whole arrays: q, k, v, and of dout, out, lse, if they are there."""
    at = {side: positions(program, rank, side) for side in ("q", "kv")}
    sides = ("q", "kv", "kv", "q", "q", "q")
    return [to_torch(x[:, :, at[side]]) for x, side in zip(arrays, sides, strict=False)]


def attend(program: ModuleType, group: Any, arrays: Sequence[Array]) -> Parts:
    """out of q, k, v, or with dout also dq, dk, dv."""
    inputs = shards(program, group.rank(), arrays)
    q, k, v = (x.requires_grad_(len(inputs) == 4) for x in inputs[:3])
    out = program.attention(q, k, v, group=group)
    if len(inputs) == 4:
        out.backward(inputs[3])
    gradients = [x.grad for x in (q, k, v)] if len(inputs) == 4 else []
    return [to_numpy(x) for x in (out, *gradients)]


def ahead(program: ModuleType, group: Any, arrays: Sequence[Array]) -> Parts:
    """out and lse [batch, heads, tokens, 1] of q, k, v."""
    out, lse = program.forward(*shards(program, group.rank(), arrays), group)[:2]
    return [to_numpy(out), to_numpy(lse)]


def back(program: ModuleType, group: Any, arrays: Sequence[Array]) -> Parts:
    """dq, dk, dv of q, k, v, dout, out, lse, with nothing kept from a forward pass."""
    q, k, v, dout, out, lse = shards(program, group.rank(), arrays)
    gradients = program.backward(dout, q, k, v, out, lse, group)
    return [to_numpy(x) for x in gradients]
