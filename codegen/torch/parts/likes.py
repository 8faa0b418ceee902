"""Shapes of the operator's results, for compilers."""

from typing import Any

from torch import Tensor

from codegen.torch.parts.function import operator
from codegen.torch.parts.merge import wide

V_HEAD_DIM = 1

operator.register_fake(lambda q, *_: [q.clone(), q[..., :1].to(wide(q), copy=True)])  # equal


@operator.register_fake  # unequal
def like_results(q: Tensor, *_: Any) -> list[Tensor]:  # unequal
    out = q.new_empty((*q.shape[:3], V_HEAD_DIM))  # unequal
    return [out, q[..., :1].to(wide(q), copy=True)]  # unequal
