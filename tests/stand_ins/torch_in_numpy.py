"""torch and torch.distributed in numpy, as far as schedules use them; each process is a rank.

Stricter than NCCL where it can be: a buffer holds NaN until its receive was waited for, what is
sent must not change until then, and everything that was started must be waited for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from stand_ins.ranks import HERE, Stuck, part

NARROW, WIDE = np.dtype(np.float64), np.dtype(np.longdouble)  # of the model, of partial results
WORLD = "world"  # the name of the group of all ranks
Finish = Callable[[], None]


class Sorted(NamedTuple):
    """The results of torch.Tensor.sort."""

    values: Any
    indices: Any


class Tensor(np.ndarray[Any, Any]):
    """An array with the methods of a tensor."""

    device, is_cuda = "cpu", False

    def to(self, kind: Any, copy: bool = False) -> Any:
        """In another type; as it is on another device."""
        return self if kind == self.device else self.astype(kind, copy=copy)

    def contiguous(self) -> Any:
        """Itself, or a copy of what lies apart."""
        return tensor(np.ascontiguousarray(self))

    def clone(self) -> Any:
        """A copy."""
        return self.copy()

    def new_zeros(self, shape: Any, dtype: Any = None) -> Any:
        """Zeros."""
        return tensor(np.zeros(shape, dtype or self.dtype))

    def new_empty(self, *shape: Any) -> Any:
        """A tensor of NaN, of the same type."""
        return tensor(np.full(shape[0] if len(shape) == 1 else shape, np.nan, self.dtype))

    def chunk(self, count: int, axis: int = 0) -> list[Any]:
        """Equal parts."""
        return np.split(self, count, axis)

    def tensor_split(self, at: Any, axis: int = 0) -> list[Any]:
        """Parts whose sizes differ by one at most, or that end at these indices."""
        return np.array_split(self, at, axis)

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Any:
        """With an axis taken apart."""
        axis %= self.ndim
        return self.reshape(*self.shape[:axis], *sizes, *self.shape[axis + 1 :])

    def flatten(self, start: int = 0, end: int = -1) -> Any:  # type: ignore[override]
        """With some axes joined."""
        end %= self.ndim
        return self.reshape(*self.shape[:start], -1, *self.shape[end + 1 :])

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        """In another shape, of what lies together."""
        return whole(self).reshape(*shape)

    def repeat_interleave(self, repeats: int, dim: int) -> Any:
        """Each part along an axis so many times."""
        return np.repeat(self, repeats, dim)

    def sort(self) -> Any:  # type: ignore[override]
        """Its values in order, and where they were."""
        order = np.argsort(np.asarray(self), kind="stable")
        return Sorted(self[order], tensor(order))

    def nonzero(self) -> Any:
        """The indices of what is not zero, a row for each."""
        return tensor(np.argwhere(np.asarray(self)))

    def diff(self) -> Any:
        """Differences of neighbours."""
        return tensor(np.diff(np.asarray(self)))

    def sum(self, axis: Any = None, keepdim: bool = False, *, dim: Any = None) -> Any:  # type: ignore[override]
        """Sums over an axis."""
        return super().sum(axis if dim is None else dim, keepdims=keepdim)

    def exp(self) -> Any:
        """The exponential."""
        return np.exp(self)

    def nan_to_num(self, *values: float) -> Any:
        """With numbers for NaN and the infinities."""
        return np.nan_to_num(self, True, *values)

    def lerp_(self, end: Any, weight: Any) -> None:
        """Go this part of the way to another tensor, in place; all of one type, as torch wants."""
        if not self.dtype == end.dtype == weight.dtype:
            raise Stuck(f"lerp_ of {self.dtype}, {end.dtype} and {weight.dtype}")
        self += weight * (end - self)

    def copy_(self, other: Any) -> None:
        """Take the numbers of another tensor."""
        self[...] = other


def tensor(x: Any, **_: Any) -> Any:
    """Numbers as a tensor."""
    return (
        np.asarray(x).view(Tensor) if not isinstance(x, np.ndarray) else np.ndarray.view(x, Tensor)
    )


def whole(x: Any) -> Any:
    """A tensor; Stuck unless it is contiguous, as messages have to be."""
    if not x.flags.c_contiguous:
        raise Stuck("a tensor that is not contiguous")
    return x


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def largest(x: Any, order: float, axis: int, keepdim: bool, dtype: Any) -> Any:
    """The largest absolute value."""
    return abs(x).max(axis, keepdims=keepdim).astype(dtype)


# ---- torch.distributed


@dataclass(frozen=True)
class Group:
    """Ranks, as one of them sees their group."""

    members: tuple[int, ...]
    own: int

    def rank(self) -> int:
        """The place of this rank among them."""
        return self.members.index(self.own)

    def size(self) -> int:
        """The number of ranks."""
        return len(self.members)

    def place(self, number: int) -> int:
        """The number of a rank of the group; Stuck where there is none."""
        if not 0 <= number < self.size():
            raise Stuck(f"rank {number} of a group of {self.size()}")
        return number


class Work:
    """Something that was started, which ends when it is waited for."""

    def __init__(self, finish: Finish, sent: Any = 0) -> None:
        self.finish, self.sent, self.before = finish, sent, np.copy(sent)
        under_way().append(self)

    def wait(self) -> None:
        """Wait for its end."""
        self.finish()
        if not np.array_equal(self.sent, self.before, equal_nan=True):
            raise Stuck("a tensor changes while it is sent")
        under_way().remove(self)


def under_way() -> list[Work]:
    """The works that this rank has started, and not waited for."""
    if not hasattr(HERE, "works"):
        HERE.works = []
    works: list[Work] = HERE.works
    return works


def started(work: Work, async_op: bool) -> Work | None:
    """A collective that was started, ended already unless it is asynchronous."""
    if async_op:
        return work
    work.wait()
    return None


def world(name: str) -> Group:
    """The group of all ranks; Stuck for other names."""
    if name is not WORLD:
        raise Stuck(f"no group {name}")
    return Group(tuple(range(HERE.ranks.count)), HERE.rank)


def new_group(members: Sequence[int], use_local_synchronization: bool) -> Group:
    """A group of some ranks, which torch sorts."""
    return Group(tuple(sorted(members)), HERE.rank)


def batch_isend_irecv(ops: Sequence[Any]) -> list[Work]:
    """Messages to and from other ranks, in the order that both ends have started them in."""
    if not ops:
        raise Stuck("a batch of no messages")
    return [op() for op in ops]


def message(kind: Any, t: Any, group: Group, group_peer: int) -> Callable[[], Work]:
    """A message that is to be started."""
    return partial(kind, whole(t), group, group.members[group.place(group_peer)])


def isend(t: Any, group: Group, peer: int) -> Work:
    """Start to send a tensor."""
    if peer == HERE.rank:
        raise Stuck(f"rank {peer} sends to itself, which gloo cannot")
    link = "message", group.members, HERE.rank, peer
    HERE.ranks.put((*link, HERE.ranks.number("send", *link)), t.copy())
    return Work(lambda: None, t)


def irecv(t: Any, group: Group, peer: int) -> Work:
    """Start to receive a tensor."""
    link = "message", group.members, peer, HERE.rank
    key = (*link, HERE.ranks.number("receive", *link))
    return Work(lambda: into(t, HERE.ranks.take(key)))


def into(t: Any, came: Any) -> None:
    """Write what came into its buffer."""
    if (t.shape, t.dtype) != (came.shape, came.dtype):
        raise Stuck(f"{came.dtype}{came.shape} comes where {t.dtype}{t.shape} is expected")
    whole(t)[...] = came


def shared(what: str, sent: Any, group: Group) -> Callable[[], list[Any]]:
    """The tensors that all ranks of a group give, once they have."""
    return HERE.ranks.share(f"{what} {sent.dtype}{sent.shape}", whole(sent).copy(), group.members)


def all_to_all_single(received: Any, sent: Any, group: Group, async_op: bool = False) -> Any:
    """Part i of what is sent goes to rank i of the group."""
    came, size = shared("all-to-all", sent, group), group.size()

    def finish() -> None:
        into(received, np.concatenate([part(x, size, group.rank()) for x in came()]))

    return started(Work(finish, sent), async_op)


def all_gather_into_tensor(received: Any, sent: Any, group: Group, async_op: bool = False) -> Any:
    """Every rank gets what all have sent."""
    came = shared("all-gather", sent, group)
    return started(Work(lambda: into(received, np.concatenate(came())), sent), async_op)


def reduce_scatter_tensor(received: Any, sent: Any, group: Group, async_op: bool = False) -> Any:
    """Rank i of the group gets the sum of all parts i."""
    came, size = shared("reduce-scatter", sent, group), group.size()

    def finish() -> None:
        into(received, sum(part(x, size, group.rank()) for x in came()))

    return started(Work(finish, sent), async_op)


def broadcast(t: Any, group: Group, group_src: int, async_op: bool = False) -> Any:
    """Every rank gets the tensor of one."""
    came, own = shared("broadcast", t, group), group.rank() == group.place(group_src)
    return started(Work(lambda: into(t, came()[group_src]), t if own else 0), async_op)


def reduce(t: Any, group: Group, group_dst: int, async_op: bool = False) -> Any:
    """One rank gets the sum; what the others hold afterwards is not said."""
    came, own = shared("reduce", t, group), group.rank() == group_dst

    def finish() -> None:
        total = sum(came())
        into(t, total if own else total * np.nan)

    return started(Work(finish), async_op)


DIST = SimpleNamespace(
    P2POp=message,
    get_process_group_ranks=lambda group: [*group.members],
    **{
        function.__name__: function
        for function in (
            *(batch_isend_irecv, isend, irecv, new_group, broadcast, reduce),
            *(all_to_all_single, all_gather_into_tensor, reduce_scatter_tensor),
        )
    },
)
TORCH = SimpleNamespace(
    float32=WIDE,
    float64=np.dtype(np.void),  # which no array has here
    inf=np.inf,
    tensor=tensor,
    arange=lambda *args: tensor(np.arange(*args)),
    bucketize=lambda x, bounds, right=False: tensor(
        np.searchsorted(bounds, x, "right" if right else "left")
    ),
    cat=lambda tensors, axis=0: tensor(np.concatenate(tensors, axis)).contiguous(),
    stack=lambda tensors, axis=0: tensor(np.stack(tensors, axis)).contiguous(),
    empty_like=lambda x, dtype=None: np.full_like(x, np.nan, dtype),
    full_like=lambda x, value, dtype=None: np.full_like(x, value, dtype),
    zeros_like=lambda x, dtype=None: np.zeros_like(x, dtype),
    logaddexp=np.logaddexp,
    sigmoid=sigmoid,
    linalg=SimpleNamespace(vector_norm=largest),
    dtype=np.dtype,
    Tensor=Tensor,
)
NAMES: dict[str, Any] = {"torch": TORCH, "dist": DIST, "Tensor": Tensor, "group_named": world}
