"""Replays emitted JAX programs in numpy: every device is a thread, and nothing is compiled.

    out, dq, dk, dv = replay(pair, q, k, v, dout)

Stricter than XLA where it can be: all devices have to run the same collectives in the same order,
a rank sends and receives once at most in a `ppermute`, and loops keep shapes and dtypes.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from codegen import emit
from jax_devices import jax
from runtimes.emitted import RESULTS, SIDES

tree = jax.tree
HERE = threading.local()


def replay(plans: Any, *arrays: Any, sinks: Any = None) -> list[Any]:
    """Output and gradients by the program of plans, of whole arrays q, k, v, dout.

    Without dout, the output alone.
    """
    return replayed(emit(plans, "jax"), plans.ranks, *arrays, sinks=sinks)


def replayed(source: str, ranks: int, *arrays: Any, sinks: Any = None) -> list[Any]:
    """Output and gradients by an emitted program; arrays in sequence order, in and out."""
    module = ModuleType("replayed")
    exec(compile(source, "<replayed>", "exec"), module.__dict__)
    install(module)
    shards = [
        [module.shard(array(x), rank, side=side) for rank in range(ranks)]
        for x, side in zip(arrays, SIDES, strict=False)
    ]

    def on_rank(rank: int) -> list[Any]:
        q, k, v, *douts = (array(parts[rank]) for parts in shards)
        more, given = ("", ()) if sinks is None else ("_with_sinks", (array(sinks),))
        out, saved = getattr(module, f"forward{more}")(q, k, v, *given, "sp")
        backward = getattr(module, f"backward{more}", None)
        return [out, *(x for dout in douts for x in backward("sp", saved, dout))]

    results = [*zip(*Devices(ranks).run(on_rank), strict=True)]
    sided = zip(results, RESULTS["attention"], strict=False)
    whole = [module.unshard(parts, side=side) for parts, side in sided]
    return [*whole, *(sum(parts) for parts in results[len(whole) :])]


def install(module: ModuleType) -> None:
    """Give a program numpy for jax.numpy, and these functions for jax and jax.lax."""
    names: dict[str, Any] = {"jnp": Numpy(), "lax": LAX, "jax": JAX, "checkpoint_name": first}
    vars(module).update(names)


class Devices:
    """Ranks that run one function each and exchange values."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(ranks, timeout=30)
        self.offered: list[Any] = [None] * ranks

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """The results of all ranks; the first error of any is raised."""
        results: list[Any] = [None] * self.ranks
        errors = list[BaseException]()

        def live(rank: int) -> None:
            HERE.rank, HERE.devices = rank, self
            try:
                with np.errstate(all="ignore"):
                    results[rank] = function(rank)
                    self.exchange("the end", None)
            except BaseException as error:
                if not isinstance(error, threading.BrokenBarrierError):
                    errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=live, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        assert not self.barrier.broken, "some ranks wait for others, which have ended"
        return results

    def exchange(self, what: object, value: Any) -> list[Any]:
        """Return the values of all ranks for the same collective, which `what` describes."""
        self.offered[HERE.rank] = (what, value)
        self.barrier.wait()
        whats, values = zip(*self.offered, strict=True)
        assert all(other == what for other in whats), f"different collectives: {whats}"
        self.barrier.wait()
        return list(values)


class Array(np.ndarray[Any, Any]):
    """An array with `.at`."""

    @property
    def at(self) -> "At":
        return At(self)


class At:
    """x.at: x.at[index].get, .set or .add, which may name places that do not exist."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __getitem__(self, index: Any) -> "Place":
        return Place(self.x, index if isinstance(index, tuple) else (index,))


class Place:
    """Some places of an array; those beyond its ends are in a margin behind it."""

    def __init__(self, x: Any, index: tuple[Any, ...]) -> None:
        self.x, self.index, margins = np.asarray(x), list(index), [(0, 0)] * x.ndim
        for axis, n in enumerate(index):
            if not isinstance(n, slice):
                at, size = np.asarray(n), x.shape[axis]
                at = np.where(at < 0, at + size, at)
                self.index[axis] = np.where((at < 0) | (at >= size), size, at)
                margins[axis] = (0, 1)
        self.margins = margins

    def padded(self, fill: Any) -> Any:
        return np.pad(self.x, self.margins, constant_values=fill)

    def cut(self, x: Any) -> Any:
        return array(x[tuple(slice(size) for size in self.x.shape)])

    def get(self, mode: str, fill_value: Any) -> Any:
        assert mode == "fill"
        return array(self.padded(fill_value)[tuple(self.index)])

    def set(self, values: Any, mode: str = "drop") -> Any:
        assert mode == "drop"
        x = self.padded(0)
        x[tuple(self.index)] = values
        return self.cut(x)

    def add(self, values: Any) -> Any:
        x = self.padded(0)
        np.add.at(x, tuple(self.index), values)
        return self.cut(x)


def array(x: Any) -> Any:
    """The same numbers as an array with `.at`, or whatever else x is."""
    return np.asarray(x).view(Array) if isinstance(x, np.ndarray | np.generic) else x


class Numpy:
    """jax.numpy."""

    inf, nan = np.inf, np.nan
    finfo, promote_types = np.finfo, np.promote_types

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if isinstance(function, type):
            return function

        def called(*args: Any, preferred_element_type: Any = None, **options: Any) -> Any:
            options.pop("precision", None)
            result = array(function(*args, **options))
            return (
                result if preferred_element_type is None else result.astype(preferred_element_type)
            )

        return called


# ---- jax.lax


def first(x: Any, _: str) -> Any:
    return x


def axis_index(axis: str) -> Any:
    return np.int32(HERE.rank)


def exchange(*what: object, value: Any) -> list[Any]:
    devices: Devices = HERE.devices
    return devices.exchange(what, value)


def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    sources, targets = ({pair[side] for pair in perm} for side in (0, 1))
    assert len(sources) == len(targets) == len(perm), f"a rank has two messages: {perm}"
    shapes = str(tree.map(np.shape, x))
    values = exchange("ppermute", tuple(perm), shapes, value=x)
    own = [source for source, target in perm if target == HERE.rank]
    return tree.map(array, values[own[0]]) if own else tree.map(np.zeros_like, x)


def members(groups: Sequence[Sequence[int]] | None) -> Sequence[int]:
    """The ranks of the group of this one."""
    if groups is None:
        return range(HERE.devices.ranks)
    (own,) = (group for group in groups if HERE.rank in group)
    return own


def grouped(name: str, x: Any, groups: Any, *options: object) -> list[Any]:
    """The values of a group, in its order."""
    told = None if groups is None else tuple(map(tuple, groups))
    values = exchange(name, told, *options, str(tree.map(np.shape, x)), value=x)
    return [values[rank] for rank in members(groups)]


def each(function: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """A function of lists of arrays, leaf by leaf."""
    return tree.map(lambda *leaves: array(function(list(leaves))), *values)


def all_gather(
    x: Any, axis_name: str, *, axis: int = 0, tiled: bool = False, axis_index_groups: Any = None
) -> Any:
    join = np.concatenate if tiled else np.stack
    values = grouped("all_gather", x, axis_index_groups, axis, tiled)
    return each(lambda leaves: join(leaves, axis), values)


def all_to_all(
    x: Any,
    axis_name: str,
    split_axis: int,
    concat_axis: int,
    *,
    tiled: bool,
    axis_index_groups: Any = None,
) -> Any:
    assert tiled
    values = grouped("all_to_all", x, axis_index_groups, split_axis, concat_axis)
    place = list(members(axis_index_groups)).index(HERE.rank)

    def split(leaves: list[Any]) -> Any:
        parts = [np.split(leaf, len(leaves), split_axis)[place] for leaf in leaves]
        return np.concatenate(parts, concat_axis)

    return each(split, values)


def psum(x: Any, axis_name: str) -> Any:
    return each(sum, grouped("psum", x, None))


def psum_scatter(
    x: Any,
    axis_name: str,
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Any = None,
) -> Any:
    values = grouped("psum_scatter", x, axis_index_groups, scatter_dimension, tiled)
    place = list(members(axis_index_groups)).index(HERE.rank)

    def part(leaves: list[Any]) -> Any:
        own = np.split(sum(leaves), len(leaves), scatter_dimension)[place]
        return own if tiled else own.squeeze(scatter_dimension)

    return each(part, values)


def cond(which: Any, yes: Callable[..., Any], no: Callable[..., Any], *operands: Any) -> Any:
    return (yes if which else no)(*operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    return branches[int(np.clip(index, 0, len(branches) - 1))](*operands)


def same_kind(before: Any, after: Any) -> Any:
    """Check the state of a loop; AssertionError where its shapes or dtypes change."""
    kinds = [tree.map(lambda x: (np.shape(x), np.asarray(x).dtype), x) for x in (before, after)]
    assert kinds[0] == kinds[1], f"a loop turns {kinds[0]} into {kinds[1]}"
    return after


def fori_loop(start: int, stop: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    for n in range(int(start), int(stop)):
        state = same_kind(state, body(np.int32(n), state))
    return state


def items(xs: Any) -> Iterator[Any]:
    """The entries of arrays along their first axes."""
    for n in range(len(tree.leaves(xs)[0])):
        yield tree.map(lambda x, n=n: array(x[n]), xs)


def scan(body: Callable[[Any, Any], Any], state: Any, xs: Any) -> Any:
    results = []
    for x in items(xs):
        after, result = body(state, x)
        state = same_kind(state, after)
        results.append(result)
    return state, each(np.stack, results) if results else None


def mapped(function: Callable[[Any], Any], xs: Any, batch_size: int | None = None) -> Any:
    return each(np.stack, [function(x) for x in items(xs)])


def dynamic_slice_in_dim(x: Any, start: Any, size: int, axis: int) -> Any:
    start = int(np.clip(start, 0, x.shape[axis] - size))
    return array(np.take(x, range(start, start + size), axis))


def dynamic_update_slice_in_dim(x: Any, new: Any, start: Any, axis: int) -> Any:
    start = int(np.clip(start, 0, x.shape[axis] - new.shape[axis]))
    index = (slice(None),) * axis + (slice(start, start + new.shape[axis]),)
    return x.at[index].set(new)


def platform_dependent(*args: Any, default: Callable[..., Any], **_: Any) -> Any:
    return default(*args)


LAX = SimpleNamespace(
    **{
        function.__name__: function
        for function in (
            axis_index,
            ppermute,
            all_gather,
            all_to_all,
            psum,
            psum_scatter,
            cond,
            switch,
            fori_loop,
            scan,
            dynamic_slice_in_dim,
            dynamic_update_slice_in_dim,
            platform_dependent,
        )
    },
    map=mapped,
    optimization_barrier=lambda x: x,
)
JAX = SimpleNamespace(
    tree=tree,
    Array=Any,
    eval_shape=lambda function, *args: function(*args),
    default_matmul_precision=lambda _: nullcontext(),
)
