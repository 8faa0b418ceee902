"""The backward pass of queries whose output stayed at home."""

from collections.abc import Sequence

from torch import Tensor

from codegen.torch.parts.kernels import attend_backward
from codegen.torch.parts.stand_in import stand_in


def attend_visitors(
    queries: Sequence[Tensor], k: Tensor, v: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries (dout, q, lse, delta) and of these keys."""
    dout, q, lse, delta = queries
    return attend_backward(dout, q, k, v, stand_in(dout, delta), lse, causal)
