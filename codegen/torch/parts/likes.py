"""Shapes of the operator's results, for compilers, with copies that a backward pass needs."""

from typing import Any

from torch import Tensor

from codegen.torch.parts.function import group_named, operator
from codegen.torch.parts.merge import wide
from codegen.torch.parts.stubs import outputs_like

V_HEAD_DIM = 1

operator.register_fake(lambda q, *_: [q.clone(), q[..., :1].to(wide(q), copy=True)])  # equal fresh
operator.register_fake(lambda q, k, v, *x: outputs_like(q, k, v, group_named(x[-1])))  # keeping


@operator.register_fake  # unequal fresh
def like_results(q: Tensor, *_: Any) -> list[Tensor]:  # unequal fresh
    out = q.new_empty((*q.shape[:3], V_HEAD_DIM))
    return [out, q[..., :1].to(wide(q), copy=True)]
