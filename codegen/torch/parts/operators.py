"""Registers the passes as PyTorch operators, named after the plan and the version of ringloom."""

import hashlib
import inspect
from collections.abc import Callable
from itertools import count
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist

OPERATOR = ""
LOOPS = DYNAMIC = True

# ---- Schedule: each pass is a custom operator, for compilers and checkpoint policies.

if LOOPS:
    group_named: Any = dist.distributed_c10d._resolve_process_group


def bytecode(code: CodeType, docstring: Any = None) -> list[Any]:
    """Return the instructions, names and constants of code, without line numbers and docstring."""
    nested = list[Any]()
    for x in code.co_consts:
        if isinstance(x, CodeType):
            nested.append(bytecode(x))
        elif x is None or x != docstring:
            nested.append(sorted(map(repr, x)) if isinstance(x, frozenset) else repr(x))
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, *nested]


frame: Any = inspect.currentframe()
program = hashlib.sha256(repr(bytecode(frame.f_code, __doc__)).encode()).hexdigest()[:12]


def operator(kind: str) -> Callable[[Any], Any]:
    """Return a decorator that registers a pass as the operator ringloom::KIND_OPERATOR.

    A second import of the same code reuses the operator; edited code gets a new, numbered one.
    """
    if DYNAMIC:
        code = f"{program} {id(globals())}"  # operators find tables in this module
    else:
        code = program

    def register(function: Any) -> Any:
        for number in count():
            name = f"{kind}_{OPERATOR}" + f"_{number}" * (number > 0)
            packet = getattr(torch.ops.ringloom, name, None)
            if packet is None:
                definition = torch.library.custom_op(f"ringloom::{name}", function, mutates_args=())
                getattr(torch.ops.ringloom, name).registered = code, definition
                return definition
            if packet.registered[0] == code:
                return packet.registered[1]

    return register
