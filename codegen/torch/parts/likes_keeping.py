"""Shapes of the operator's results, with copies for the backward pass, for compilers."""

from codegen.torch.parts.function import group_named, operator
from codegen.torch.parts.stubs import outputs_like

operator.register_fake(lambda q, k, v, group: outputs_like(q, k, v, group_named(group)))  # sinkless
operator.register_fake(lambda q, k, v, _, group: outputs_like(q, k, v, group_named(group)))  # sinks
