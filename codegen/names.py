"""assign_names(program)   names every register and message of a program, as in `visiting_kv_2`."""

from collections.abc import Mapping
from itertools import count

from ringloom.codegen.ir import Attend, Post, Program, Register, Wait, reads, walk, writes
from ringloom.planner.loops.form import HELD, OWN

WORDS = {"q": "queries", "kv": "kv", "OUT": "output", "DQ": "dq", "DKV": "dkv"}
Names = Mapping[Register | str, str]  # keys: registers, and the handles of messages


def assign_names(program: Program) -> Names:
    """Returns the names of one pass; names of values from other ranks begin with `visiting_`.

    Inputs that a rank owns, or holds initially, are arguments and have no name here.
    """
    ops = [*walk(program.ops)]
    registers = dict.fromkeys(r for op in ops for r in (*writes(op), *reads(op)))
    attended = {r.of for op in ops if isinstance(op, Attend) for r in reads(op) if r.value == OWN}
    names = dict[Register | str, str]()
    for register in sorted(registers, key=lambda r: r.value != OWN):
        if register.value in (OWN, HELD) and not register.accumulates:
            continue
        word = WORDS[register.of]
        plain = register.value == OWN if register.accumulates else register.of not in attended
        names[register] = _unused(word if plain else f"visiting_{word}", names)
    for op in ops:
        if isinstance(op, Post | Wait) and op.message.handle not in names:
            source = op.message.source.register
            prefix = "returning" if source.accumulates else "arriving"
            names[op.message.handle] = _unused(f"{prefix}_{WORDS[source.of]}", names)
    return names


def _unused(name: str, names: Names) -> str:
    """Returns the name, numbered from 2 if others have it."""
    candidates = (name if n == 1 else f"{name}_{n}" for n in count(1))
    return next(x for x in candidates if x not in names.values())
