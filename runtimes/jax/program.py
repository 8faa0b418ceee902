"""Program(ranks, source)   an emitted JAX program, compiled once for each of its functions.

Whole arrays come in and go out in sequence order; inside they are in layout order, padded.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from types import ModuleType
from typing import Any

import numpy as np

from runtimes.arrays import Array

DEVICES = 8  # virtual devices that a process gets, at least
Q, KV = "q", "kv"
# The sides of what goes in and comes out: q, k, v, dout, out, lse; out, lse; out and gradients.
GIVEN = {"forward": (Q, KV, KV), "both": (Q, KV, KV, Q), "backward": (Q, KV, KV, Q, Q, Q)}
RESULTS = {"forward": (Q, Q), "both": (Q, Q, KV, KV), "backward": (Q, KV, KV)}


class Program:
    """An emitted program as a module."""

    def __init__(self, ranks: int, source: str) -> None:
        self.ranks, self.source = ranks, source
        self._compiled = dict[str, Callable[..., Any]]()

    @cached_property
    def module(self) -> ModuleType:
        """The program, executed."""
        module = ModuleType("emitted")
        exec(compile(self.source, "<emitted>", "exec"), module.__dict__)
        return module

    @cached_property
    def devices(self) -> list[Any] | None:
        """One device per rank, or None where this process cannot have so many."""
        import jax

        with suppress(RuntimeError):  # once devices are there, there are no more
            jax.config.update("jax_num_cpu_devices", max(DEVICES, self.ranks))
        for kind in (None, "cpu"):
            if len(devices := jax.devices(kind)) >= self.ranks:
                return list(devices[: self.ranks])
        return None

    @cached_property
    def mesh(self) -> Any:
        """The devices of this process in a row."""
        from jax.sharding import Mesh

        return Mesh(np.array(self.devices), ("sp",))

    def run(self, what: str, *arrays: Array) -> list[Array]:
        """Results of "forward", "both" or "backward", see GIVEN and RESULTS."""
        import jax

        context = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
        with context(arrays[0].dtype == np.float64):
            ordered = map(self.ordered, arrays, GIVEN[what])
            results = self.function(what)(*ordered)
            return [self.restored(x, side) for x, side in zip(results, RESULTS[what], strict=True)]

    def positions(self, side: str) -> Array:
        """The positions of all ranks one after the other, -1 for padding."""
        of_keys = getattr(self.module, "kv_positions", self.module.positions)
        function = self.module.positions if side == Q else of_keys
        return np.concatenate([np.asarray(function(rank)) for rank in range(self.ranks)])

    def ordered(self, x: Array, side: str) -> Array:
        """An array in sequence order put into layout order, padding zero."""
        at = self.positions(side)
        return np.where((at >= 0)[:, None], x[:, :, np.maximum(at, 0)], x.dtype.type(0))

    def restored(self, x: Any, side: str) -> Array:
        """A result in layout order put into sequence order."""
        at = self.positions(side)
        order = np.argsort(at, kind="stable")[np.count_nonzero(at < 0) :]
        return np.ascontiguousarray(np.asarray(x)[:, :, order])

    def function(self, what: str) -> Callable[..., Any]:
        """The compiled function behind "forward", "both" or "backward"."""
        import jax

        if what not in self._compiled:
            self._compiled[what] = jax.jit(getattr(self, f"_{what}"))
        return self._compiled[what]

    def _on_shards(self, function: Callable[..., Any], count: int, *arrays: Any) -> Any:
        """A function of local arrays, which gives `count` of them, on global ones."""
        import jax

        place = jax.P(None, None, "sp")
        specs = {"in_specs": (place,) * len(arrays), "out_specs": (place,) * count}
        return jax.shard_map(function, mesh=self.mesh, check_vma=False, **specs)(*arrays)

    def _forward(self, q: Any, k: Any, v: Any) -> Any:
        def local(*qkv: Any) -> Any:
            out, (_, _, _, _, lse, *_) = self.module.forward(*qkv, "sp")
            return out, lse

        return self._on_shards(local, 2, q, k, v)

    def _both(self, q: Any, k: Any, v: Any, dout: Any) -> Any:
        import jax

        attend = partial(self.module.attention, mesh=self.mesh, axis="sp")
        out, pull_back = jax.vjp(attend, q, k, v)
        return out, *pull_back(dout)

    def _backward(self, q: Any, k: Any, v: Any, dout: Any, out: Any, lse: Any) -> Any:
        def local(q: Any, k: Any, v: Any, dout: Any, out: Any, lse: Any) -> Any:
            return self.module.backward("sp", (q, k, v, out, lse), dout)

        return self._on_shards(local, 3, q, k, v, dout, out, lse)
