"""Names that parts use and other parts of a program define, declared for type checkers."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def missing(*_: Any, **_named: Any) -> Any:
    """Replaces each of these names if a part is imported alone."""
    raise NotImplementedError


Tensors = tuple[Tensor, ...]
allowed: Callable[..., Tensor] = missing
attention: Callable[..., Tensor] = missing
positions: Callable[..., Tensor] = missing
kv_positions: Callable[..., Tensor] = missing
shard: Callable[..., Tensor] = missing
shapes: Callable[..., list[tuple[int, ...]]] = missing
sinks: Any = None
forward: Any = missing
backward: Any = missing
group_named: Any = missing
compare_with_dense: Callable[..., list[tuple[Tensor, Tensor]]] = missing
example: Callable[..., Any] = missing
load: Callable[..., Any] = missing
