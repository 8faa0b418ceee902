"""Registers the passes as operators, under a name that stays as long as the plan does."""

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

# ---- Schedule: a pass is an operator, for compilers and checkpoint policies.

if LOOPS:
    group_named: Any = dist.distributed_c10d._resolve_process_group


def meaning(code: CodeType, docstring: Any = None) -> list[Any]:
    """Instructions, names and constants of some code: without lines, comments and a docstring."""
    nested = list[Any]()
    for x in code.co_consts:
        if isinstance(x, CodeType):
            nested.append(meaning(x))
        elif x is None or x != docstring:
            nested.append(sorted(map(repr, x)) if isinstance(x, frozenset) else repr(x))
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, *nested]


frame: Any = inspect.currentframe()
program = hashlib.sha256(repr(meaning(frame.f_code, __doc__)).encode()).hexdigest()[:12]


def operator(kind: str) -> Callable[[Any], Any]:
    """Registers a function as ringloom::KIND_OPERATOR, named after plan and version.

    A second import of the same code gets the operator of the first; one of edited code gets its
    own, under a further number.
    """
    if DYNAMIC:
        code = f"{program} {id(globals())}"  # its tables are in this module
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
