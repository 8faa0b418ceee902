"""named(program)   a name for every register and every message: the field's words, then numbers."""

from collections.abc import Iterator, Mapping
from itertools import count

from ringloom.codegen.ir import Attend, Post, Program, Register, Wait, reads, walk, writes
from ringloom.planner.loops.form import HELD, OWN

WORDS = {"q": "queries", "kv": "kv", "OUT": "output", "DQ": "dq", "DKV": "dkv"}
Names = Mapping[Register | str, str]  # of registers, and of messages by their handles


def named(program: Program) -> Names:
    """The names of one pass: what a rank owns has its word, what comes from others is visiting.

    Inputs that a rank owns, or holds, are arguments: they have no name here.
    """
    ops = [*walk(program.ops)]
    registers = dict.fromkeys(r for op in ops for r in (*writes(op), *reads(op)))
    read = {r.of for op in ops if isinstance(op, Attend) for r in reads(op) if r.value == OWN}
    names = dict[Register | str, str]()
    taken = set[str]()
    for register in sorted(registers, key=lambda r: r.value != OWN):
        if register.value in (OWN, HELD) and not register.accumulates:
            continue
        word = WORDS[register.of]
        plain = register.value == OWN if register.accumulates else register.of not in read
        names[register] = next(x for x in _choices(word, plain) if x not in taken)
        taken.add(names[register])
    for op in ops:
        if isinstance(op, Post | Wait) and op.message.handle not in names:
            source = op.message.source.register
            verb = "returning" if source.accumulates else "arriving"
            word = f"{verb}_{WORDS[source.of]}"
            names[op.message.handle] = next(x for x in _choices(word, True) if x not in taken)
            taken.add(names[op.message.handle])
    return names


def _choices(word: str, plain: bool) -> Iterator[str]:
    """Names with a word in them, the simplest first."""
    yield from [word] * plain
    marked = word if plain else f"visiting_{word}"
    yield from [marked] * (not plain)
    yield from (f"{marked}_{n}" for n in count(2))
