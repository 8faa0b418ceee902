"""Registers the passes as operators, under a name that depends only on plan and version."""

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
    """Return instructions, names and constants of code, without line numbers and docstring."""
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
    """Register a function as ringloom::KIND_OPERATOR, named after plan and version.

    A second import of the same code reuses the operator; edited code gets its own, with a number.
    """
    if DYNAMIC:
        code = f"{program} {id(globals())}"  # tables live in this module
    else:
        code = program

    def register(function: Any) -> Any:
        for number in count():
            name = f"{kind}_{OPERATOR}" + f"_{number}" * (number > 0)
            packet = getattr(torch.ops.ringloom, name, None)
            if packet is None:
                made = torch.library.custom_op(f"ringloom::{name}", function, mutates_args=())
                getattr(torch.ops.ringloom, name).registered = code, made
                return made
            if packet.registered[0] == code:
                return packet.registered[1]

    return register
