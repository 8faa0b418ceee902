"""jax, jax.numpy and jax.lax in numpy, as far as schedules use them; each device is a rank in turn.

Stricter than XLA where it can be: all devices have to run the same collectives in the same order,
a rank sends and receives once at most in a `ppermute`, and loops and branches keep shapes and
dtypes. Arrays never change, and Python cannot ask for their numbers, as when XLA traces them.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from stand_ins.ranks import HERE, Stuck, part

AXIS = "sp"  # of the mesh


class Array(np.ndarray[Any, Any]):
    """An array with `.at`, whose numbers are not known."""

    @property
    def at(self) -> "At":
        """Places that `set` and `add` replace in a copy."""
        return At(self)

    def __getitem__(self, index: Any) -> Any:
        places = index if isinstance(index, tuple) else (index,)
        return array(np.asarray(self)[tuple(number(n) for n in places)])

    def __iadd__(self, other: Any) -> Any:  # type: ignore[misc]
        return self + other

    def unknown(self, *_: Any) -> Any:
        """Raises Stuck: what depends on a number, or would change it, cannot be traced."""
        raise Stuck("Python needs a number of an array, or changes it")

    __bool__ = __index__ = __int__ = __float__ = __setitem__ = unknown
    __isub__ = __imul__ = __itruediv__ = unknown


def number(x: Any) -> Any:
    """The number of an array that has only one, or whatever else x is."""
    return np.asarray(x).item() if isinstance(x, np.ndarray) and not x.ndim else x


class At:
    """x.at: x.at[index].get, .set or .add, which may name places that do not exist."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __getitem__(self, index: Any) -> "Place":
        return Place(self.x, index if isinstance(index, tuple) else (index,))


class Place:
    """The places of an array that an index names; those beyond its ends are in a margin behind."""

    def __init__(self, x: Any, index: tuple[Any, ...]) -> None:
        self.x, self.index, margins = np.asarray(x), list(index), [(0, 0)] * x.ndim
        for axis, n in enumerate(index):
            if not isinstance(n, slice):
                at, size = np.asarray(n), x.shape[axis]
                at = np.where(at < 0, at + size, at)
                self.index[axis] = np.where((at < 0) | (at >= size), size, at)
                margins[axis] = (0, 1)
        self.margins = margins if any(behind for _, behind in margins) else ()

    def get(self, mode: str, fill_value: Any) -> Any:
        """The numbers there, or the value to fill with; mode: "fill"."""
        return array(self._padded(fill_value)[tuple(self.index)])

    def set(self, values: Any, mode: str = "drop") -> Any:
        """The array with other values there."""
        x = self._padded(0)
        x[tuple(self.index)] = values
        return self._cut(x)

    def add(self, values: Any) -> Any:
        """The array with values added there, as often as a place is named."""
        x = self._padded(0)
        np.add.at(x, tuple(self.index), values)
        return self._cut(x)

    def _padded(self, fill: Any) -> Any:
        if not self.margins:
            return self.x.copy()
        return np.pad(self.x, self.margins, constant_values=fill)

    def _cut(self, x: Any) -> Any:
        return array(x[tuple(slice(size) for size in self.x.shape)])


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


# ---- jax.tree


def leaves(tree: Any) -> list[Any]:
    """The arrays of lists, tuples and dictionaries in each other."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [] if tree is None else [tree]


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Such a tree of results, leaf by leaf."""
    if isinstance(tree, dict | list | tuple) and any(type(x) is not type(tree) for x in others):
        raise Stuck(f"{type(tree)} meets another tree")
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(x[key] for x in others)) for key in tree}
    if isinstance(tree, list | tuple):
        branches = [tree_map(function, *x) for x in zip(tree, *others, strict=True)]
        return type(tree)(*branches) if hasattr(tree, "_fields") else type(tree)(branches)
    return None if tree is None else function(tree, *others)


# ---- jax.lax


def rank_on(axis: str) -> int:
    """The rank that runs; Stuck where there is no such axis."""
    if axis != AXIS:
        raise Stuck(f"no axis {axis}")
    return HERE.rank


def axis_index(axis: str) -> Any:
    """The rank that runs, as an array."""
    return array(np.int32(rank_on(axis)))


def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    """The arrays that the one rank sent which has this one for its target; zeros where none has."""
    sources, targets = (dict(pairs) for pairs in (((b, a) for a, b in perm), perm))
    if not len(sources) == len(targets) == len(perm):
        raise Stuck(f"a rank has two messages: {perm}")
    rank, shapes = rank_on(axis_name), str(tree_map(np.shape, x))
    call = "ppermute", tuple(perm), shapes, HERE.ranks.number("lax", rank)
    if rank in targets:
        HERE.ranks.put((*call, targets[rank]), x)
    came = HERE.ranks.take((*call, rank)) if rank in sources else None
    return tree_map(array, came) if rank in sources else tree_map(np.zeros_like, x)


def members(groups: Sequence[Sequence[int]] | None) -> Sequence[int]:
    """The ranks of the group of this one."""
    if groups is None:
        return range(HERE.ranks.count)
    (own,) = (group for group in groups if HERE.rank in group)
    return own


def grouped(name: str, x: Any, axis: str, groups: Any, *options: object) -> list[Any]:
    """The values of a group, in its order."""
    call = HERE.ranks.number("lax", rank_on(axis))
    what = str((call, name, options, groups, tree_map(np.shape, x)))
    values: list[Any] = HERE.ranks.share(what, x, members(groups))()
    return values


def each(function: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """A function of lists of arrays, leaf by leaf."""
    return tree_map(lambda *arrays: array(function(list(arrays))), *values)


def all_gather(
    x: Any, axis_name: str, *, axis: int = 0, tiled: bool = False, axis_index_groups: Any = None
) -> Any:
    """The arrays of all ranks, one after the other."""
    join = np.concatenate if tiled else np.stack
    values = grouped("all_gather", x, axis_name, axis_index_groups, axis, tiled)
    return each(lambda arrays: join(arrays, axis), values)


def all_to_all(
    x: Any,
    axis_name: str,
    split_axis: int,
    concat_axis: int,
    *,
    tiled: bool,
    axis_index_groups: Any = None,
) -> Any:
    """This rank's part of the array of each rank; tiled."""
    if not tiled:
        raise Stuck("an all_to_all that is not tiled")
    values = grouped("all_to_all", x, axis_name, axis_index_groups, split_axis, concat_axis, tiled)
    place = list(members(axis_index_groups)).index(HERE.rank)

    def split(arrays: list[Any]) -> Any:
        parts = [part(x, len(arrays), place, split_axis) for x in arrays]
        return np.concatenate(parts, concat_axis)

    return each(split, values)


def psum(x: Any, axis_name: str) -> Any:
    """The sums over all ranks."""
    return each(sum, grouped("psum", x, axis_name, None))


def psum_scatter(
    x: Any,
    axis_name: str,
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Any = None,
) -> Any:
    """This rank's part of the sums over all ranks."""
    values = grouped("psum_scatter", x, axis_name, axis_index_groups, scatter_dimension, tiled)
    place = list(members(axis_index_groups)).index(HERE.rank)

    def own(arrays: list[Any]) -> Any:
        total = sum(part(x, len(arrays), place, scatter_dimension) for x in arrays)
        return total if tiled else total.squeeze(scatter_dimension)

    return each(own, values)


def cond(which: Any, yes: Callable[..., Any], no: Callable[..., Any], *operands: Any) -> Any:
    """The result of one of two functions, alike on the ranks that take the one and the other."""
    result, caller = (yes if number(which) else no)(*operands), sys._getframe(1)
    line = "cond", caller.f_code, caller.f_lasti, kind(operands)
    HERE.ranks.agree((*line, HERE.ranks.number(*line, HERE.rank)), kind(result))
    return result


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """The result of one of many functions; an index beyond them is the nearest."""
    return branches[min(max(number(index), 0), len(branches) - 1)](*operands)


def kind(tree: Any) -> str:
    """The shapes and dtypes of arrays in each other."""
    return str(tree_map(lambda x: (np.shape(x), np.asarray(x).dtype.char), tree))


def same_kind(before: str, after: Any) -> Any:
    """The state of a loop after a step; Stuck where its shapes or dtypes, its kind, change."""
    if before != (turned := kind(after)):
        raise Stuck(f"a loop turns {before} into {turned}")
    return after


def fori_loop(start: int, stop: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """The state after all steps."""
    before = kind(state)
    for n in range(number(start), number(stop)):
        state = same_kind(before, body(array(np.int32(n)), state))
    return state


def items(xs: Any) -> Iterator[Any]:
    """The entries of arrays along their first axes."""
    for n in range(len(leaves(xs)[0])):
        yield tree_map(lambda x, n=n: array(x[n]), xs)


def scan(body: Callable[[Any, Any], Any], state: Any, xs: Any) -> Any:
    """The state after a step for each entry of some arrays, and what the steps give."""
    results = []
    for x in items(xs):
        after, result = body(state, x)
        state = same_kind(kind(state), after)
        results.append(result)
    return state, each(np.stack, results) if results else None


def mapped(function: Callable[[Any], Any], xs: Any, batch_size: int | None = None) -> Any:
    """The results of a function for each entry of some arrays."""
    return each(np.stack, [function(x) for x in items(xs)])


def platform_dependent(*arrays: Any, cuda: Callable[..., Any], **_: object) -> Any:
    """The results of the way that GPUs go."""
    return cuda(*arrays)


def dynamic_slice_in_dim(x: Any, start: Any, size: int, axis: int) -> Any:
    """A slice that begins within the array, where XLA would begin it."""
    return array(np.asarray(x)[within(x, start, size, axis)])


def dynamic_update_slice_in_dim(x: Any, new: Any, start: Any, axis: int) -> Any:
    """The array with another slice there."""
    if x.dtype != new.dtype:
        raise Stuck(f"a slice of {new.dtype} in {x.dtype}")
    changed = np.array(x)
    changed[within(x, start, new.shape[axis], axis)] = new
    return array(changed)


def within(x: Any, start: Any, size: int, axis: int) -> tuple[slice, ...]:
    """The index of a slice that is moved into the array; a negative start counts from the end."""
    start, room = number(start), x.shape[axis] - size
    if room < 0:
        raise Stuck(f"a slice of {size} of {x.shape[axis]}")
    first: int = min(max(start + x.shape[axis] * (start < 0), 0), room)
    return *[slice(None)] * (axis % x.ndim), slice(first, first + size)


LAX = (
    *(axis_index, ppermute, all_gather, all_to_all, psum, psum_scatter),
    *(cond, switch, fori_loop, dynamic_slice_in_dim, dynamic_update_slice_in_dim),
    *(scan, platform_dependent),
)
NAMES: dict[str, Any] = {
    "jnp": Numpy(),
    "lax": SimpleNamespace(map=mapped, **{function.__name__: function for function in LAX}),
    "jax": SimpleNamespace(tree=SimpleNamespace(map=tree_map), Array=Any, jit=lambda x, **_: x),
    "checkpoint_name": lambda x, _: x,
}
